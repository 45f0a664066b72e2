//! Selects the process of a command: by id, by name, or by control group.

use memhook_process::{SelectionError, Selector, select};
use std::path::Path;

/// Options that choose a process.
#[derive(clap::Args, Clone)]
#[group(skip)]
pub struct Target {
    /// The process, by its id or its name
    ///
    /// The name is the name shown by ps. If several processes have it, memhook-rs lists them and takes none. -p PID
    /// works too.
    #[arg(value_name = "PID")]
    process: Option<String>,
    /// The process, given as an option
    #[arg(
        short,
        long,
        alias = "name",
        value_name = "PID",
        conflicts_with = "process",
        hide = true
    )]
    pid: Option<String>,
    #[command(flatten)]
    choice: Choice,
}

/// Options that choose among several processes.
#[derive(clap::Args, Clone)]
#[group(skip)]
pub struct Choice {
    /// Take a process of this control group; watch takes all
    ///
    /// The process may be in a group below it. Name a directory in /sys/fs/cgroup, or a path as in /proc/PID/cgroup.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
}

impl Choice {
    /// Returns the process with this id or name, if one was given. A later process with the same id
    /// is never affected.
    pub fn pid(&self, process: Option<&str>) -> Result<i32, SelectionError> {
        Ok(select(process, self.cgroup.as_deref())?.keep_for_good()?)
    }
}

impl Target {
    /// Returns the process id.
    pub fn pid(&self) -> Result<i32, SelectionError> {
        self.choice.pid(self.process())
    }

    /// Returns true if no option chooses a process.
    pub fn is_missing(&self) -> bool {
        self.process().is_none() && self.choice.cgroup.is_none()
    }

    /// Returns the recording that is named in place of a process.
    pub fn recording(&self) -> Option<&Path> {
        let path = Path::new(self.process.as_deref()?);
        path.extension()
            .is_some_and(|end| end == "mhk")
            .then_some(path)
    }

    /// Returns the control group, if nothing else was given.
    pub fn whole_group(&self) -> Result<Option<Selector>, SelectionError> {
        match (self.process(), &self.choice.cgroup) {
            (None, Some(_)) => Ok(Some(self.selector()?)),
            _ => Ok(None),
        }
    }

    /// Returns the properties that all chosen processes share.
    pub fn selector(&self) -> Result<Selector, SelectionError> {
        Selector::of(self.process(), self.choice.cgroup.as_deref())
    }

    fn process(&self) -> Option<&str> {
        self.process.as_deref().or(self.pid.as_deref())
    }
}
