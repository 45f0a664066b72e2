//! Holds all threads of the target while none of them is inside malloc.

use crate::arch::native;
use memhook_inject::{AllHeld, Error, Registers, hold_all_within};
use nix::libc;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::IoSliceMut;
use std::ops::Range;
use std::time::Duration;

use crate::snapshot::{ModuleInfo, words};

/// Time for which threads inside malloc may keep running: the first step, the longest step, and the
/// sum.
const SETTLE_STEP: Duration = Duration::from_micros(30);
const SETTLE_STEP_MAX: Duration = Duration::from_micros(200);
const SETTLE_LIMIT: Duration = Duration::from_millis(4);
/// System calls that malloc makes.
const MALLOC_CALLS: [i64; 7] = [
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_brk,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
];
/// Number of words at the top of a stack that may be return addresses into malloc.
const STACK_WORDS: usize = 48;

/// Futex operation that waits until a time, as condition variables and timed locks do. No allocator
/// takes its locks this way (linux/futex.h).
const FUTEX_WAIT_BITSET: u64 = 9;
const FUTEX_COMMAND: u64 = 0x7f;

/// Address ranges of allocator code.
#[derive(Clone, Default)]
pub struct MallocPlaces {
    /// Code of the allocators and of their internal functions.
    code: Vec<Range<u64>>,
    /// The C libraries, which contain all functions that the allocators call.
    libraries: Vec<Range<u64>>,
}

impl MallocPlaces {
    /// Returns the ranges in a process with these modules.
    pub fn of(modules: &[ModuleInfo]) -> MallocPlaces {
        let libcs = modules.iter().filter(|m| m.glibc_minor.is_some());
        let of_libcs = libcs.clone().map(|libc| libc.malloc_code.clone());
        let others = modules
            .iter()
            .flat_map(|m| m.allocator_code.iter().cloned());
        MallocPlaces {
            code: of_libcs.chain(others).collect(),
            libraries: libcs.map(|libc| libc.start..libc.end).collect(),
        }
    }
}

impl MallocPlaces {
    /// Returns these places for an allocator that has called the code at this address.
    pub fn called_at(&self, address: u64) -> MallocPlaces {
        let called = address..address.saturating_add(1);
        MallocPlaces {
            code: self.code.clone(),
            libraries: Vec::from([called]),
        }
    }
}

/// Holds all threads, if possible with none of them inside malloc, because the heap is then
/// consistent. A thread inside malloc keeps running until it has left malloc, which never takes
/// long. Also returns the number of threads that were still inside. `reader` is the id through
/// which the memory is read. `limit` is the maximum time for which threads are held until all have
/// stopped.
pub fn hold_settled(
    pid: i32,
    reader: i32,
    malloc: &MallocPlaces,
    limit: Option<Duration>,
) -> Result<(AllHeld, u32), Error> {
    let mut held = hold_all_within(pid, limit)?;
    let mut step = SETTLE_STEP;
    loop {
        let inside: Vec<i32> = held
            .threads()
            .filter(|(_, r, _)| is_inside(reader, r, malloc))
            .map(|(tid, ..)| tid)
            .collect();
        if inside.is_empty() || held.held_for() > SETTLE_LIMIT {
            return Ok((held, inside.len() as u32));
        }
        held.let_run(&inside, step)?;
        step = (step * 2).min(SETTLE_STEP_MAX);
    }
}

/// Returns true if a thread is in the middle of malloc or free: its program counter is there, or it
/// is in a system call or in another function of the C library that malloc or free has called.
pub fn is_inside(pid: i32, registers: &Registers, malloc: &MallocPlaces) -> bool {
    let read = |at: u64, into: &mut [u8]| {
        let remote = [RemoteIoVec {
            base: at as usize,
            len: into.len(),
        }];
        let mut local = [IoSliceMut::new(into)];
        process_vm_readv(Pid::from_raw(pid), &mut local, &remote).unwrap_or(0)
    };
    is_inside_by(registers, malloc, read)
}

/// Like [`is_inside`]. `read` fills the buffer with memory from an address on, and returns the
/// number of bytes read.
pub fn is_inside_by(
    registers: &Registers,
    malloc: &MallocPlaces,
    read: impl Fn(u64, &mut [u8]) -> usize,
) -> bool {
    let pc = native::program_counter(registers);
    let is_code = |w: u64| malloc.code.iter().any(|code| code.contains(&w));
    if is_code(pc) {
        return true;
    }
    // Frames of the program and of the hook may still hold return addresses of earlier calls.
    let mut libraries = malloc.libraries.iter();
    if !libraries.any(|library| library.contains(&pc)) {
        return false;
    }
    if let Some((system_call, second)) = native::system_call(registers, &read) {
        if !MALLOC_CALLS.contains(&system_call) {
            return false;
        }
        if system_call == libc::SYS_futex && second & FUTEX_COMMAND == FUTEX_WAIT_BITSET {
            return false;
        }
    }
    let mut stack = [0u8; STACK_WORDS * 8];
    let read = read(native::stack_pointer(registers), &mut stack);
    words(&stack[..read]).any(is_code)
}
