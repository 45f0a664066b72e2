//! The library `memhook`, used as a third-party project would use it: with custom profilers in this
//! process, on real programs.

mod endings;
mod events;
mod examples;
mod stream;

use memhook::{Attached, Options, Profiler};
use memhook_tests::{Target, build_target};

/// Attaches to a program, and makes it allocate.
fn traced<P: Profiler>(program: &str, args: &[&str], profiler: P) -> (Target, Attached<P>) {
    let mut target = Target::start(&build_target(program, &["-O1", "-g"]), args);
    let attached = memhook::attach(target.pid() as i32, &Options::new(), profiler);
    let attached = attached.unwrap_or_else(|error| panic!("{program}: {error}"));
    target.go();
    target.expect("done");
    (target, attached)
}

/// Returns the output of an examination. Returns `None` if the machine has no watchpoints, in which
/// case the test cannot run.
fn looked(look: impl FnOnce(&mut Vec<u8>) -> Result<(), memhook::Error>) -> Option<String> {
    let mut out = Vec::new();
    match look(&mut out) {
        Ok(()) => Some(String::from_utf8(out).expect("text")),
        Err(memhook::Error::NoWatchpoints { why, .. }) => {
            memhook_tests::not_run(&why);
            None
        }
        Err(error) => panic!("{error}"),
    }
}
