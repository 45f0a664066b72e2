//! Commands that inspect, hold or trace a process, for architectures to which holding and tracing have not been ported.
//! Commands that can work by inspection alone have their own modules. Each of the others accepts any arguments, and
//! refuses with a one-line message.

mod advice;
pub mod advise;
pub mod audit;
mod copy_limits;
mod diagnosis;
pub mod doctor;
mod read_only;
pub mod rss;
pub mod scan;
pub mod signals;
pub mod watch;
mod watching;

use memhook_heap::{Candidates, Released, Request, Verdict};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of a command that is not available here.
#[derive(clap::Args)]
pub struct Words {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _words: Vec<OsString>,
}

macro_rules! refused {
    ($($command:ident)*) => { $(
        pub mod $command {
            pub use super::Words as Args;

            pub fn run(_: &Args) -> anyhow::Result<super::ExitCode> {
                super::refuse()
            }
        }
    )* };
}

refused! { agent attach demo detach emit mark probe run sdk stale top trim }

fn refuse() -> anyhow::Result<ExitCode> {
    Err(refusal())
}

/// Commands that work here.
const WORKING: &str = "scan, rss, advise and watch work here with --read-only, and all commands that read a recording";

fn refusal() -> anyhow::Error {
    anyhow::anyhow!(
        "live processes cannot be traced or changed on {} yet, only on x86-64; {WORKING}",
        std::env::consts::ARCH
    )
}

/// `advise`, without code that records a process or replays a run.
mod examined {
    use super::advice::Args;
    use memhook_advice::Advice;

    pub(super) fn advise(_: &Args, _: i32) -> anyhow::Result<(Advice, u8)> {
        Err(super::refusal())
    }

    pub(super) fn what_if(_: &Args) -> anyhow::Result<super::ExitCode> {
        super::refuse()
    }
}

/// `doctor`, without an attach that could be planned.
mod diagnosed {
    use super::diagnosis::Diagnosis;
    use memhook_probe::Allocator;
    use memhook_process::{Check, preflight_of_search};

    pub(super) fn of(pid: i32, _: &[Allocator], _: bool) -> anyhow::Result<Diagnosis> {
        Ok(Diagnosis {
            checks: preflight_of_search(pid)
                .into_iter()
                .chain(only_looked_at())
                .collect(),
            modules: Vec::new(),
            details: String::new(),
            commands: Vec::new(),
        })
    }

    /// Returns the reason why nothing can be traced.
    pub(super) fn only_looked_at() -> Option<Check> {
        Some(Check::bad(
            "processor",
            format!(
                "processes can only be looked at on {}, not traced",
                std::env::consts::ARCH
            ),
            super::WORKING,
        ))
    }
}

/// `watch`, without code that traces.
mod traced_watch {
    pub(super) fn run(_: &super::watching::Args) -> anyhow::Result<super::ExitCode> {
        super::refuse()
    }
}

/// `gate`, without code for processes. A recording can be judged on any processor.
pub mod gate {
    pub mod attached {
        use crate::gate::Args;

        pub fn run(_: &Args, _: i32) -> anyhow::Result<std::process::ExitCode> {
            crate::live::refuse()
        }
    }

    pub mod launched {
        use crate::gate::Args;

        pub fn run(_: &Args) -> anyhow::Result<std::process::ExitCode> {
            crate::live::refuse()
        }
    }
}

/// A process that releases its own blocks. There is none here.
enum Reclaiming {}

impl Reclaiming {
    const PAUSE: Duration = Duration::ZERO;

    fn begin(_: i32, _: Request, _: Option<Verdict>) -> anyhow::Result<Reclaiming> {
        Err(refusal())
    }

    fn is_alive(&mut self) -> bool {
        match *self {}
    }

    fn scan(&mut self) -> Result<Candidates, memhook_heap::Error> {
        match *self {}
    }

    fn release(&mut self, _: &Candidates) -> Released {
        match *self {}
    }
}

/// Does nothing, because there is nothing to wait for.
pub fn finish() {}
