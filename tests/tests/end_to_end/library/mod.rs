//! The library `memhook` as other projects use it: with their own profilers in this process, on
//! real programs.

mod endings;
mod events;
mod examples;
mod stream;

use memhook::{Attached, Options, Profiler};
use memhook_tests::{Target, build_target};

/// Attaches to a program, and lets it make its allocations.
fn traced<P: Profiler>(program: &str, args: &[&str], profiler: P) -> (Target, Attached<P>) {
    let mut target = Target::start(&build_target(program, &["-O1", "-g"]), args);
    let attached = memhook::attach(target.pid() as i32, &Options::new(), profiler);
    let attached = attached.unwrap_or_else(|error| panic!("{program}: {error}"));
    target.go();
    target.expect("done");
    (target, attached)
}

/// Returns the output of an examination that the machine supports; `None` if it has no watchpoints,
/// and the test must not run.
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
