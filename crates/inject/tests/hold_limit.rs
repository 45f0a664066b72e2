//! The limit of a hold is that of the stop, too.

mod common;

use std::time::Duration;

use common::Program;
use memhook_inject::hold_all_within;
use memhook_process::{RemoteAddress, read_word};

/// The thread that a hold has to wait for sleeps for .7 s at a time.
#[test]
fn nobody_waits_for_a_thread_that_sleeps_uninterruptibly() {
    let mut program = Program::start("vfork_loop", &[]);
    let longest = RemoteAddress(program.addresses()["longest"]);
    let pid = program.pid();
    let mut in_vain = 0;
    for _ in 0..6 {
        let held =
            hold_all_within(pid, Some(Duration::from_millis(10))).expect("all are held in the end");
        in_vain += held.in_vain().holds;
        assert_eq!(held.threads().count(), 4);
        held.release();
        std::thread::sleep(Duration::from_millis(20));
    }
    let longest = read_word(pid, longest).expect("it lives");
    println!("the longest hold: {longest} ns; {in_vain} holds were given up");
    // A busy machine may keep us from letting go for a while.
    assert!(longest < 350_000_000, "others stood still for {longest} ns");
}
