//! The limit of a hold also limits the stop.

mod common;

use std::time::Duration;

use common::{Program, patiently};
use memhook_inject::{hold_all_within, write_bytes};
use memhook_process::{RemoteAddress, read_word};

/// Longest pause of a short hold. A longer pause suggests that threads were stopped until another thread's sleep ended.
const SHORT_NS: u64 = 200_000_000;
/// Minimum number by which short holds exceed long ones.
const CLEARLY: i32 = 8;

/// The thread that a hold waits for sleeps for 0.7 s at a time.
#[test]
fn nobody_waits_for_a_thread_that_sleeps_uninterruptibly() {
    let mut program = Program::start("vfork_loop", &[]);
    let longest = RemoteAddress(program.addresses()["longest"]);
    let pid = program.pid();
    let (mut in_vain, mut lead) = (0, 0);
    let mut all = Vec::new();
    while lead < CLEARLY {
        // A busy machine may sometimes delay our release or the other threads' measurements, but not in most rounds.
        assert!(all.len() < 100, "others stood still for {all:?} ns");
        write_bytes(pid, longest, &0u64.to_le_bytes()).expect("it lives");
        let limit = Some(Duration::from_millis(10));
        let held = patiently(|| hold_all_within(pid, limit));
        in_vain += held.in_vain().holds;
        assert_eq!(held.threads().count(), 4);
        held.release();
        // Meanwhile, the program keeps working and records its longest pause.
        std::thread::sleep(Duration::from_millis(20));
        let longest = read_word(pid, longest).expect("it lives");
        lead += if longest < SHORT_NS { 1 } else { -1 };
        all.push(longest);
    }
    println!("others stood still for {all:?} ns; {in_vain} holds were given up");
}
