//! Selection of processes by a name or a control group.

use crate::similar_names::similar;
use crate::{
    Chosen, ControlGroup, is_attacher, living_thread, proc_text, process_ids, thread_name,
    thread_start_time,
};
use std::fmt;

/// Facts about a process that may be selected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// Process id.
    pub pid: i32,
    /// Name shown by ps(1): at most 15 bytes (proc_pid_comm(5)).
    pub comm: String,
    /// File that it executes; empty if it may not be read.
    pub executable: String,
    /// Arguments. Some programs write their current activity there.
    pub arguments: String,
    /// Text of its /proc/PID/cgroup.
    pub groups: String,
    /// Start time in clock ticks since boot.
    pub started: u64,
}

impl Candidate {
    /// Reads the facts about a process; `None` for a kernel thread, a zombie, or a process that is gone.
    fn of(pid: i32) -> Option<Candidate> {
        let thread = living_thread(pid);
        let path = |file: &str| format!("/proc/{thread}/{file}");
        let executable = std::fs::read_link(path("exe"))
            .map(|link| link.to_string_lossy().into_owned())
            .unwrap_or_default();
        let arguments = proc_text(path("cmdline")).unwrap_or_default();
        if executable.is_empty() && arguments.is_empty() {
            return None;
        }
        Some(Candidate {
            pid,
            // Name of the initial thread, as in ps(1), even if that thread has ended.
            comm: thread_name(pid, pid)?,
            executable,
            arguments,
            groups: proc_text(path("cgroup")).unwrap_or_default(),
            started: thread_start_time(pid, pid)?,
        })
    }

    /// Returns true if the process has this name in `ps`, if its executable has it, or if it was started under this
    /// name. The name may be a path.
    fn is_named(&self, name: &str) -> bool {
        let executable = self.executable.trim_end_matches(" (deleted)");
        let started_as = self.arguments.split('\0').next().unwrap_or_default();
        if name.contains('/') {
            return [executable, started_as].contains(&name);
        }
        self.comm == name || [executable, started_as].map(file_name).contains(&name)
    }

    /// Returns the process as a choice.
    pub fn chosen(&self) -> Chosen {
        Chosen {
            pid: self.pid,
            started: Some(self.started),
        }
    }

    /// Returns text that distinguishes the process from others with the same name.
    fn shown(&self) -> String {
        /// Number of characters of a command line that are shown.
        const MOST_CHARACTERS: usize = 40;
        let arguments = self.arguments.trim_end_matches('\0').replace('\0', " ");
        let line = if arguments.is_empty() {
            &self.comm
        } else {
            &arguments
        };
        let mut line = line.chars();
        let mut text: String = line.by_ref().take(MOST_CHARACTERS).collect();
        if line.next().is_some() {
            text.push_str("...");
        }
        format!("{} ({text})", self.pid)
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Properties shared by the selected processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Name of the processes.
    pub name: Option<String>,
    /// Control group of the processes, as the user named it.
    pub group: Option<(String, ControlGroup)>,
}

impl Selector {
    /// Creates a selector from a name (`target`) and a group; each may be missing.
    pub fn of(target: Option<&str>, group: Option<&str>) -> Result<Selector, SelectionError> {
        match target.map(|name| (name, name.parse())) {
            None if group.is_none() => return Err(SelectionError::Nothing),
            Some(("", _)) => return Err(SelectionError::Empty),
            Some((_, Ok(pid))) => return Err(SelectionError::Id(pid)),
            _ => {}
        }
        Ok(Selector {
            name: target.map(str::to_owned),
            group: group.map(|text| (text.to_owned(), ControlGroup::named(text))),
        })
    }

    /// Returns true if the process is selected.
    pub fn matches(&self, candidate: &Candidate) -> bool {
        self.name
            .as_ref()
            .is_none_or(|name| candidate.is_named(name))
            && self
                .group
                .as_ref()
                .is_none_or(|(_, group)| group.has(&candidate.groups))
    }

    /// Returns all selected processes except this one. A control group selects no processes that attach to others.
    pub fn look(&self) -> Vec<Candidate> {
        let own = std::process::id() as i32;
        process_ids()
            .into_iter()
            .filter(|&pid| pid != own)
            .filter_map(Candidate::of)
            .filter(|candidate| self.matches(candidate))
            .filter(|candidate| self.name.is_some() || is_attacher(candidate.pid) != Some(true))
            .collect()
    }

    /// Returns the only process that was found.
    pub fn choose(&self, found: &[Candidate]) -> Result<Chosen, SelectionError> {
        match found {
            [] => Err(match &self.name {
                Some(name) if self.group.is_none() => SelectionError::NoName {
                    name: name.clone(),
                    hint: String::new(),
                },
                _ => SelectionError::None(self.to_string()),
            }),
            [only] => Ok(only.chosen()),
            several => Err(SelectionError::Several {
                count: several.len(),
                which: self.to_string(),
                list: list(several),
            }),
        }
    }
}

/// Lists the first processes that were found.
fn list(found: &[Candidate]) -> String {
    const MOST: usize = 8;
    let shown: Vec<String> = found.iter().take(MOST).map(Candidate::shown).collect();
    let mut text = shown.join(", ");
    if let Some(more @ 1..) = found.len().checked_sub(MOST) {
        text += &format!(" and {more} more");
    }
    text
}

/// Writes the continuation of "processes": "named nginx", "in the control group /web".
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "named {name}")?;
        }
        if let Some((text, _)) = &self.group {
            let space = if self.name.is_some() { " " } else { "" };
            write!(f, "{space}in the control group {text}")?;
        }
        Ok(())
    }
}

/// Reason why no process was chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// No name or group was given.
    #[error("which process? give its PID or its name")]
    Nothing,
    /// The name is empty.
    #[error("PID must be a number or the name of a process")]
    Empty,
    /// A process id was given, so there is nothing to choose.
    #[error("PID {0} is one process")]
    Id(i32),
    /// Neither a number nor the name of a process.
    #[error("no process is named {name}{hint}: PID must be a number or the name of a process")]
    NoName {
        /// The given name.
        name: String,
        /// Hint about the name that was probably meant, in parentheses, or an empty string.
        hint: String,
    },
    /// No process matches.
    #[error("there is no process {0}")]
    None(String),
    /// The id belongs to another process by now.
    #[error(transparent)]
    Replaced(#[from] crate::Replaced),
    /// More than one matches.
    #[error("{count} processes are {which}: {list}")]
    Several {
        /// Number of processes.
        count: usize,
        /// Properties that they share.
        which: String,
        /// List of the first ones.
        list: String,
    },
}

/// Suggests names for one that no process has.
fn meant(name: &str) -> String {
    let kernel_thread = process_ids().into_iter().find(|&pid| {
        thread_name(pid, pid).as_deref() == Some(name) && Candidate::of(pid).is_none()
    });
    if let Some(pid) = kernel_thread {
        return format!(" ({pid} is a kernel thread or a zombie, which has no heap)");
    }
    let known = Selector::default().look();
    let names = known.iter().flat_map(|candidate| {
        let executable = candidate.executable.trim_end_matches(" (deleted)");
        [candidate.comm.as_str(), file_name(executable)]
    });
    match similar(name, names).as_slice() {
        [] => String::new(),
        names => format!(" (did you mean {}?)", names.join(" or ")),
    }
}

/// Returns the process with this id or name (`target`) in this control group, if there is only one. A number is an id
/// and is accepted without a check that such a process exists.
pub fn select(target: Option<&str>, group: Option<&str>) -> Result<Chosen, SelectionError> {
    match target.map(str::parse) {
        Some(Ok(pid)) if group.is_none() => Ok(Chosen::now(pid)),
        _ => {
            let selector = Selector::of(target, group)?;
            let chosen = selector.choose(&selector.look());
            chosen.map_err(|error| match error {
                SelectionError::NoName { name, .. } => SelectionError::NoName {
                    hint: meant(&name),
                    name,
                },
                error => error,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(pid: i32, comm: &str, executable: &str, arguments: &str) -> Candidate {
        Candidate {
            pid,
            comm: comm.into(),
            executable: executable.into(),
            arguments: arguments.into(),
            groups: "0::/web/a\n".into(),
            started: 100 - pid as u64,
        }
    }

    fn named(name: &str) -> Selector {
        Selector {
            name: Some(name.into()),
            group: None,
        }
    }

    #[test]
    fn a_process_has_several_names() {
        let redis = candidate(
            7,
            "redis-server",
            "/usr/bin/redis-check-rdb",
            "redis-server *:6379\0",
        );
        let long = candidate(
            8,
            "a-program-with-",
            "/opt/a-program-with-a-long-name (deleted)",
            "./started-as\0-x\0",
        );
        let matches = |name: &str, process| named(name).matches(process);
        for name in [
            "redis-server",
            "redis-check-rdb",
            "/usr/bin/redis-check-rdb",
        ] {
            assert!(matches(name, &redis), "{name}");
        }
        for name in [
            "a-program-with-a-long-name",
            "a-program-with-",
            "started-as",
            "./started-as",
        ] {
            assert!(matches(name, &long), "{name}");
        }
        for name in ["redis", "redis-server ", "", "bin", "/redis-server"] {
            assert!(!matches(name, &redis) && !matches(name, &long), "{name}");
        }
    }

    #[test]
    fn one_is_chosen_or_all_are_listed() {
        let found = [
            candidate(7, "x", "/x", "x\0--port=1\0"),
            candidate(9, "x", "/x", ""),
            candidate(8, "x", "/x", &"y".repeat(100)),
        ];
        let x = named("x");
        assert_eq!(x.choose(&found[..1]), Ok(found[0].chosen()));
        // The start times decrease although the ids increase.
        let several = x.choose(&found).unwrap_err().to_string();
        assert_eq!(
            several,
            format!(
                "3 processes are named x: 7 (x --port=1), 9 (x), 8 ({}...)",
                "y".repeat(40)
            )
        );
        assert_eq!(
            x.choose(&[]).unwrap_err().to_string(),
            "no process is named x: PID must be a number or the name of a process"
        );
        let many = vec![found[0].clone(); 20];
        let text = x.choose(&many).unwrap_err().to_string();
        assert!(text.ends_with(" and 12 more"), "{text}");
    }

    #[test]
    fn name_and_group_must_both_fit() {
        let process = candidate(7, "x", "/x", "x");
        let matches = |name: Option<&str>, group: &str| {
            let selector = Selector::of(name, Some(group)).expect("a name or a group");
            selector.matches(&process)
        };
        assert!(matches(None, "/web") && matches(Some("x"), "/web/a"));
        assert!(!matches(Some("y"), "/web") && !matches(Some("x"), "/other"));
        let selector = Selector::of(Some("x"), Some("/nowhere")).expect("both");
        let nothing = selector.choose(&[]);
        assert_eq!(
            nothing.unwrap_err().to_string(),
            "there is no process named x in the control group /nowhere"
        );
    }

    #[test]
    fn a_number_is_an_id() {
        let chosen = select(Some("17"), None);
        assert_eq!(chosen.map(|chosen| chosen.pid), Ok(17));
        let error = select(Some("no such name"), None);
        assert_eq!(
            error,
            Err(SelectionError::NoName {
                name: "no such name".into(),
                hint: String::new(),
            })
        );
        for (target, group, why) in [
            (None, None, SelectionError::Nothing),
            (Some(""), Some("/"), SelectionError::Empty),
            (Some("17"), Some("/"), SelectionError::Id(17)),
        ] {
            assert_eq!(select(target, group), Err(why));
        }
        assert_eq!(Selector::of(Some("17"), None), Err(SelectionError::Id(17)));
    }

    #[test]
    fn a_running_process_is_found() {
        let mut child = std::process::Command::new("/bin/sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let is_listed = || named("/bin/sleep").look().iter().any(|c| c.pid == pid);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !is_listed() && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let listed = is_listed();
        let mistyped = select(Some("sleeep"), None);
        child.kill().unwrap();
        let when_a_zombie = {
            while !crate::has_ended(pid) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            is_listed()
        };
        child.wait().unwrap();
        assert!(listed && !when_a_zombie);
        let error = mistyped.unwrap_err().to_string();
        assert!(error.contains("(did you mean sleep"), "{error}");
        // This process is not selected either, although it has that name.
        let own = std::process::id() as i32;
        let all = Selector::default().look();
        assert!(all.len() > 1 && all.iter().all(|c| c.pid != own));
    }
}
