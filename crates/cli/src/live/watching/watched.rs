//! State shared by the watches of all processes: the directory of reports, the criteria for scarce
//! memory, and the processes that the kernel has killed.

use super::Args;
use super::evidence::Evidence;
use crate::exit_code;
use crate::live::signals::NameWait;
use memhook_process::OomKill;
use memhook_report::KilledProcess;
use memhook_triggers::{Alarms, Condition, Crowd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All watched processes.
pub(in crate::live) struct Watched {
    crowd: Crowd,
    /// Conditions on each process.
    of_process: Vec<Condition>,
    directory: PathBuf,
    evidence: Mutex<Evidence>,
    code: AtomicU8,
    is_one_of_several: bool,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    /// Creates the directory of the reports. `several` is the number of processes in a group, or 0
    /// if a single process is watched.
    pub(in crate::live) fn new(args: &Args, several: usize) -> anyhow::Result<Arc<Watched>> {
        let (of_process, others) = args.conditions()?;
        let evidence = Evidence::new(&args.output, args.keep, args.exec.clone())?;
        Ok(Arc::new(Watched {
            crowd: Crowd::new(others),
            of_process,
            directory: evidence.directory().to_owned(),
            evidence: Mutex::new(evidence),
            code: AtomicU8::new(exit_code::DONE),
            is_one_of_several: several > 0,
        }))
    }

    /// Returns the shared state of all watched processes.
    pub(in crate::live) fn crowd(&self) -> &Crowd {
        &self.crowd
    }

    /// The alarms of a process.
    pub(in crate::live) fn own_alarms(&self, pid: i32) -> Alarms {
        Alarms::new(pid, self.of_process.iter().cloned())
    }

    pub(in crate::live) fn evidence(&self) -> MutexGuard<'_, Evidence> {
        locked(&self.evidence)
    }

    /// Returns the directory of the reports.
    pub(in crate::live) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the processes that the kernel has killed, among the watched processes and all other
    /// processes in this process's group.
    pub(in crate::live) fn killed(&self, pid: i32, group: Option<&Path>) -> Vec<KilledProcess> {
        let process = |kill: OomKill| KilledProcess {
            pid: kill.pid,
            name: kill.name,
        };
        let found = self.crowd.killed(pid, group);
        found.into_iter().map(process).collect()
    }

    /// Begins to wait for names when the watch of a process ends.
    pub(in crate::live) fn name_wait(&self) -> NameWait {
        match self.is_one_of_several {
            true => NameWait::begin_beside_others(),
            false => NameWait::begin(),
        }
    }

    /// Records that the trace of a process has ended, with this exit code.
    pub(in crate::live) fn ends(&self, pid: i32, code: u8) {
        self.code.fetch_max(code, Relaxed);
        self.crowd.ends(pid);
    }

    /// Waits until all reports are written, and returns the exit code.
    pub(in crate::live) fn finish(&self) -> u8 {
        let is_written = self.evidence().finish();
        let code = self.code.load(Relaxed);
        match is_written {
            true => code,
            false => code.max(exit_code::BAD_INPUT),
        }
    }
}
