//! Tests a fork in a target whose userfaultfd reports forks: if no thread reads the report, the fork is abandoned and
//! the target continues.

mod common;

use std::time::{Duration, Instant};

use common::{LONG, Program, patiently, send};
use memhook_inject::{Error, ForkPlan, hold_all};
use memhook_process::{RemoteAddress, children, read_word};

#[test]
fn a_process_that_hears_of_forks_and_ignores_children_goes_on() {
    let mut program = Program::start("hears_forks", &[]);
    let at = program.addresses();
    let pid = program.pid();
    let rounds = || read_word(pid, RemoteAddress(at["rounds"])).unwrap();
    for _ in 0..5 {
        let plan = ForkPlan::of(pid).unwrap();
        let mut longest = Duration::ZERO;
        patiently(|| {
            let mut held = hold_all(pid)?;
            let begin = Instant::now();
            let forked = held.fork(&plan);
            longest = begin.elapsed();
            drop(held);
            match forked {
                Err(Error::NoFork { .. }) => Ok(()),
                Err(error) => Err(error),
                Ok(_) => panic!("it is forked"),
            }
        });
        // The deadlines of all steps together are 15 s.
        assert!(longest < Duration::from_secs(4), "{longest:?}");
        let before = rounds();
        let until = Instant::now() + LONG;
        while rounds() < before + 3 {
            assert!(Instant::now() < until, "it stands still");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(children(pid).is_empty());
    }
    send(pid, libc::SIGTERM);
    program.ends_well();
}
