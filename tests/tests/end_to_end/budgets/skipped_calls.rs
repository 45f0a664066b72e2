//! Instruction counts of skipped calls, which do not depend on the load of the machine.

use memhook_tests::{Attacher, Target, build_target};
use std::collections::BTreeMap;

/// Number of single steps, which is enough for several hundred calls.
const STEPS: u32 = 60_000;

/// Returns, for each function of the hook that the program calls, the median number of instructions
/// executed in the hook, in ascending order.
fn instructions(options: &[&str]) -> Vec<u32> {
    let mut target = Target::start(&build_target("slots", &["-O2"]), &[]);
    let attacher = Attacher::start(&target, options);
    target.go();
    target.expect("warm");
    let maps = target.maps();
    let mut code = maps
        .lines()
        .filter(|line| line.contains(" r-xp ") && line.contains("memhook"));
    let range = code.next().and_then(|line| line.split(' ').next());
    let (start, end) = range.and_then(|r| r.split_once('-')).expect("a range");
    let number = |text| u64::from_str_radix(text, 16).expect("a number");
    let (start, end) = (number(start), number(end));
    assert!(code.next().is_none(), "the hook has one mapping: {maps}");

    let mut calls: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    let mut entry = None;
    for at in steps(target.pid() as i32) {
        let is_in_hook = (start..end).contains(&at);
        if is_in_hook && entry.is_none() {
            calls.entry(at).or_default().push(0);
        }
        entry = is_in_hook.then(|| entry.unwrap_or(at));
        if let Some(count) = entry.and_then(|entry| calls.get_mut(&entry)?.last_mut()) {
            *count += 1;
        }
    }
    // Only detaches, because the test needs no report.
    target.signal(libc::SIGUSR1);
    target.expect("done");
    attacher.finish();
    assert!(target.finish().success());

    // The first step may be in the middle of a call, and a recorded call returns to the hook.
    let mut medians: Vec<u32> = calls
        .into_values()
        .filter(|counts| counts.len() > 100)
        .map(|mut counts| {
            counts.sort_unstable();
            counts[counts.len() / 2]
        })
        .collect();
    medians.sort_unstable();
    medians
}

/// Returns the addresses of the next instructions of a process.
fn steps(pid: i32) -> Vec<u64> {
    let wait = || {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let waited = unsafe { libc::waitpid(pid, &mut status, libc::__WALL) };
        assert!(waited == pid && libc::WIFSTOPPED(status), "{status:#x}");
    };
    // SAFETY: these requests take plain numbers; the process is our child.
    let is_seized = unsafe {
        libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) == 0
            && libc::ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0) == 0
    };
    assert!(is_seized, "{}", std::io::Error::last_os_error());
    wait();
    let step = |_| {
        // SAFETY: a structure of numbers.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: the process is stopped, and this request writes to `registers`.
        let is_stepped = unsafe {
            libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut registers) == 0
                && libc::ptrace(libc::PTRACE_SINGLESTEP, pid, 0, 0) == 0
        };
        assert!(is_stepped, "{}", std::io::Error::last_os_error());
        wait();
        registers.rip
    };
    let addresses = (0..STEPS).map(step).collect();
    // SAFETY: as above.
    let is_let_go = unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0) };
    assert_eq!(is_let_go, 0);
    addresses
}

/// Checks skipped calls in a program all of whose pages have had recorded blocks.
#[test]
fn calls_that_are_skipped_take_few_instructions() {
    let check = |options: &[&str], most: [u32; 2]| {
        let medians = instructions(options);
        println!("{options:?}: {medians:?}");
        let is_less = medians
            .iter()
            .zip(most)
            .all(|(&median, most)| median <= most);
        assert!(medians.len() == 2 && is_less, "{options:?}: {medians:?}");
    };
    check(&["--sample", "512K"], [10, 26]);
    check(&["--size", "1G.."], [4, 10]);
}
