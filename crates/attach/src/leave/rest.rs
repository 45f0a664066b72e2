//! Decides whether a region can be reused: no thread may be inside a wrapper.

use memhook_process::{
    Mapping, RemoteAddress, inner_tid, is_hook, mappings, proc_text, read_memory, thread_ids,
};
use memhook_stream::{Region, barrier};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Longest wait for threads inside wrappers.
const PATIENCE: Duration = Duration::from_millis(400);
/// Longest wait for threads that are recording. Only a stopped thread leaves the hook's own work unfinished for this
/// long.
const LONG_PATIENCE: Duration = Duration::from_secs(1);
/// Maximum duration of most calls. Threads that are still marked after this time are examined.
const USUAL: Duration = Duration::from_millis(20);
/// Longest time that a running thread, or a thread that waits for a processor, can be between two instructions of a
/// wrapper.
const BETWEEN: Duration = Duration::from_millis(300);
/// Upper bound on the size of a wrapper's own frame, which contains the return address of its callee.
const FRAME_BYTES: u64 = 512;

/// Returns true if no thread is inside a wrapper after the gate was closed. A thread that stopped in the middle of the
/// hook's work would later write to memory that has been reused. A thread that is inside the called function, for
/// example in a waiting new-handler, keeps its ring (`Region::initialize`).
///
/// A mark may be stale: the thread ended inside, or left in a way that the hook does not see (longjmp, a switch of
/// coroutines). Stale marks are removed.
pub fn comes_to_rest(pid: i32, region: &Region) -> bool {
    let start = Instant::now();
    barrier();
    loop {
        let marked = region.marked_inside();
        if marked.is_empty() {
            return true;
        }
        let waited = start.elapsed();
        if waited > USUAL {
            let threads = Threads::of(pid);
            for mark in &marked {
                if threads.has_left(mark.tid, mark.frame, waited > BETWEEN) {
                    region.clear_mark(mark.ring);
                }
            }
        }
        if waited > PATIENCE {
            let records = region.marked_inside().iter().any(|mark| mark.records);
            if !records || waited > LONG_PATIENCE {
                return !records;
            }
        }
        // A thread that waits for space in a full ring stops waiting when the clock stops.
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Threads of a process at one moment.
struct Threads {
    pid: i32,
    ids: Option<Vec<i32>>,
    maps: Vec<Mapping>,
}

impl Threads {
    fn of(pid: i32) -> Threads {
        Threads {
            pid,
            ids: thread_ids(pid).ok(),
            maps: mappings(pid).unwrap_or_default(),
        }
    }

    /// Returns the thread with this id in the target's pid namespace.
    fn outer_id(&self, ids: &[i32], tid: u32) -> Option<i32> {
        let is_it = |id: &&i32| inner_tid(self.pid, **id) == Some(tid);
        ids.iter().find(is_it).copied()
    }

    /// Returns true if a thread is certainly not inside the wrapper with this frame.
    fn has_left(&self, tid: u32, frame: u64, long_ago: bool) -> bool {
        let Some(ids) = &self.ids else {
            return false;
        };
        let Some(id) = self.outer_id(ids, tid) else {
            return true;
        };
        let call = proc_text(format!("/proc/{}/task/{id}/syscall", self.pid)).unwrap_or_default();
        match position(&call) {
            Some((sp, pc)) => {
                !self.is_hook(pc) && (self.is_behind(sp, frame) || !self.holds_our_address(frame))
            }
            None => long_ago && !self.holds_our_address(frame),
        }
    }

    fn mapping(&self, address: u64) -> Option<&Mapping> {
        self.maps
            .iter()
            .find(|m| (m.start..m.end).contains(&address))
    }

    fn is_hook(&self, address: u64) -> bool {
        let hook = self.mapping(address);
        hook.is_some_and(is_hook)
    }

    /// Returns true if the frame is below the stack pointer of the same stack, which means that the call has returned.
    fn is_behind(&self, sp: u64, frame: u64) -> bool {
        let stack = self.mapping(frame);
        sp > frame && stack.is_some_and(|m| (m.start..m.end).contains(&sp))
    }

    /// Returns true if a word of the frame could be a return address into our code.
    fn holds_our_address(&self, frame: u64) -> bool {
        let mut bytes = [0; FRAME_BYTES as usize];
        let Range { start, .. } = frame.wrapping_sub(FRAME_BYTES)..frame;
        if read_memory(self.pid, RemoteAddress(start), &mut bytes).is_err() {
            // The stack itself may be unmapped, like the stack of a finished coroutine.
            return self.mapping(frame).is_some();
        }
        let (words, _) = bytes.as_chunks::<8>();
        words
            .iter()
            .any(|word| self.is_hook(u64::from_le_bytes(*word)))
    }
}

/// Parses stack pointer and program counter of a sleeping thread (proc_pid_syscall(5)).
fn position(call: &str) -> Option<(u64, u64)> {
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let mut words = call.split_whitespace().rev();
    let pc = hex(words.next()?)?;
    Some((hex(words.next()?)?, pc))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions() {
        assert_eq!(position("running\n"), None);
        assert_eq!(position("-1 0x7ffc10 0x55aa\n"), Some((0x7ffc10, 0x55aa)));
        let call = "35 0x7ffc 0x0 0x0 0x0 0x0 0x0 0x7ffe20 0x7f01\n";
        assert_eq!(position(call), Some((0x7ffe20, 0x7f01)));
    }
}
