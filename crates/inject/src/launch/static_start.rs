//! Start of a static program. Its thread is set up by the program's own code alone, and nothing marks the end of that
//! setup.

use crate::{Registers, regs};
use memhook_process::{RemoteAddress, read_memory};

/// Upper bound on the number of system calls that a C library makes before it requests its thread's id.
pub(super) const MOST_CALLS: u32 = 64;

/// Facts about the C library, learned from a thread that has just called set_tid_address(2).
///
/// Both glibc (`__tls_init_tp`) and musl (`__init_tp`) make this call once the thread pointer is set, and store the
/// result, the thread's id, at an offset from that pointer. By then, neither has allocated memory or run a constructor.
pub(super) struct NewThread {
    /// Offset from the thread pointer at which the C library stores the id.
    pub number_at: u32,
}

impl NewThread {
    /// Examines a thread that has stopped at the entry or the exit of a system call.
    pub fn of(pid: i32) -> std::io::Result<Option<NewThread>> {
        let now = regs::read(pid)?;
        // At the entry of a system call, rax is -ENOSYS (arch/x86/entry/entry_64.S).
        let is_over = now.orig_rax == libc::SYS_set_tid_address as u64 && now.rax as i64 > 0;
        if !is_over || now.fs_base == 0 {
            return Ok(None);
        }
        let number_at = number_that_is_stored(pid, &now).or_else(|| number_that_is_cleared(&now));
        Ok(number_at.map(|number_at| NewThread { number_at }))
    }
}

/// Possible offsets of the id in `struct pthread`: in glibc, in musl since 1.1.25, and in older musl.
const PLACES: [u32; 3] = [720, 48, 56];

/// Finds the next instruction that stores eax at one of these offsets: `mov %eax, disp(%reg)`.
fn number_that_is_stored(pid: i32, now: &Registers) -> Option<u32> {
    let mut code = [0; 32];
    read_memory(pid, RemoteAddress(now.rip), &mut code).ok()?;
    stored_at(&code)
}

fn stored_at(code: &[u8]) -> Option<u32> {
    code.windows(6).find_map(|window| {
        let &[opcode, operands, a, b, c, d] = window else {
            return None;
        };
        let (mode, base) = (operands & 0xf8, operands & 7);
        let place = match mode {
            0x40 => u32::from(a),
            0x80 => u32::from_le_bytes([a, b, c, d]),
            _ => return None,
        };
        // A base of 4 is another encoding.
        (opcode == 0x89 && base != 4 && PLACES.contains(&place)).then_some(place)
    })
}

/// Finds the offset in glibc, which asks the kernel to clear the id when the thread ends.
fn number_that_is_cleared(now: &Registers) -> Option<u32> {
    let offset = now.rdi.checked_sub(now.fs_base)?;
    (offset == u64::from(PLACES[0])).then_some(PLACES[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_of_a_threads_number_is_found() {
        // After the system call in musl 1.2.3: mov %eax, 0x30(%rbx); lea 0x5a10(%rip), %rax.
        let musl = b"\x89\x43\x30\x48\x8d\x05\x10\x5a\0\0";
        assert_eq!(stored_at(musl), Some(48));
        // In glibc: mov %rax, %rdx; mov %eax, 0x2d0(%rbx).
        let glibc = b"\x48\x89\xc2\x89\x83\xd0\x02\0\0\x48";
        assert_eq!(stored_at(glibc), Some(720));
        assert_eq!(stored_at(b"\x48\x89\xc2\x90\x90\x90\x90\x90"), None);
    }
}
