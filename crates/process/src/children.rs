//! Children of a process.

use crate::threads::stat_field;
use crate::{proc_text, process_ids, thread_ids};

/// Returns the processes that any thread of a process has created, and that the process has not yet
/// waited for.
///
/// A child may be missing if another child ends at the same time (proc_tid_children(5)), so look
/// again.
pub fn children(pid: i32) -> Vec<i32> {
    let threads = thread_ids(pid).unwrap_or_default();
    let lists = threads
        .iter()
        .map(|tid| proc_text(format!("/proc/{pid}/task/{tid}/children")));
    match lists.collect::<Result<Vec<String>, _>>() {
        Ok(lists) => {
            let ids = lists.iter().flat_map(|list| list.split_ascii_whitespace());
            ids.filter_map(|id| id.parse().ok()).collect()
        }
        // A thread has ended in the meantime, or the kernel was built without CONFIG_PROC_CHILDREN.
        Err(_) => {
            let is_child = |&child: &i32| parent(child) == Some(pid);
            process_ids().into_iter().filter(is_child).collect()
        }
    }
}

/// Returns the parent of a process (proc_pid_stat(5), field 4).
pub fn parent(pid: i32) -> Option<i32> {
    stat_field(pid, pid, 4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_child_of_any_thread_is_found() {
        let own = std::process::id() as i32;
        let start = || std::process::Command::new("sleep").arg("600").spawn();
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let (tell, started) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            tell.send(start().unwrap()).unwrap();
            let _ = wait.recv();
        });
        let made = [start().unwrap(), started.recv().unwrap()];
        // A child may be missing while threads and children of other tests end.
        let until = Instant::now() + Duration::from_secs(60);
        let ids = made.each_ref().map(|child| child.id() as i32);
        while !ids.iter().all(|id| children(own).contains(id)) {
            assert!(Instant::now() < until, "{ids:?}: {:?}", children(own));
        }
        for mut child in made {
            let pid = child.id() as i32;
            assert_eq!(parent(pid), Some(own));
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(!children(own).contains(&pid));
        }
        drop(go_on);
        other.join().unwrap();
    }
}
