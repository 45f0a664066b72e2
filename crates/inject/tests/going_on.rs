//! Tests a call that must not be abandoned, because it holds a lock while it waits for another.

mod common;

use common::{LONG, Program, patiently, with_held};
use memhook_inject::{Error, HoldOptions, hold, write_bytes};
use memhook_process::{RemoteAddress, read_memory};
use std::collections::HashMap;
use std::time::{Duration, Instant};

fn number(pid: i32, at: u64) -> u32 {
    let mut bytes = [0; 4];
    read_memory(pid, RemoteAddress(at), &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn started() -> (Program, HashMap<String, u64>) {
    let mut program = Program::start("enters", &[]);
    let at = program.addresses();
    (program, at)
}

/// Options for the initial thread, because the other thread keeps a lock.
fn options(pid: i32) -> HoldOptions<'static> {
    HoldOptions {
        thread: Some(pid),
        ..common::anywhere()
    }
}

#[test]
fn a_call_that_takes_too_long_is_finished_by_its_thread() {
    // Each attempt uses a new program, because a call that waits cannot be repeated.
    patiently(a_call_is_finished_by_its_thread);
}

fn a_call_is_finished_by_its_thread() -> Result<(), Error> {
    let (program, at) = started();
    let pid = program.pid();
    let mut held = hold(pid, &options(pid))?;
    let patience = Duration::from_millis(300);
    let mut data = [0; 8];
    let called = held.call_to_its_end(RemoteAddress(at["enter"]), &mut data, patience, |_| vec![7]);
    match called {
        Err(Error::CallGoesOn { waited, .. }) => assert!(waited >= patience),
        other => panic!("{:?}", other?),
    }
    held.release()?;
    assert_eq!(
        (number(pid, at["entered"]), number(pid, at["left"])),
        (1, 0)
    );
    let rounds = number(pid, at["rounds"]);
    // No progress is possible meanwhile.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(number(pid, at["rounds"]), rounds, "it is in the call");
    write_bytes(pid, RemoteAddress(at["is_open"]), &1u32.to_le_bytes()).unwrap();
    wait_until("it finishes the call", || number(pid, at["left"]) == 1);
    wait_until("it goes on with its work", || {
        number(pid, at["rounds"]) > rounds + 5
    });
    // Everything that was created for the call is gone, and the thread can be held again.
    let again = with_held(pid, &options(pid), |held| {
        held.call_to_its_end(RemoteAddress(at["enter"]), &mut data, LONG, |_| vec![9])
    });
    assert_eq!(again, 9);
    let maps = memhook_process::mappings(pid).unwrap();
    assert!(
        !maps.iter().any(|m| m.exec && m.path.is_empty()),
        "{maps:#?}"
    );
    common::send(pid, libc::SIGTERM);
    program.ends_well();
    Ok(())
}

#[test]
fn a_call_that_returns_hands_its_data_back() {
    let (program, at) = started();
    let pid = program.pid();
    write_bytes(pid, RemoteAddress(at["is_open"]), &1u32.to_le_bytes()).unwrap();
    let mut data = *b"unchanged";
    let called = with_held(pid, &options(pid), |held| {
        held.call_to_its_end(RemoteAddress(at["enter"]), &mut data, LONG, |at| vec![at.0])
    });
    assert_ne!(called, 0);
    assert_eq!(&data, b"unchanged");
    common::send(pid, libc::SIGTERM);
    program.ends_well();
}
