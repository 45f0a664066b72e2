//! Places at which a program stops for its tracer, and which have no effect if there is no tracer.
//!
//! A breakpoint kills a program whose tracer has died, because the SIGTRAP is not handled. A debug register or a single
//! step also kills it, because the kernel does not clear them when the tracer exits. A system call has no such effect.
//! Two calls are suitable:
//!
//! - The program sends itself [`SIGNAL`]. The kernel queues even an ignored signal for a traced thread (`sig_ignored`
//!   in kernel/signal.c), so the tracer sees the thread stop with it. Without a tracer, a signal that is ignored by
//!   default has no effect.
//! - The program calls getpid(2). If the tracer resumes the thread with PTRACE_SYSCALL, the kernel stops it when the
//!   call returns. All other system calls then stop the thread too, twice each, and a program with a few libraries
//!   makes about a hundred of them as it starts.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::Registers;
use memhook_process::Mapping;

/// `mov $SYS_getpid, %eax; syscall`. It changes rax, rcx and r11.
const CALL: [u8; 7] = [0xb8, libc::SYS_getpid as u8, 0, 0, 0, 0x0f, 0x05];
/// Signal of the probe. It is ignored by default, and no program has a handler for it when it starts.
pub(crate) const SIGNAL: i32 = libc::SIGURG;
const RET: u8 = 0xc3;
/// `endbr64`
const LANDING: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// First instructions of crt1.o, first in glibc and others, then in musl: `xor %ebp, %ebp; mov %rdx, %r9`, and `xor
/// %rbp, %rbp; mov %rsp, %rdi`. Both sequences work at any address, and neither is shorter than a jump.
const STARTS: [&[u8]; 2] = [
    &[0x31, 0xed, 0x49, 0x89, 0xd1],
    &[0x48, 0x31, 0xed, 0x48, 0x89, 0xe7],
];
const LONGEST_START: usize = 6;
/// `jmp` with a 32-bit distance.
const JUMP: u8 = 0xe9;
const JUMP_BYTES: u64 = 5;

/// Alignment of functions. The bytes up to the next multiple are padding.
const FUNCTION_ALIGN: u64 = 16;

/// Method by which a probe stops a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopBy {
    /// The tracer stops the thread at the entry to and exit from its system call.
    SystemCall,
    /// The thread sends itself [`SIGNAL`]. The number is the program's process id in its own namespace.
    Signal(u32),
}

impl StopBy {
    /// Returns the code, including its `syscall` instruction. It changes only registers that a called function may
    /// change (psABI 3.2.1).
    fn code(self) -> Vec<u8> {
        match self {
            StopBy::SystemCall => CALL.to_vec(),
            // `push $SYS_kill; pop %rax; mov $pid, %edi; push $SIGNAL; pop %rsi; syscall`
            StopBy::Signal(pid) => {
                let [a, b, c, d] = pid.to_le_bytes();
                let (call, signal) = (libc::SYS_kill as u8, SIGNAL as u8);
                vec![
                    0x6a, call, 0x58, 0xbf, a, b, c, d, 0x6a, signal, 0x5e, 0x0f, 0x05,
                ]
            }
        }
    }
}

/// Changed code.
pub(crate) struct Probe {
    /// Method by which the probe stops a thread.
    pub stop_by: StopBy,
    /// Address at which a stopped thread continues after the original code is restored.
    pub resume: u64,
    /// Address after its `syscall` instruction.
    after_call: u64,
    /// Addresses and original bytes of the overwritten code, in the order in which they are restored.
    originals: Vec<(u64, Vec<u8>)>,
}

impl Probe {
    /// Makes a probe in an empty function that is followed by padding; `None` if the function is not empty or has no
    /// padding.
    pub fn in_empty_function(
        mem: &File,
        address: u64,
        stop_by: StopBy,
    ) -> io::Result<Option<Probe>> {
        let mut code = [0; FUNCTION_ALIGN as usize];
        mem.read_exact_at(&mut code, address)?;
        let body = code.strip_prefix(&LANDING).unwrap_or(&code);
        let is_empty = address.is_multiple_of(FUNCTION_ALIGN)
            && body.first() == Some(&RET)
            && is_padding(&body[1..]);
        if !is_empty {
            return Ok(None);
        }
        let mut function = stop_by.code();
        let mut probe = Probe::of(address, address + function.len() as u64, stop_by);
        function.push(RET);
        probe.write(mem, address, &function)?;
        Ok(Some(probe))
    }

    /// Makes a probe at the entry point of a program, in the mapping `text`: the code takes a detour through the unused
    /// end of the mapping's last page. Returns `None` if that page has no unused end, or if the code begins with
    /// unknown instructions.
    pub fn at_entry(mem: &File, entry: u64, text: &Mapping) -> io::Result<Option<Probe>> {
        let mut code = [0; LANDING.len() + LONGEST_START];
        mem.read_exact_at(&mut code, entry)?;
        let body = code.strip_prefix(&LANDING).unwrap_or(&code);
        let start = entry + (code.len() - body.len()) as u64;
        let mut starts = STARTS.iter();
        let Some(begin) = starts.find(|begin| body.starts_with(begin)) else {
            return Ok(None);
        };
        let bytes = CALL.len() + begin.len() + JUMP_BYTES as usize;
        // Some spare bytes are required, because the program's last instruction may end in zero bytes.
        let mut room = vec![0; bytes + 16];
        let room_start = text.end - room.len() as u64;
        mem.read_exact_at(&mut room, room_start)?;
        if room.iter().any(|&byte| byte != 0) {
            return Ok(None);
        }
        let detour = text.end - bytes as u64;
        let mut code = [CALL.as_slice(), begin].concat();
        let back = jump(detour + code.len() as u64, start + begin.len() as u64);
        let (Some(there), Some(back)) = (jump(start, detour), back) else {
            return Ok(None);
        };
        code.extend(back);
        let after_call = detour + CALL.len() as u64;
        let mut probe = Probe::of(start, after_call, StopBy::SystemCall);
        probe.write(mem, detour, &code)?;
        probe.write(mem, start, &there)?;
        probe.originals.reverse();
        Ok(Some(probe))
    }

    fn of(resume: u64, after_call: u64, stop_by: StopBy) -> Probe {
        Probe {
            stop_by,
            resume,
            after_call,
            originals: Vec::new(),
        }
    }

    fn write(&mut self, mem: &File, address: u64, code: &[u8]) -> io::Result<()> {
        let mut original = vec![0; code.len()];
        mem.read_exact_at(&mut original, address)?;
        mem.write_all_at(code, address)?;
        #[cfg(test)]
        crate::steps::done();
        self.originals.push((address, original));
        Ok(())
    }

    /// Returns true if a stopped thread is at the end of the probe's call.
    pub fn is_passed_by(&self, now: &Registers) -> bool {
        // At the entry of a call rax holds -ENOSYS (arch/x86/entry/entry_64.S).
        now.rip == self.after_call && now.rax as i64 != -i64::from(libc::ENOSYS)
    }

    /// Restores the original code. No thread may be executing the probe.
    pub fn remove(self, mem: &File) -> io::Result<()> {
        for (address, original) in &self.originals {
            mem.write_all_at(original, *address)?;
            #[cfg(test)]
            crate::steps::done();
        }
        Ok(())
    }
}

/// Encodes a jump. Returns `None` if the target is out of range: the text may exceed the 2 GiB that a jump can span.
fn jump(from: u64, to: u64) -> Option<[u8; JUMP_BYTES as usize]> {
    let distance = to.wrapping_sub(from + JUMP_BYTES) as i64;
    let distance = i32::try_from(distance).ok()?;
    let mut code = [JUMP; JUMP_BYTES as usize];
    code[1..].copy_from_slice(&distance.to_le_bytes());
    Some(code)
}

/// Returns true if `code` contains only the padding of assemblers: `int3`, and `nop` of any length, even if the last
/// `nop` extends beyond the end.
fn is_padding(mut code: &[u8]) -> bool {
    while !code.is_empty() {
        // These prefixes are: operand size, %cs.
        let at = code.iter().take_while(|&&b| b == 0x66 || b == 0x2e).count();
        let length = match code[at..] {
            [0x90 | 0xcc, ..] => 1,
            [0x0f, 0x1f, 0x00, ..] => 3,
            [0x0f, 0x1f, 0x40, ..] => 4,
            [0x0f, 0x1f, 0x44, ..] => 5,
            [0x0f, 0x1f, 0x80, ..] => 7,
            [0x0f, 0x1f, 0x84, ..] => 8,
            [] => return true,
            _ => return false,
        };
        code = code.get(at + length..).unwrap_or_default();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_distinguished_from_code() {
        let gap = [0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
        assert!(is_padding(&gap) && is_padding(&[0x0f, 0x1f, 0x40, 0, 0x90, 0xcc]));
        assert!(!is_padding(&[0x90, 0x48, 0x8d, 0x05]) && !is_padding(&[0]));
    }

    /// A `ret` follows the call.
    #[test]
    fn both_calls_fit_into_an_empty_function() {
        for stop_by in [StopBy::SystemCall, StopBy::Signal(u32::MAX)] {
            let code = stop_by.code();
            assert!(code.len() < FUNCTION_ALIGN as usize, "{stop_by:?}");
            assert!(code.ends_with(&[0x0f, 0x05]), "{stop_by:?}");
        }
    }

    #[test]
    fn a_jump_goes_both_ways() {
        assert_eq!(jump(0x1000, 0x1005), Some([JUMP, 0, 0, 0, 0]));
        assert_eq!(jump(0x1005, 0x1000), Some([JUMP, 0xf6, 0xff, 0xff, 0xff]));
    }

    #[test]
    fn a_jump_that_would_land_elsewhere_is_none() {
        assert_eq!(jump(0x1000, 0x1000 + (1 << 31) + 5), None);
        assert_eq!(jump(1 << 33, 0x1000), None);
    }
}
