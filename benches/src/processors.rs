//! Divides the processors: the target runs on the last processor, the attacher and the load
//! generator on the first.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::{path::Path, process::Command};

/// Processor lists in the format of `taskset -c`.
pub struct Placement {
    /// Processor of the target.
    pub target: String,
    /// Processor of the attacher, the load generator and the benchmark itself.
    pub rest: String,
    /// Both processors, for targets with several threads.
    pub all: String,
    /// Program and arguments through which targets are started; usually empty.
    pub wrapper: Vec<String>,
    /// Fraction of a round's usual work that programs do. Less than 1 for comparisons with slow
    /// tools.
    pub share: f64,
}

impl Placement {
    /// Scales a round's usual amount of work by `share`.
    pub fn part(&self, usual: u32) -> u32 {
        let share = if crate::is_test() { 0.02 } else { self.share };
        (f64::from(usual) * share) as u32
    }

    /// Returns a command that starts a program on the target's processor. Each wrapper executes the
    /// next program in its own process, so only one process remains.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("taskset");
        command.args(["-c", &self.target]).args(&self.wrapper);
        command.arg(program);
        command
    }
}

/// Divides the processors that this process may use. If only one processor is available, everything
/// shares it.
pub fn placement() -> Placement {
    let set = sched_getaffinity(Pid::from_raw(1)).or_else(|_| sched_getaffinity(Pid::from_raw(0)));
    let set = set.unwrap_or_default();
    let usable: Vec<usize> = (0..CpuSet::count())
        .filter(|&cpu| set.is_set(cpu).unwrap_or(false))
        .collect();
    let (first, last) = (
        usable.first().copied().unwrap_or(0),
        usable.last().copied().unwrap_or(0),
    );
    Placement {
        target: last.to_string(),
        rest: first.to_string(),
        all: format!("{first},{last}"),
        wrapper: Vec::new(),
        share: 1.0,
    }
}

/// Binds the calling thread, and all threads and processes that it starts later, to one processor
/// of a [`Placement`].
pub fn bind_to(processor: &str) {
    let mut set = CpuSet::new();
    let one = processor.parse().ok().and_then(|cpu| set.set(cpu).ok());
    if one.is_none() || sched_setaffinity(Pid::from_raw(0), &set).is_err() {
        eprintln!("cannot bind to processor {processor}: figures will vary more");
    }
}
