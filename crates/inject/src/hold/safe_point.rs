//! Decides whether a stopped thread may run a foreign call.

use crate::{Registers, ptrace};
use std::ops::Range;

use memhook_process::{RemoteAddress, read_word};

/// Check of a stopped thread, given the thread's registers and a reader of 8-byte words of its memory. It returns `Err`
/// with the reason if the thread must not be used where it is stopped.
pub type Judge<'a> = &'a dyn Fn(&Registers, &dyn Fn(u64) -> Option<u64>) -> Result<(), String>;

/// Returns `Err` with the reason if the thread must not be used at all. If the thread is inside a restartable sequence,
/// moving its program counter out of the sequence and back would hide the interruption from the kernel.
pub(crate) fn check_sequence(pid: i32, tid: i32, registers: &Registers) -> Result<(), String> {
    match rseq_section(pid, tid) {
        Some(section) if section.contains(&registers.rip) => Err(format!(
            "thread {tid} is in a restartable sequence at {:#x}",
            registers.rip
        )),
        _ => Ok(()),
    }
}

/// Returns `Err` with the reason if the thread's current location is not suitable.
pub(crate) fn check(
    pid: i32,
    tid: i32,
    registers: &Registers,
    judge: Judge<'_>,
) -> Result<(), String> {
    let read = |address| read_word(pid, RemoteAddress(address));
    judge(registers, &read).map_err(|why| format!("thread {tid} {why}"))
}

/// Returns the code range of the restartable sequence that the thread has announced (rseq(2)).
fn rseq_section(pid: i32, tid: i32) -> Option<Range<u64>> {
    let area = ptrace::rseq_address(tid);
    if area == 0 {
        return None;
    }
    // struct rseq: u32 cpu_id_start, cpu_id; u64 rseq_cs at 8.
    let section = read_word(pid, RemoteAddress(area) + 8).filter(|&section| section != 0)?;
    // struct rseq_cs: u32 version, flags; u64 start_ip, post_commit_offset, abort_ip.
    let start = read_word(pid, RemoteAddress(section) + 8)?;
    let bytes = read_word(pid, RemoteAddress(section) + 16)?;
    Some(start..start.checked_add(bytes)?)
}
