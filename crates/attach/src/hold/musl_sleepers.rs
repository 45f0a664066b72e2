//! Finds threads of a musl process that are certainly not inside its allocator.
//!
//! musl has no call frame information, so these stacks cannot be unwound. But a thread may sleep in a system call that
//! the allocator never makes. Such a thread is inside the allocator only if a signal handler has interrupted the
//! allocator and makes that call. Then the kernel has put the handler's return address on the stack. So no such address
//! may be between the stack pointer and the end of the stack.

use memhook_process::{Mapping, ModuleImage, ModulePart, code_places, module_part};
use memhook_process::{RemoteAddress, read_memory};
use std::collections::BTreeSet;

/// System calls of mallocng (src/malloc/mallocng/glue.h), and of the locks of the C library.
const ALLOCATING: [i64; 7] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
];
/// Machine code that calls rt_sigreturn(2): `mov $15, %rax; syscall`, which C libraries use, and an equivalent that a
/// compiler may generate.
const RETURNS: [&[u8]; 2] = [
    b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05",
    b"\xb8\x0f\x00\x00\x00\x0f\x05",
];
/// Maximum searched stack depth in bytes.
const DEEPEST: u64 = 8 << 20;
const PIECE_BYTES: u64 = 64 << 10;

/// Data for recognizing such threads in one process.
pub struct MuslSleepers {
    pid: i32,
    /// Return addresses of signal handlers.
    returns: BTreeSet<u64>,
    mappings: Vec<Mapping>,
}

impl MuslSleepers {
    /// Returns `None` if the process does not use musl.
    pub fn of(pid: i32, modules: &[ModuleImage], mappings: Vec<Mapping>) -> Option<MuslSleepers> {
        let is_musl = |module: &ModuleImage| matches!(module_part(module), ModulePart::Musl);
        modules.iter().any(is_musl).then(|| MuslSleepers {
            pid,
            returns: modules.iter().flat_map(returns).collect(),
            mappings,
        })
    }

    /// Returns `Err` with the reason if a thread may be inside the allocator. `call`: the system call in which it
    /// sleeps (-1: none); `rsp`: its stack pointer.
    pub fn check(&self, call: i64, rsp: u64) -> Result<(), String> {
        if call < 0 || ALLOCATING.contains(&call) {
            return Err(
                "may be inside the allocator: its system call does not rule that out".into(),
            );
        }
        let rsp = rsp & !7;
        let unknown = || format!("has a stack at {rsp:#x} that cannot be searched");
        if self.returns.is_empty() {
            return Err("may be handling a signal, and memhook-rs cannot find out".into());
        }
        let mut mappings = self.mappings.iter();
        let stack = mappings.find(|m| m.start <= rsp && rsp < m.end);
        let end = stack.map(|m| m.end).filter(|end| end - rsp <= DEEPEST);
        let end = end.ok_or_else(unknown)?;
        let mut at = rsp;
        while at < end {
            let mut piece = vec![0; PIECE_BYTES.min(end - at) as usize];
            read_memory(self.pid, RemoteAddress(at), &mut piece).map_err(|_| unknown())?;
            let (words, _) = piece.as_chunks::<8>();
            let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
            if words.any(|word| self.returns.contains(&word)) {
                return Err("is handling a signal that may have interrupted the allocator".into());
            }
            at += piece.len() as u64;
        }
        Ok(())
    }
}

/// Returns the addresses in a module at which rt_sigreturn(2) is called.
fn returns(module: &ModuleImage) -> Vec<u64> {
    let mut found = Vec::new();
    for (code, offset) in code_places(&module.bytes) {
        let start = offset as usize;
        let end = start.saturating_add((code.end - code.start) as usize);
        let bytes = &module.bytes[start.min(module.bytes.len())..end.min(module.bytes.len())];
        for pattern in RETURNS {
            let places = memchr::memmem::find_iter(bytes, pattern);
            found.extend(places.map(|at| module.base.wrapping_add(code.start + at as u64)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Return address of a signal handler: a value that no other word of this process has.
    const RETURN: u64 = 0x7eed_1a5e_9d0c_4b21;

    #[test]
    fn who_sleeps_elsewhere_is_outside() {
        // A buffer of this size is a separate mapping, which contains none of these addresses.
        let mut stack = vec![0u64; 1 << 18];
        stack[3] = RETURN;
        let rsp = stack.as_ptr() as u64;
        let pid = std::process::id() as i32;
        let sleepers = |returns: &[u64]| MuslSleepers {
            pid,
            returns: returns.iter().copied().collect(),
            mappings: memhook_process::mappings(pid).expect("readable"),
        };
        let outside = sleepers(&[RETURN + 1]);
        for call in [libc::SYS_read, libc::SYS_poll, libc::SYS_restart_syscall] {
            assert_eq!(outside.check(call, rsp), Ok(()), "{call}");
        }
        for call in [libc::SYS_futex, libc::SYS_mmap, -1] {
            assert!(outside.check(call, rsp).is_err(), "{call}");
        }
        let handles = sleepers(&[RETURN]).check(libc::SYS_read, rsp);
        let why = handles.expect_err("a handler");
        assert!(why.contains("is handling a signal"), "{why}");
        assert!(outside.check(libc::SYS_read, 0x1000).is_err());
        assert!(sleepers(&[]).check(libc::SYS_read, rsp).is_err());
    }
}
