//! Exchanging code in a running process.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::audit::{Act, note};
use crate::{AllHeld, Error, hold_all, memory_sharers};
use memhook_process::{RemoteAddress, mappings, open_memory};

/// Code to exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeExchange {
    /// Address; the bytes do not cross the end of a page.
    pub at: RemoteAddress,
    /// Bytes that must be there.
    pub from: Vec<u8>,
    /// New bytes of the same length.
    pub to: Vec<u8>,
}

/// Result of one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchanged {
    /// The code has been exchanged.
    Done,
    /// Other bytes are there.
    Differs,
    /// The program counter or a return address of a thread may point into the code.
    InUse,
}

/// Results of an attempt.
#[derive(Debug)]
pub struct CodeExchanges {
    /// Result of each exchange.
    pub done: Vec<Exchanged>,
    /// True for each of the given ranges that no thread executes or will return to.
    pub unused: Vec<bool>,
    /// Threads with their thread pointers.
    pub thread_pointers: Vec<(i32, u64)>,
    /// Time for which all threads were held.
    pub held: Duration,
}

/// Length of the searched part of a stack, from the stack pointer on.
const MOST_STACK_BYTES: u64 = 16 << 20;
/// Size of the red zone: bytes below the stack pointer that signal handlers leave untouched.
const RED_ZONE: u64 = 128;

/// Opens the memory of a process for exchanges. The file is valid as long as the process executes its current program.
///
/// # Errors
/// [`Error::TargetGone`], or the error that forbids the access.
pub fn memory_of_code(pid: i32) -> Result<File, Error> {
    open_memory(pid).map_err(|error| Error::of_process(pid, error))
}

/// Exchanges code with all threads held, and reports which of `ranges` are not in use.
///
/// An exchange is skipped if the program counter of a thread, or any word on its stack, points into the exchanged bytes
/// after the first. Such a word may be a return address, or the program counter of a frame that a signal has
/// interrupted.
///
/// # Cross-modifying code
/// A processor may execute stale instructions if another processor changes them while it runs (Intel SDM, volume 3,
/// "Handling Self- and Cross-Modifying Code"), unless it executes a serializing instruction after the change. No thread
/// of the target runs in user mode here, and each must be switched in before it runs again. The first write to a page
/// replaces the page, and the TLB flush that this requires interrupts or marks every processor that has the address
/// space loaded. In any case, the thread was switched out in ptrace_stop (kernel/signal.c), and comes back by loading
/// CR3, or through the return from the interrupt that woke its processor, both of which serialize. Each write is within
/// one page, and is one copy in the kernel (`__access_remote_vm`, mm/memory.c). So an attacher that is killed at any
/// moment leaves the old or the new bytes, never a mixture.
///
/// Writes through /proc/PID/mem ignore page protection, so the text never becomes writable for the target. `memory` is
/// that file ([`memory_of_code`]), opened before the destinations of the exchanges were mapped. If the process executes
/// another program, which may have the same code at the same address, all exchanges fail with [`Exchanged::Differs`].
pub fn exchange_code(
    pid: i32,
    memory: &File,
    exchanges: &[CodeExchange],
    ranges: &[Range<u64>],
    needs_thread_pointers: bool,
) -> Result<CodeExchanges, Error> {
    let held = hold_all(pid)?;
    if let Some(&other) = memory_sharers(pid).first() {
        return Err(Error::SharesMemory { pid, other });
    }
    if needs_thread_pointers {
        check_thread_pointers(&held, memory)?;
    }
    let used = Used::of(&held, memory, exchanges, ranges);
    let done = exchanges.iter().map(|exchange| {
        let inside = exchange.at.0 + 1..exchange.at.0 + exchange.from.len() as u64;
        if used.has(&inside) {
            return Ok(Exchanged::InUse);
        }
        let mut now = vec![0; exchange.from.len()];
        if memory.read_exact_at(&mut now, exchange.at.0).is_err() || now != exchange.from {
            return Ok(Exchanged::Differs);
        }
        let written = memory.write_all_at(&exchange.to, exchange.at.0);
        written
            .map(|()| Exchanged::Done)
            .map_err(|cause| Error::Memory {
                action: "write",
                pid,
                address: exchange.at,
                bytes: exchange.to.len(),
                cause,
            })
    });
    let done = done.collect::<Result<Vec<_>, Error>>()?;
    let places = exchanges.iter().zip(&done);
    let places = places.filter(|(_, done)| matches!(done, Exchanged::Done));
    note(
        pid,
        Act::Exchange(places.map(|(one, _)| one.at.0).collect()),
    );
    let unused = ranges.iter().map(|range| !used.has(range)).collect();
    let pointers = held
        .threads()
        .map(|(tid, registers, _)| (tid, registers.fs_base));
    Ok(CodeExchanges {
        thread_pointers: pointers.collect(),
        done,
        unused,
        held: held.release(),
    })
}

/// Checks that every thread has its own thread pointer, and that the word at the pointer is the pointer itself (System
/// V psABI for x86-64, "Thread-Local Storage").
fn check_thread_pointers(held: &AllHeld, memory: &File) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    for (tid, registers, _) in held.threads() {
        let pointer = registers.fs_base;
        let mut word = [0; 8];
        let reads_itself =
            memory.read_exact_at(&mut word, pointer).is_ok() && u64::from_le_bytes(word) == pointer;
        if pointer == 0 || !reads_itself || !seen.insert(pointer) {
            return Err(Error::ThreadPointer { pid: held.pid, tid });
        }
    }
    Ok(())
}

/// Reads memory from an address up to the first unreadable page. This page may be the guard page of the next thread's
/// stack, which may be in the same mapping (MADV_GUARD_INSTALL, glibc 2.43).
fn read_to_gap(memory: &File, from: u64, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; most];
    let mut done = 0;
    while let Ok(read @ 1..) = memory.read_at(&mut bytes[done..], from + done as u64) {
        done += read;
    }
    bytes.truncate(done);
    bytes
}

/// Sorted addresses in the relevant code that occur as program counters of threads, or as words on their stacks.
struct Used(Vec<u64>);

impl Used {
    fn of(
        held: &AllHeld,
        memory: &File,
        exchanges: &[CodeExchange],
        ranges: &[Range<u64>],
    ) -> Used {
        let of_exchanges = exchanges
            .iter()
            .map(|e| e.at.0..e.at.0 + e.from.len() as u64);
        let mut wanted: Vec<Range<u64>> = of_exchanges.chain(ranges.iter().cloned()).collect();
        wanted.sort_by_key(|range| range.start);
        let matters = |address: u64| {
            let behind = wanted.partition_point(|range| range.start <= address);
            behind > 0 && address < wanted[behind - 1].end
        };
        let maps = mappings(held.pid).unwrap_or_default();
        let mut used = Vec::new();
        for (_, registers, _) in held.threads() {
            used.push(registers.rip);
            let low = registers.rsp.saturating_sub(RED_ZONE) & !7;
            let stack = maps.iter().find(|m| m.contains(registers.rsp));
            let high = stack.map_or(low, |m| m.end.min(low.saturating_add(MOST_STACK_BYTES)));
            let bytes = read_to_gap(memory, low, high.saturating_sub(low) as usize);
            let words = bytes.as_chunks::<8>().0.iter();
            let words = words.map(|word| u64::from_le_bytes(*word));
            used.extend(words.filter(|&word| matters(word)));
        }
        used.sort_unstable();
        Used(used)
    }

    fn has(&self, range: &Range<u64>) -> bool {
        let first = self.0.partition_point(|&address| address < range.start);
        self.0
            .get(first)
            .is_some_and(|&address| address < range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapMut;

    /// A stack is read up to a gap. Memory above the gap is not needed.
    #[test]
    fn a_stack_is_read_up_to_a_gap() {
        const PAGE: usize = 4096;
        let mut map = MmapMut::map_anon(3 * PAGE).unwrap();
        map.fill(7);
        let at = map.as_ptr().addr() as u64;
        let memory = open_memory(std::process::id() as i32).unwrap();
        assert_eq!(read_to_gap(&memory, at, 3 * PAGE), [7; 3 * PAGE]);
        // SAFETY: the page is in the mapping, which is no longer used. Unmapping a part again is allowed.
        unsafe { libc::munmap(map.as_mut_ptr().add(PAGE).cast(), PAGE) };
        assert_eq!(read_to_gap(&memory, at, 3 * PAGE), [7; PAGE]);
        assert_eq!(read_to_gap(&memory, at + PAGE as u64, PAGE), [0u8; 0]);
        std::mem::forget(map);
    }
}
