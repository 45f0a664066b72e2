//! Whether a stopped thread may run a foreign call: not while it holds a lock of the loader or the
//! allocator, and not inside a restartable sequence.

use crate::call_instruction::{CALL_BYTES, ends_with_call};
use crate::{Registers, ptrace};
use std::ops::Range;

use memhook_process::{RemoteAddress, read_memory, read_word};

/// Makes an exact backtrace of a stopped thread: from its registers and a reader of 8-byte words of its
/// memory to the program counters of its frames, innermost first.
pub type Unwind<'a> = &'a dyn Fn(&Registers, &dyn Fn(u64) -> Option<u64>) -> Vec<u64>;

/// How much of the stack is searched for return addresses when there is no unwinder.
const SCAN_BYTES: u64 = 16 * 1024;
const PAGE_BYTES: u64 = 4096;

/// `Err` with the reason if the thread may not be used for anything, because moving its program counter out
/// of a restartable sequence and back would hide the interruption from the kernel.
pub(crate) fn check_sequence(pid: i32, tid: i32, registers: &Registers) -> Result<(), String> {
    match rseq_section(pid, tid) {
        Some(section) if section.contains(&registers.rip) => Err(format!(
            "thread {tid} is in a restartable sequence at {:#x}",
            registers.rip
        )),
        _ => Ok(()),
    }
}

/// `Err` with the reason if the thread may hold a lock.
pub(crate) fn check(
    pid: i32,
    tid: i32,
    registers: &Registers,
    unsafe_ranges: &[Range<u64>],
    unwind: Option<Unwind<'_>>,
) -> Result<(), String> {
    if is_inside(unsafe_ranges, registers.rip) {
        return Err(format!(
            "thread {tid} runs loader or allocator code at {:#x}",
            registers.rip
        ));
    }
    let read = |address| read_word(pid, RemoteAddress(address));
    let found = match unwind {
        // The return address of a call at the end of a range lies just behind it, so the call is looked at.
        Some(unwind) => unwind(registers, &read)
            .into_iter()
            .skip(1)
            .find(|&pc| is_inside(unsafe_ranges, pc.wrapping_sub(1))),
        None => scan(pid, registers.rsp, unsafe_ranges),
    };
    match found {
        Some(pc) => Err(format!(
            "thread {tid} is called from loader or allocator code at {pc:#x}"
        )),
        None => Ok(()),
    }
}

fn is_inside(ranges: &[Range<u64>], address: u64) -> bool {
    ranges.iter().any(|range| range.contains(&address))
}

/// The first word on the stack that may be a return address into the ranges. It may be a stale one, which
/// only costs another try.
fn scan(pid: i32, rsp: u64, ranges: &[Range<u64>]) -> Option<u64> {
    let mut at = rsp & !7;
    let end = at.saturating_add(SCAN_BYTES);
    while at < end {
        let page_end = (at | (PAGE_BYTES - 1)).saturating_add(1).min(end);
        let mut bytes = vec![0u8; (page_end - at) as usize];
        // The stack ends here.
        read_memory(pid, RemoteAddress(at), &mut bytes).ok()?;
        let found = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .find(|&word| is_inside(ranges, word.wrapping_sub(1)) && follows_call(pid, word));
        if found.is_some() {
            return found;
        }
        at = page_end;
    }
    None
}

/// Whether the instruction before `address` is a call.
fn follows_call(pid: i32, address: u64) -> bool {
    let mut code = [0u8; CALL_BYTES];
    let before = RemoteAddress(address.wrapping_sub(CALL_BYTES as u64));
    read_memory(pid, before, &mut code).is_ok() && ends_with_call(&code)
}

/// The code of the restartable sequence that the thread announces (rseq(2)).
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
