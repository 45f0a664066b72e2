//! Facts about processes, read from /proc. Rules select processes by these facts. A look reads only
//! one file for each process that is already known.

use crate::kubernetes::{Place, Pods, pod_uid};
use crate::reads::{Answer, Heard, Question, Reads};
use memhook_process::{living_thread, proc_path, proc_text, process_ids};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which all facts are read again, because a process may have moved to another control
/// group.
const STALE_AFTER: Duration = Duration::from_secs(30);
/// Pause between two checks whether files were read.
const TURN: Duration = Duration::from_millis(2);
/// Time after which a plan is made even if some files have not been read.
const LONGEST_READ: Duration = Duration::from_secs(30);
/// Maximum bytes that are read from a container's file.
const MOST_BYTES: u64 = 4096;

/// Facts about a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Process id.
    pub pid: i32,
    /// Process id of its parent.
    pub parent: i32,
    /// Start time in clock ticks since boot, which distinguishes the process from a later process
    /// with the same id.
    pub started: u64,
    /// The name that ps(1) shows.
    pub name: String,
    /// Path of the executable; empty if it is unreadable.
    pub executable: String,
    /// The text of its /proc/PID/cgroup.
    pub groups: String,
    /// Effective user id of the process.
    pub uid: u32,
    /// Bytes in memory.
    pub resident: u64,
    /// Container of the process, by its control group.
    pub container: Option<String>,
    /// Id of the process's pod, by its control group.
    pub pod_uid: Option<String>,
    /// Name of the pod, from the kubelet, or else the host name that Kubernetes assigns.
    pub pod: Option<String>,
    /// Namespace of the pod, from the kubelet, or else from a file of Kubernetes.
    pub namespace: Option<String>,
    /// Place in Kubernetes, as the kubelet reports it.
    pub place: Place,
    /// Contents of the process's files, once they were read.
    pub files: ItsFiles,
}

/// Processes that see the same file systems, as far as this can be determined without reading
/// files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Pod, container, or control group of these processes.
    pub realm: String,
    /// Id of the process if it is not in a container. It is then the only process of this owner.
    pub process: Option<i32>,
}

/// Known contents of a process's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ItsFiles {
    /// The files were not requested.
    #[default]
    Unread,
    /// The files are being read.
    Asked,
    /// The files did not answer.
    Silent,
    /// The files have these contents.
    Say(Inside),
}

/// Contents of a process's files. Reading them may take forever.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// True if the process's program is memhook-rs, or a profiler built on it.
    attaches: bool,
    /// Host name of the pod, and the namespace that Kubernetes stores in the pod's file system.
    pod: Option<String>,
    namespace: Option<String>,
}

impl Inside {
    /// Reads the files.
    pub fn of(pid: i32, is_pod: bool) -> Inside {
        let inside = |file: &str| is_pod.then(|| text_inside(pid, file)).flatten();
        Inside {
            attaches: memhook_process::is_attacher(pid) == Some(true),
            pod: inside("etc/hostname"),
            namespace: inside("var/run/secrets/kubernetes.io/serviceaccount/namespace"),
        }
    }
}

/// Facts that may change at any time.
struct Stat {
    name: String,
    parent: i32,
    started: u64,
    resident: u64,
    /// True if the thread has ended. Its process may continue with other threads.
    has_ended: bool,
}

impl Stat {
    /// Parses proc_pid_stat(5). The name may contain any characters.
    fn parse(text: &str, page: u64) -> Option<Stat> {
        let (before, after) = (text.find('(')?, text.rfind(')')?);
        let fields: Vec<&str> = text.get(after + 1..)?.split_ascii_whitespace().collect();
        // The fields after the name, from field 3 on.
        let field = |number: usize| fields.get(number - 3);
        Some(Stat {
            has_ended: matches!(*field(3)?, "Z" | "X"),
            name: text.get(before + 1..after)?.to_owned(),
            parent: field(4)?.parse().ok()?,
            started: field(22)?.parse().ok()?,
            resident: field(24)?.parse::<u64>().unwrap_or(0) * page,
        })
    }

    /// Reads the state of a process if any of its threads is alive. Name and start time are those
    /// of the initial thread. An initial thread that ended before the others (pthread_exit(3)) no
    /// longer has memory.
    fn of(pid: i32, page: u64) -> Option<Stat> {
        let read = |path: String| Stat::parse(&proc_text(path).ok()?, page);
        let stat = read(format!("/proc/{pid}/stat"))?;
        if !stat.has_ended {
            return Some(stat);
        }
        let thread = living_thread(pid);
        let living = read(format!("/proc/{pid}/task/{thread}/stat"))?;
        (!living.has_ended).then_some(Stat {
            resident: living.resident,
            ..stat
        })
    }
}

/// Returns the path of a process's executable; `None` for a kernel thread.
pub fn executable_of(pid: i32) -> Option<String> {
    let executable = std::fs::read_link(proc_path(pid, "exe")).ok()?;
    let executable = executable.to_string_lossy();
    Some(executable.trim_end_matches(" (deleted)").to_owned())
}

/// Returns true if this user may not read a process's executable path.
pub fn is_hidden(pid: i32) -> bool {
    let denied = std::io::ErrorKind::PermissionDenied;
    std::fs::read_link(proc_path(pid, "exe")).is_err_and(|error| error.kind() == denied)
}

impl Facts {
    fn of(pid: i32, stat: Stat) -> Option<Facts> {
        let path = |file: &str| proc_path(pid, file);
        let executable = executable_of(pid)?;
        let status = proc_text(path("status")).ok()?;
        let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        let mut groups = proc_text(path("cgroup")).unwrap_or_default();
        // The text was read into a page-sized buffer. It is kept for every process on the machine, so the rest of the
        // buffer is freed.
        groups.shrink_to_fit();
        let pod_uid = pod_uid(&groups);
        Some(Facts {
            pid,
            parent: stat.parent,
            started: stat.started,
            name: stat.name,
            executable,
            uid: uids.split_ascii_whitespace().nth(1)?.parse().ok()?,
            resident: stat.resident,
            container: container(&groups),
            pod: None,
            namespace: None,
            place: Place::NoPod,
            files: ItsFiles::Unread,
            pod_uid,
            groups,
        })
    }

    /// Updates the facts about the process's pod, from the process's files, and from the kubelet if
    /// the agent queries it.
    fn take_place(&mut self, pods: Option<&Pods>) {
        if let ItsFiles::Say(inside) = &self.files {
            (self.pod, self.namespace) = (inside.pod.clone(), inside.namespace.clone());
        }
        let Some(pods) = pods else {
            return;
        };
        self.place = pods.place(self.pod_uid.as_deref());
        if let Place::Pod(pod) = &self.place {
            self.pod = Some(pod.name.clone());
            self.namespace = Some(pod.namespace.clone());
        }
    }

    /// Returns true if the process runs memhook-rs, or a profiler built on it, as far as the
    /// readable files of the process show.
    pub fn attaches_to_others(&self) -> bool {
        matches!(&self.files, ItsFiles::Say(inside) if inside.attaches)
    }

    /// Returns the owner of the process's file systems.
    pub fn owner(&self) -> Owner {
        let named = self.pod_uid.as_ref().or(self.container.as_ref());
        Owner {
            realm: named.unwrap_or(&self.groups).clone(),
            process: named.is_none().then_some(self.pid),
        }
    }

    /// Returns the name of the process's container.
    pub fn container_name(&self) -> Option<&str> {
        self.place.pod()?.container(self.container.as_deref()?)
    }

    /// Returns the file name of the program, or else the process's name.
    pub fn program(&self) -> &str {
        let name = self.executable.rsplit('/').next().unwrap_or_default();
        if name.is_empty() { &self.name } else { name }
    }
}

/// Reads a word from a file of the container. The file is untrusted, so the word is bounded and
/// must look like a name.
fn text_inside(pid: i32, file: &str) -> Option<String> {
    use std::io::Read;
    let root = proc_path(pid, "root");
    let found = memhook_foreign::open_below(Path::new(&root), Path::new(file)).ok()?;
    let mut text = String::new();
    found.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    let name = text.trim();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let is_name = (1..=253).contains(&name.len()) && name.chars().all(is_plain);
    is_name.then(|| name.to_owned())
}

/// Returns the id of the container in a control group. The id is 64 hexadecimal digits at the end
/// of a name, in the form that container runtimes use (`docker-ID.scope`,
/// `cri-containerd-ID.scope`, `/docker/ID`).
fn container(groups: &str) -> Option<String> {
    let is_id = |part: &&str| part.len() == 64 && part.bytes().all(|b| b.is_ascii_hexdigit());
    let mut parts = groups.split(['/', '-', '.', ':', '\n']);
    parts.rfind(is_id).map(str::to_owned)
}

/// All processes of the machine, as last seen.
pub struct Machine {
    known: HashMap<i32, (Facts, Instant)>,
    /// Known pods; `None` if the agent does not query the kubelet.
    pods: Option<Arc<Pods>>,
    reads: Reads,
    page: u64,
    own: i32,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine {
            known: HashMap::new(),
            pods: None,
            reads: Reads::default(),
            page: rustix::param::page_size() as u64,
            own: std::process::id() as i32,
        }
    }
}

impl Machine {
    /// Sets the pods for the next looks.
    pub fn set_pods(&mut self, pods: Arc<Pods>) {
        self.pods = Some(pods);
    }

    /// Returns true if a process is in an unknown pod.
    pub fn has_unknown_pods(&self) -> bool {
        self.processes().any(|facts| facts.place == Place::Unknown)
    }

    /// Reads every process.
    pub fn look(&mut self, now: Instant) {
        let mut known = std::mem::take(&mut self.known);
        for pid in process_ids() {
            if let Some(facts) = self.seen(pid, known.remove(&pid), now) {
                self.known.insert(pid, facts);
            }
        }
    }

    /// Reads one process, which has just started or executed another program.
    pub fn look_at(&mut self, pid: i32, now: Instant) {
        self.known.remove(&pid);
        if let Some(facts) = self.seen(pid, None, now) {
            self.known.insert(pid, facts);
        }
    }

    /// Requests a process's files, unless they were already requested.
    fn ask_files(&mut self, facts: &mut Facts) {
        if facts.files == ItsFiles::Unread {
            let is_pod = facts.pod_uid.is_some();
            facts.files = match self.reads.ask(facts, Question::Inside { is_pod }) {
                true => ItsFiles::Asked,
                false => ItsFiles::Silent,
            };
        }
    }

    /// Returns true if the files of a process were read. Otherwise requests them.
    pub fn has_read(&mut self, pid: i32) -> bool {
        let Some((mut facts, read)) = self.known.remove(&pid) else {
            return false;
        };
        self.ask_files(&mut facts);
        let has_read = matches!(facts.files, ItsFiles::Say(_));
        self.known.insert(pid, (facts, read));
        has_read
    }

    /// Requests a check of a process. Returns false if earlier reads of the process's files have
    /// not returned yet.
    pub fn ask(&mut self, pid: i32, question: Question) -> bool {
        let facts = self.known.get(&pid).map(|(facts, _)| facts);
        facts.is_some_and(|facts| self.reads.ask(facts, question))
    }

    /// Waits until the files of all wanted processes have been read, or the time limit has passed.
    pub fn await_files(&mut self, is_wanted: impl Fn(&Facts) -> bool) {
        let wanted = self.processes().filter(|facts| is_wanted(facts));
        let wanted: Vec<i32> = wanted.map(|facts| facts.pid).collect();
        for pid in wanted {
            self.has_read(pid);
        }
        let until = Instant::now() + LONGEST_READ;
        let is_asked = |facts: &Facts| facts.files == ItsFiles::Asked;
        while self.processes().any(is_asked) && Instant::now() < until {
            std::thread::sleep(TURN);
            self.heard();
        }
    }

    /// Requests checks of what prevents an attach to these processes, and waits for the answers.
    /// Processes whose files cannot be read in time are missing from the result.
    pub fn await_obstacles(
        &mut self,
        questions: impl IntoIterator<Item = (i32, Question)>,
    ) -> HashMap<i32, Option<String>> {
        let mut asked = HashSet::new();
        for (pid, question) in questions {
            if self.ask(pid, question) {
                asked.insert(pid);
            }
        }
        let until = Instant::now() + LONGEST_READ;
        let mut found = HashMap::new();
        while !asked.is_empty() && Instant::now() < until {
            std::thread::sleep(TURN);
            for Heard { pid, answer, .. } in self.heard() {
                match answer {
                    Answer::Obstacle(obstacle) => drop(found.insert(pid, obstacle)),
                    Answer::None => {}
                    // This is a late answer to another question.
                    Answer::Inside(_) => continue,
                }
                asked.remove(&pid);
            }
        }
        found
    }

    /// Returns the answers since the last call. The facts about the processes already include these
    /// answers.
    pub fn heard(&mut self) -> Vec<Heard> {
        let heard = self.reads.heard();
        for one in &heard {
            let known = self.known.get_mut(&one.pid);
            let Some((facts, _)) = known.filter(|(facts, _)| facts.started == one.started) else {
                continue;
            };
            match &one.answer {
                Answer::Inside(inside) => facts.files = ItsFiles::Say(inside.clone()),
                Answer::None if facts.files == ItsFiles::Asked => facts.files = ItsFiles::Silent,
                Answer::None | Answer::Obstacle(_) => {}
            }
            facts.take_place(self.pods.as_deref());
        }
        heard
    }

    /// Returns the threads that read.
    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    fn seen(
        &mut self,
        pid: i32,
        before: Option<(Facts, Instant)>,
        now: Instant,
    ) -> Option<(Facts, Instant)> {
        let (mut facts, read) = self.read(pid, before, now)?;
        // Rules need the names of pods and namespaces.
        if facts.pod_uid.is_some() {
            self.ask_files(&mut facts);
        }
        facts.take_place(self.pods.as_deref());
        Some((facts, read))
    }

    fn read(
        &self,
        pid: i32,
        before: Option<(Facts, Instant)>,
        now: Instant,
    ) -> Option<(Facts, Instant)> {
        if pid == self.own {
            return None;
        }
        let stat = Stat::of(pid, self.page)?;
        if stat.parent == self.own {
            // This is our own helper process, which looks up the name of a host.
            return None;
        }
        match before {
            // When a process executes a program, its name changes, unless it executes the same
            // program again.
            Some((mut facts, read))
                if facts.started == stat.started
                    && facts.name == stat.name
                    && now.duration_since(read) < STALE_AFTER =>
            {
                (facts.parent, facts.resident) = (stat.parent, stat.resident);
                Some((facts, read))
            }
            before => {
                let mut facts = Facts::of(pid, stat)?;
                // The contents of the files stay valid. The next check shows whether the files can
                // be read now.
                if let Some((before, _)) = before
                    && (before.started, &before.executable) == (facts.started, &facts.executable)
                    && before.files != ItsFiles::Silent
                {
                    facts.files = before.files;
                }
                Some((facts, now))
            }
        }
    }

    /// Returns the current processes.
    pub fn processes(&self) -> impl Iterator<Item = &Facts> {
        self.known.values().map(|(facts, _)| facts)
    }

    /// Returns the process with this id.
    pub fn get(&self, pid: i32) -> Option<&Facts> {
        self.known.get(&pid).map(|(facts, _)| facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_any_characters() {
        let rest =
            "S 7 1 1 0 -1 4194304 1 0 0 0 5 6 0 0 20 0 1 0 12345 1000 250 18446744073709551615";
        let text = format!("42 (a ) b (c)) {rest}");
        let stat = Stat::parse(&text, 4096).expect("it is complete");
        assert_eq!((stat.name.as_str(), stat.parent), ("a ) b (c)", 7));
        assert_eq!((stat.started, stat.resident), (12345, 250 * 4096));
        let ended = Stat::parse(&text.replace("S 7", "Z 7"), 4096).expect("it is complete");
        assert!(ended.has_ended && !stat.has_ended);
        assert!(Stat::parse("42 (short) S 1", 4096).is_none());
    }

    #[test]
    fn runtimes_write_the_id_of_a_container_in_several_ways() {
        let id = "0123456789abcdef".repeat(4);
        for groups in [
            format!("0::/docker/{id}\n"),
            format!("0::/system.slice/docker-{id}.scope\n"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx.slice/cri-containerd-{id}.scope\n"
            ),
            format!("1:name=systemd:/kubepods/burstable/pod1-2-3/{id}\n"),
        ] {
            assert_eq!(container(&groups).as_ref(), Some(&id), "{groups}");
        }
        assert_eq!(container("0::/user.slice/user-0.slice\n"), None);
    }

    #[test]
    fn what_is_kept_of_a_process_is_no_larger_than_it() {
        let own = std::process::id() as i32;
        let stat = Stat::of(own, 4096).expect("it lives");
        let facts = Facts::of(own, stat).expect("it lives");
        assert!(!facts.groups.is_empty());
        for text in [&facts.groups, &facts.executable, &facts.name] {
            assert!(text.capacity() <= text.len() + 64, "{}", text.capacity());
        }
    }

    #[test]
    fn a_child_is_seen_and_goes() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep");
        let pid = child.id() as i32;
        // An agent ignores its own children.
        let mut machine = Machine {
            own: 1,
            ..Machine::default()
        };
        let until = Instant::now() + Duration::from_secs(60);
        while machine
            .get(pid)
            .is_none_or(|facts| facts.program() != "sleep" && facts.name != "sleep")
        {
            assert!(Instant::now() < until, "it is not seen");
            machine.look(Instant::now());
        }
        let facts = machine.get(pid).expect("seen");
        assert!(facts.started > 0);
        assert!(Machine::default().seen(pid, None, Instant::now()).is_none());
        child.kill().expect("killed");
        while !memhook_process::has_ended(pid) {
            assert!(Instant::now() < until, "it does not end");
        }
        // The process is a zombie for which its parent has not waited.
        machine.look(Instant::now());
        assert!(machine.get(pid).is_none());
        child.wait().expect("reaped");
        machine.look(Instant::now());
        assert!(machine.get(pid).is_none());
    }
}
