//! Busy, ending, stopped and dying targets, loading an object, and shared memory.

mod common;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Program, anywhere, send};
use memhook_inject::{Dlopen, Error, HoldOptions, create_region, hold, load_object, write_bytes};
use memhook_process::{RemoteAddress, read_memory};

/// The loader's text and the allocator's part of libc: malloc.c is one object file of about 24 KiB,
/// so 16 KiB to either side of `malloc` cover its static functions.
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

/// Whether no word at the top of the stack leads into such code.
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

/// The offset of `answer` in the object, by nm.
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
        let mut held = hold(pid, &options).unwrap();
        create_region(&mut held, c"memhook-region", 1 << 20).unwrap();
        let base = load_object(&mut held, dlopen, &bytes).unwrap();
        // It is a different object each time, although the descriptor number is the same.
        assert_eq!(
            held.call(RemoteAddress(base + svma), &[100]).unwrap(),
            100 + number
        );
        held_for.push(held.release().unwrap());
        std::fs::remove_file(object).unwrap();
    }
    held_for.sort();
    println!(
        "held for {:?} (median), {:?} (longest)",
        held_for[5], held_for[9]
    );
    // Names are compared, because glibc opens a file for a moment when a thread first allocates.
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
    let mut held = hold(pid, &options).unwrap();
    let result = load_object(&mut held, dlopen, b"not an ELF file");
    assert!(
        matches!(result, Err(Error::LoadFailed { .. })),
        "{result:?}"
    );
    held.release().unwrap();
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
    let mut held = hold(pid, &anywhere()).unwrap();
    let region = create_region(&mut held, c"memhook-region", 1 << 30).unwrap();
    held.release().unwrap();
    write_bytes(pid, region.address + 5000, b"from outside").unwrap();
    let file = File::from(region.fd);
    let mut bytes = [0u8; 12];
    file.read_exact_at(&mut bytes, 5000).unwrap();
    assert_eq!(&bytes, b"from outside");
    file.write_all_at(b"through file", 5000).unwrap();
    read_memory(pid, region.address + 5000, &mut bytes).unwrap();
    assert_eq!(&bytes, b"through file");
    // It is sparse: untouched parts use no memory.
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
    let begin = Instant::now();
    let result = hold(program.pid(), &options);
    assert!(matches!(result, Err(Error::NoSafeThread { .. })));
    assert!(begin.elapsed() < Duration::from_secs(1));
    send(program.pid(), libc::SIGTERM);
    program.ends_well();
}

#[test]
fn a_killed_target_is_gone() {
    let mut program = Program::start("busy", &[]);
    let at = program.addresses();
    let pid = program.pid();
    let mut held = hold(pid, &anywhere()).unwrap();
    held.call(RemoteAddress(at["getpid"]), &[]).unwrap();
    send(pid, libc::SIGKILL);
    std::thread::sleep(Duration::from_millis(20));
    assert!(matches!(
        held.call(RemoteAddress(at["getpid"]), &[]),
        Err(Error::TargetGone { .. })
    ));
    assert!(matches!(held.release(), Err(Error::TargetGone { .. })));
    assert!(matches!(
        hold(pid, &anywhere()),
        Err(Error::TargetGone { .. })
    ));
}

#[test]
fn a_target_killed_during_a_call_is_gone() {
    let mut program = Program::start("busy", &[]);
    program.addresses();
    let pid = program.pid();
    let mut held = hold(pid, &anywhere()).unwrap();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        send(pid, libc::SIGKILL);
    });
    let begin = Instant::now();
    let result = held.syscall(libc::SYS_pause, [0; 6]);
    assert!(
        matches!(result, Err(Error::TargetGone { .. })),
        "{result:?}"
    );
    assert!(begin.elapsed() < Duration::from_secs(2));
    killer.join().unwrap();
}

#[test]
fn threads_that_end_while_chosen_are_passed_over() {
    let mut program = Program::start("busy", &["exits"]);
    let at = program.addresses();
    let pid = program.pid();
    let mut others = 0;
    for _ in 0..300 {
        let mut held = hold(pid, &anywhere()).unwrap();
        others += u32::from(held.tid() != pid);
        assert_eq!(
            held.call(RemoteAddress(at["getpid"]), &[]).unwrap(),
            pid as u64
        );
        held.release().unwrap();
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
    std::thread::sleep(Duration::from_millis(5));

    // A stop that arrives during remote work takes effect at the release.
    let mut held = hold(pid, &anywhere()).unwrap();
    send(pid, libc::SIGSTOP);
    assert_eq!(
        held.call(RemoteAddress(at["getpid"]), &[]).unwrap(),
        pid as u64
    );
    held.release().unwrap();
    let until = Instant::now() + Duration::from_secs(2);
    while common::state(pid, pid) != 'T' && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(common::state(pid, pid), 'T', "the stop was lost");
    send(pid, libc::SIGCONT);
    send(pid, libc::SIGTERM);
    program.ends_well();
}
