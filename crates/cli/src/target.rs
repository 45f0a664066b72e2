//! Which process a command is about: its id, its name, its control group.

use anyhow::bail;
use memhook_process::{Selector, select};

/// The process.
#[derive(clap::Args, Clone)]
#[group(skip)]
pub struct Target {
    /// The process: its id, or its name as ps shows it
    #[arg(value_name = "PID")]
    process: Option<String>,
    /// The same as an option
    #[arg(
        short,
        long,
        visible_alias = "name",
        value_name = "PID",
        conflicts_with = "process"
    )]
    pid: Option<String>,
    #[command(flatten)]
    choice: Choice,
}

/// The one of several processes.
#[derive(clap::Args, Clone)]
#[group(skip)]
pub struct Choice {
    /// Of several processes that match, take the one that was started last
    #[arg(long)]
    newest: bool,
    /// Take a process of this control group or of one below it: a directory in /sys/fs/cgroup, or
    /// a path as in /proc/PID/cgroup
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
}

impl Choice {
    /// The process with this id or name, if one was given.
    pub fn pid(&self, process: Option<&str>) -> anyhow::Result<i32> {
        self.check(process)?;
        Ok(select(process, self.cgroup.as_deref(), self.newest)?)
    }

    fn check(&self, process: Option<&str>) -> anyhow::Result<()> {
        match process {
            None if self.cgroup.is_none() => {
                bail!("which process? give its PID or its name, or --cgroup PATH")
            }
            Some("") => bail!("PID must be a number or the name of a process"),
            Some(id) if id.parse::<i32>().is_ok() && (self.newest || self.cgroup.is_some()) => {
                bail!("--newest and --cgroup choose among processes: leave them out, or PID {id}")
            }
            _ => Ok(()),
        }
    }
}

impl Target {
    /// Its id.
    pub fn pid(&self) -> anyhow::Result<i32> {
        self.choice.pid(self.process())
    }

    /// What all processes have in common that are meant.
    pub fn selector(&self) -> anyhow::Result<Selector> {
        self.choice.check(self.process())?;
        if let Some(id) = self.process().filter(|name| name.parse::<i32>().is_ok()) {
            bail!("--all is for the name of processes or --cgroup PATH, not for PID {id}");
        }
        let name = self.process().map(str::to_owned);
        Ok(Selector::new(name, self.choice.cgroup.clone()))
    }

    fn process(&self) -> Option<&str> {
        self.process.as_deref().or(self.pid.as_deref())
    }
}
