//! Compares the compiled unwind tables with gimli's own interpretation of the original call frame
//! information, at arbitrary points of third-party programs.
//!
//! `MEMHOOK_STACKS=3000 cargo test -p memhook-tests --test end_to_end unwinding` compares this
//! number of stacks in each program.

use super::stack_reference::{Busy, DEPTH, Modules, count, share};
use memhook_inject::{HoldOptions, hold};
use memhook_tests::build_target;
use memhook_unwind::reference::End;
use memhook_unwind::walk;
use std::time::{Duration, Instant};

struct Sample {
    registers: [u64; 3],
    all: [Option<u64>; 17],
    /// Part of the stack from rsp on, up to a limit.
    stack: Vec<u8>,
}

impl Sample {
    fn read(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.registers[1])?).ok()?;
        let bytes = self.stack.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

fn sample(pid: i32) -> Sample {
    let mut found = None;
    memhook_tests::until("a thread is held for long enough", || {
        found = try_to_sample(pid);
        found.is_some()
    });
    found.expect("a sample")
}

/// Takes a sample. Returns `None` if this process got no processor, or if the thread was resumed
/// while this process was suspended.
fn try_to_sample(pid: i32) -> Option<Sample> {
    let options = HoldOptions::anywhere(Duration::from_secs(5));
    let begin = Instant::now();
    let held = match hold(pid, &options) {
        Err(memhook_inject::Error::Starved { .. }) => return None,
        held => held.expect("a thread stops"),
    };
    let r = *held.registers();
    let maps = memhook_process::mappings(pid).expect("maps");
    let end = maps
        .iter()
        .find(|m| r.rsp >= m.start && r.rsp < m.end)
        .map_or(r.rsp, |m| m.end);
    let mut stack = vec![0; (end - r.rsp).min(1 << 20) as usize];
    let top = memhook_process::RemoteAddress(r.rsp);
    memhook_process::read_memory(pid, top, &mut stack).expect("the stack is readable");
    let stands_still = memhook_process::thread_state(pid, held.tid()) == Some('t');
    let released = held.release();
    if !stands_still {
        println!("let go after {:?}: {released:?}", begin.elapsed());
        return None;
    }
    released.expect("released");
    // The registers are in the order of their DWARF numbers (x86-64 psABI, figure 3.36).
    let all = [
        r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15, r.rip,
    ];
    Some(Sample {
        registers: [r.rip, r.rsp, r.rbp],
        all: all.map(Some),
        stack,
    })
}

/// Compares `samples` backtraces, and returns the number of their frames.
fn compare(program: &str, busy: &Busy, samples: usize) -> usize {
    let pid = busy.pid();
    let modules = Modules::of(pid);
    let mut frames = 0;
    let mut cut = 0u64;
    for _ in 0..samples {
        let sample = sample(pid);
        let read = |address| sample.read(address);
        let [pc, sp, rbp] = sample.registers;
        let (found, complete) = walk(&modules.tables, (pc, sp, rbp), &read, DEPTH);
        let expected = modules.reference.backtrace(sample.all, &read, DEPTH);
        let names = |frames: &[u64]| modules.names(frames);
        if found.len() < expected.frames.len() {
            // A rule that does not fit into one word ends a table's backtrace. The frames before it
            // must agree.
            cut += 1;
            assert_eq!(found, expected.frames[..found.len()]);
            continue;
        }
        assert_eq!(
            found,
            expected.frames,
            "{program} at\n{}\nby gimli\n{}",
            names(&found),
            names(&expected.frames)
        );
        assert!(complete || expected.end != End::Bottom, "{}", names(&found));
        frames += found.len();
        // Spreads the samples over the program's activities.
        std::thread::sleep(Duration::from_micros(300));
    }
    let share = share(program, samples as u64, cut);
    println!("{share}");
    assert!(cut * 1000 <= samples as u64, "{share}");
    frames
}

/// Compares the requested number of stacks. There must be enough frames for a meaningful result.
fn check(program: &str, busy: &Busy, usual: usize) {
    let samples = count(usual);
    let frames = compare(program, busy, samples);
    assert!(frames > 3 * samples, "{program}: only {frames} frames");
}

#[test]
fn tables_agree_with_gimli_in_python() {
    check("python3", &Busy::python(), 1500);
}

#[test]
fn tables_agree_with_gimli_in_sqlite() {
    check("sqlite3", &Busy::sqlite(), 1500);
}

#[test]
fn tables_agree_with_gimli_in_redis_under_load() {
    check("redis-server", &Busy::redis(), 600);
}

#[test]
fn tables_agree_with_gimli_in_nginx_under_load() {
    check("nginx", &Busy::nginx(), 600);
}

#[test]
fn tables_agree_with_gimli_through_templates_and_exceptions() {
    let program = build_target("templates", &["-fomit-frame-pointer"]);
    let program = program.to_str().expect("UTF-8");
    check("templates", &Busy::start(program, &[]), 1000);
}

#[test]
fn tables_agree_with_gimli_in_the_compiler() {
    check("cc1plus", &Busy::compiler(), 800);
}

/// Traces a program until this number of allocations is recorded. The hook unwinds each remembered
/// backtrace again and compares it. A wrong backtrace leads to exit code 3.
fn remembered(program: &str, busy: &Busy, options: &[&str]) {
    let wanted = count(10_000) as u64;
    let mut args = vec!["attach", "--json", "-i", "1h", "--check-memo", "-d", "1s"];
    args.extend(["--on-full", "wait"]);
    args.extend(options);
    let pid = busy.pid().to_string();
    args.push(&pid);
    let (mut stacks, mut cut) = (0, 0);
    // A busy machine may not schedule the program within one second.
    for _ in 0..60 {
        let (code, output, errors) = memhook_tests::run(&args);
        assert_eq!(code, 0, "{program}: {errors}");
        let last = output.lines().last().expect("a report");
        let report: serde_json::Value = serde_json::from_str(last).expect("JSON");
        let total = |name: &str| report["totals"][name].as_u64().expect("a number");
        stacks += total("allocations");
        cut += total("truncated_stacks");
        if stacks >= wanted {
            break;
        }
    }
    let share = share(program, stacks, cut);
    println!("{share}");
    assert!(stacks >= wanted && cut * 1000 <= stacks, "{share}");
}

#[test]
fn remembered_backtraces_are_right_in_real_programs() {
    memhook_tests::patiently(|| {
        for (name, start) in [
            ("redis-server", Busy::redis as fn() -> Busy),
            ("nginx", Busy::nginx),
            ("sqlite3", Busy::sqlite),
            ("python3", Busy::python),
            ("cc1plus", Busy::compiler),
        ] {
            remembered(name, &start(), &[]);
        }
    });
}

#[test]
fn remembered_backtraces_along_frame_pointers_are_right() {
    memhook_tests::patiently(|| {
        // Checks programs with and without frame pointers. Without frame pointers, most saved
        // values of rbp do not point to a frame.
        for flag in ["-fno-omit-frame-pointer", "-fomit-frame-pointer"] {
            let program = build_target("templates", &[flag]);
            let busy = Busy::start(program.to_str().expect("UTF-8"), &[]);
            remembered("templates", &busy, &["--set", "unwind=fp"]);
        }
    });
}
