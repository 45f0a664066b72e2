//! Tests with busy, exiting, stopped and dying targets, and tests of object loading and shared memory.

mod common;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{LONG, Program, anywhere, is_for_want_of_a_processor, patiently, send, with_held};
use memhook_inject::{Dlopen, Error, HoldOptions, create_region, hold, load_object, write_bytes};
use memhook_process::{RemoteAddress, read_memory};

/// Returns the loader's text and the allocator's part of libc: malloc.c is one object file of about 24 KiB, so 16 KiB
/// on either side of `malloc` cover its static functions.
fn locked_code(pid: i32, at: &std::collections::HashMap<String, u64>) -> Vec<Range<u64>> {
    let maps = memhook_process::mappings(pid).unwrap();
    let mut ranges: Vec<Range<u64>> = maps
        .iter()
        .filter(|m| m.exec && m.path.contains("/ld-"))
        .map(|m| m.start..m.end)
        .collect();
    assert!(!ranges.is_empty());
    ranges.push(at["malloc"] - 0x4000..at["malloc"] + 0x4000);
    ranges
}

/// Returns true if no word at the top of the stack points into the loader or the allocator.
fn is_outside(
    ranges: &[Range<u64>],
    registers: &memhook_inject::Registers,
    read: &dyn Fn(u64) -> Option<u64>,
) -> Result<(), String> {
    let words = (0..2048).map_while(|i| read((registers.rsp & !7) + i * 8));
    let is_inside = |word: u64| ranges.iter().any(|range| range.contains(&word));
    match words.chain([registers.rip]).any(is_inside) {
        true => Err("may hold a lock".to_owned()),
        false => Ok(()),
    }
}

/// Returns the offset of `answer` in the object, by nm.
fn answer_svma(object: &std::path::Path) -> u64 {
    let output = Command::new("nm").arg(object).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.ends_with(" answer")).unwrap();
    u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
}

#[test]
fn objects_load_into_a_target_that_allocates_all_the_time() {
    let mut program = Program::start("busy", &[]);
    let at = program.addresses();
    let pid = program.pid();
    let dlopen = Dlopen {
        address: RemoteAddress(at["dlopen"]),
        internal_mode: false,
    };
    let mut held_for = Vec::new();
    let ranges = locked_code(pid, &at);
    let judge = |registers: &memhook_inject::Registers, read: &dyn Fn(u64) -> Option<u64>| {
        is_outside(&ranges, registers, read)
    };
    for number in 0..10u64 {
        let object = common::build(
            "object",
            &[
                "-shared",
                "-fPIC",
                "-nostdlib",
                &format!("-DNUMBER={number}"),
            ],
        );
        let bytes = std::fs::read(&object).unwrap();
        let svma = answer_svma(&object);
        let options = HoldOptions {
            judge: Some(&judge),
            ..anywhere()
        };
        held_for.push(patiently(|| {
            let mut held = hold(pid, &options)?;
            create_region(&mut held, c"memhook-region", 1 << 20)?;
            let base = load_object(&mut held, dlopen, &bytes)?;
            // This is a different object each time, although the descriptor has the same number.
            let answer = held.call(RemoteAddress(base + svma), &[100])?;
            assert_eq!(answer, 100 + number);
            held.release()
        }));
        std::fs::remove_file(object).unwrap();
    }
    held_for.sort();
    println!(
        "held for {:?} (median), {:?} (longest)",
        held_for[5], held_for[9]
    );
    // The test compares names, because glibc briefly opens a file when a thread first allocates.
    for fd in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let target = std::fs::read_link(fd.unwrap().path()).unwrap_or_default();
        assert!(!target.to_string_lossy().contains("memhook"), "{target:?}");
    }
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    assert!(maps.contains("/memfd:memhook-hook"));
    send(pid, libc::SIGTERM);
    program.ends_well();
}

#[test]
fn a_bad_object_is_refused_and_nothing_stays() {
    let mut program = Program::start("busy", &[]);
    let at = program.addresses();
    let pid = program.pid();
    let dlopen = Dlopen {
        address: RemoteAddress(at["dlopen"]),
        internal_mode: false,
    };
    let ranges = locked_code(pid, &at);
    let judge = |registers: &memhook_inject::Registers, read: &dyn Fn(u64) -> Option<u64>| {
        is_outside(&ranges, registers, read)
    };
    let options = HoldOptions {
        judge: Some(&judge),
        ..anywhere()
    };
    with_held(pid, &options, |held| {
        match load_object(held, dlopen, b"not an ELF file") {
            Err(Error::LoadFailed { .. }) => Ok(()),
            other => panic!("{:?}", other?),
        }
    });
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    assert!(!maps.contains("memfd:memhook"));
    send(pid, libc::SIGTERM);
    program.ends_well();
}

#[test]
fn a_region_is_shared() {
    let mut program = Program::start("busy", &[]);
    program.addresses();
    let pid = program.pid();
    let region = with_held(pid, &anywhere(), |held| {
        create_region(held, c"memhook-region", 1 << 30)
    });
    write_bytes(pid, region.address + 5000, b"from outside").unwrap();
    let file = File::from(region.fd);
    let mut bytes = [0u8; 12];
    file.read_exact_at(&mut bytes, 5000).unwrap();
    assert_eq!(&bytes, b"from outside");
    file.write_all_at(b"through file", 5000).unwrap();
    read_memory(pid, region.address + 5000, &mut bytes).unwrap();
    assert_eq!(&bytes, b"through file");
    // The region is sparse: untouched parts use no memory.
    use std::os::unix::fs::MetadataExt;
    assert!(file.metadata().unwrap().blocks() * 512 < 1 << 20);
    assert!(matches!(
        write_bytes(pid, RemoteAddress(0x10), &bytes),
        Err(Error::Memory {
            address: RemoteAddress(0x10),
            ..
        })
    ));
}

#[test]
fn the_error_at_the_deadline_says_that_no_thread_is_safe() {
    let mut program = Program::start("busy", &[]);
    program.addresses();
    let options = HoldOptions {
        judge: Some(&|_, _| Err("is never at one".to_owned())),
        thread: None,
        deadline: Duration::from_millis(100),
    };
    let says = |error| match error {
        Error::NoSafeThread { .. } => Ok(()),
        error => Err(error),
    };
    patiently(|| hold(program.pid(), &options).map(drop).or_else(says));
    send(program.pid(), libc::SIGTERM);
    program.ends_well();
}

#[test]
fn a_killed_target_is_gone() {
    let mut program = Program::start("busy", &[]);
    let at = program.addresses();
    let pid = program.pid();
    let mut held = patiently(|| {
        let mut held = hold(pid, &anywhere())?;
        held.call(RemoteAddress(at["getpid"]), &[])?;
        Ok(held)
    });
    send(pid, libc::SIGKILL);
    let until = Instant::now() + LONG;
    while common::state(pid, pid) != 'Z' && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The thread may also have been released just before.
    let is_gone = |error: &Error| {
        matches!(error, Error::TargetGone { .. }) || is_for_want_of_a_processor(error)
    };
    let called = held.call(RemoteAddress(at["getpid"]), &[]);
    assert!(called.as_ref().is_err_and(is_gone), "{called:?}");
    let released = held.release();
    assert!(released.as_ref().is_err_and(is_gone), "{released:?}");
    let says = |error| match error {
        Error::TargetGone { .. } => Ok(()),
        error => Err(error),
    };
    patiently(|| match hold(pid, &anywhere()) {
        Ok(_) => panic!("it is held"),
        Err(error) => says(error),
    });
}

#[test]
fn a_target_killed_during_a_call_is_gone() {
    let until = Instant::now() + LONG;
    // The killer may be scheduled too late.
    while !is_killed_during_a_call() {
        assert!(Instant::now() < until, "the call ends too early");
    }
}

/// Returns true if the target was killed before the call ended for another reason.
fn is_killed_during_a_call() -> bool {
    let mut program = Program::start("busy", &[]);
    program.addresses();
    let pid = program.pid();
    let mut held = patiently(|| hold(pid, &anywhere()));
    let (kill, is_killed) = std::sync::mpsc::channel();
    let killer = std::thread::spawn(move || {
        // The call has already begun, or begins with a thread that no longer exists.
        std::thread::sleep(Duration::from_millis(50));
        send(pid, libc::SIGKILL);
        kill.send(()).unwrap();
    });
    let result = held.syscall(libc::SYS_pause, [0; 6]);
    let is_in_time = is_killed.try_recv().is_ok();
    killer.join().unwrap();
    match result {
        Err(Error::TargetGone { .. }) => true,
        Err(error) if is_for_want_of_a_processor(&error) || !is_in_time => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn threads_that_end_while_chosen_are_passed_over() {
    let mut program = Program::start("busy", &["exits"]);
    let at = program.addresses();
    let pid = program.pid();
    let mut others = 0;
    for _ in 0..300 {
        with_held(pid, &anywhere(), |held| {
            others += u32::from(held.tid() != pid);
            let own = held.call(RemoteAddress(at["getpid"]), &[])?;
            assert_eq!(own, pid as u64);
            Ok(())
        });
    }
    assert!(others > 30, "only {others} holds of short-lived threads");
    send(pid, libc::SIGTERM);
    program.ends_well();
}

#[test]
fn a_stopped_target_is_refused_and_stays_stopped() {
    let mut program = Program::start("busy", &[]);
    let at = program.addresses();
    let pid = program.pid();
    send(pid, libc::SIGSTOP);
    while common::state(pid, pid) != 'T' {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(
        hold(pid, &anywhere()),
        Err(Error::TargetStopped { .. })
    ));
    assert_eq!(common::state(pid, pid), 'T');
    send(pid, libc::SIGCONT);
    let until = Instant::now() + LONG;
    while common::state(pid, pid) == 'T' && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }

    // A stop signal that arrives during remote work takes effect at the release.
    let mut held = patiently(|| hold(pid, &anywhere()));
    send(pid, libc::SIGSTOP);
    // If this thread got no processor time, the stop takes effect earlier.
    let called = held.call(RemoteAddress(at["getpid"]), &[]);
    assert!(
        matches!(called, Ok(own) if own == pid as u64)
            || called.as_ref().is_err_and(is_for_want_of_a_processor),
        "{called:?}"
    );
    let released = held.release();
    assert!(
        released.is_ok() || released.as_ref().is_err_and(is_for_want_of_a_processor),
        "{released:?}"
    );
    let until = Instant::now() + LONG;
    while common::state(pid, pid) != 'T' && Instant::now() < until {
        memhook_inject::let_late_threads_go();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(common::state(pid, pid), 'T', "the stop was lost");
    send(pid, libc::SIGCONT);
    send(pid, libc::SIGTERM);
    program.ends_well();
}
