//! The targets of a storm: what they do all day.

use clap::ValueEnum;
use memhook_tests::{Target, build_target};

/// A kind of target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Threads that allocate without pause and check every block
    Hammer,
    /// One thread that waits for input
    Idle,
    /// Stopped by SIGSTOP
    Stopped,
    /// Forks without pause
    Forking,
    /// A timer whose handler allocates
    Signals,
    /// Vector registers and control words that are looked at all the time
    Registers,
    /// Ends at a random moment of the attach
    Dying,
}

impl Kind {
    /// Starts one.
    pub fn start(self) -> Target {
        let (name, args): (_, &[&str]) = match self {
            Kind::Hammer | Kind::Dying => ("hammer", &[]),
            Kind::Idle | Kind::Stopped => ("before_attach", &[]),
            Kind::Forking => ("forking", &[]),
            Kind::Signals => ("ticking", &["endless"]),
            Kind::Registers => ("canary", &[]),
        };
        let target = Target::start(&build_target(name, &[]), args);
        if self == Kind::Stopped {
            target.signal(libc::SIGSTOP);
            memhook_tests::until("it stops", || target.status("State").starts_with('T'));
        }
        target
    }

    /// Ends it; `Err` tells what its self-check found.
    pub fn end(self, mut target: Target) -> Result<(), String> {
        match self {
            Kind::Stopped => target.signal(libc::SIGCONT),
            Kind::Dying => return Ok(()),
            _ => {}
        }
        if matches!(self, Kind::Idle | Kind::Stopped) {
            target.go();
            target.expect("done");
        }
        let status = target.finish();
        if status.success() {
            Ok(())
        } else {
            Err(format!("its self-check: {status}"))
        }
    }
}
