//! The commands that hold or trace a process, for processor architectures to which they are not
//! ported yet. Each command accepts any arguments and refuses with a one-line message.

use std::ffi::OsString;
use std::process::ExitCode;

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

refused! { advise agent attach demo detach doctor emit mark probe rss run scan sdk stale top trim watch }

fn refuse() -> anyhow::Result<ExitCode> {
    anyhow::bail!(
        "live processes cannot be traced or read on {} yet, only on x86-64; report, view, diff, symbols, symbolize, \
         and gate with a recording (FILE.mhk) work here",
        std::env::consts::ARCH
    )
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

/// Audit log without entries, because nothing here touches a process.
pub mod audit {
    /// Refuses, because there would be nothing to log.
    pub fn start(_: &std::path::Path) -> anyhow::Result<()> {
        super::refuse().map(drop)
    }

    /// Does nothing, because nothing has been logged.
    pub fn finish() {}
}

/// Replacement for the handling of signals. This process can end at any time, because it changes
/// nothing in another process.
pub mod signals {
    /// Does nothing, so that signals end this process.
    pub fn catch_stops() {}

    /// Returns false, because a signal would have ended the process.
    pub fn stop_requested() -> bool {
        false
    }
}

/// Does nothing, because there is nothing to wait for.
pub fn finish() {}
