//! Signal frames that return a thread to its state at the stop without our help.
//!
//! When this process is killed, the kernel detaches from the held thread, which continues with the current registers.
//! So every remote operation that no other stop interrupts ends in rt_sigreturn(2), with a frame that restores the
//! state at the first stop.
//!
//! While the scratch memory is being mapped, another frame precedes this one. It makes the thread unmap the scratch
//! memory, whose address was chosen beforehand. So no mapping remains if the tracer dies directly after the mmap,
//! before it has seen the result.
//!
//! Layout: `struct ucontext` of arch/x86/include/uapi/asm/ucontext.h, `struct sigcontext_64` and `struct _fpx_sw_bytes`
//! of uapi/asm/sigcontext.h, checked by arch/x86/kernel/fpu/signal.c.

use crate::Registers;

/// Flags that a 64-bit kernel sets: UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS.
const UC_FLAGS: u64 = 0x7;

/// Invalid flags for a signal stack. do_sigaltstack refuses them, and restore_altstack ignores the refusal, so the
/// thread keeps its alternate signal stack, which ptrace cannot read.
const ALTSTACK_FLAGS_REFUSED: u64 = 0x7;

/// Number of bytes up to the end of the signal mask. The kernel reads nothing beyond it.
const UCONTEXT_BYTES: usize = 304;
const UC_STACK_FLAGS: usize = 24;
const UC_REGISTERS: usize = 40;
const UC_SEGMENTS: usize = UC_REGISTERS + 18 * 8;
const UC_FPSTATE: usize = UC_REGISTERS + 184;
const UC_SIGMASK: usize = 296;

/// Offsets and sizes in the XSAVE area (Intel SDM volume 1, 13.4).
const SOFTWARE_BYTES: usize = 464;
const HEADER: usize = 512;
const HEADER_END: usize = 576;
/// Required alignment: XRSTOR faults on any other address.
const XSAVE_ALIGN: u64 = 64;

const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;

/// Two adjacent frames to write.
pub(crate) struct Frames {
    /// Address of the lower frame, which makes a system call and continues in the other frame.
    pub call: u64,
    /// Address of the upper frame, which leads home.
    pub home: u64,
    /// Contents from the lower address on.
    pub bytes: Vec<u8>,
}

/// Returns the offset of the call's first argument in a frame that begins with `entry_words` words.
pub(crate) fn call_argument(entry_words: usize) -> u64 {
    (entry_words * 8 + UC_REGISTERS + 8 * 8) as u64
}

/// State that a frame restores.
pub(crate) struct State<'a> {
    pub registers: &'a Registers,
    /// Blocked signals.
    pub mask: u64,
}

/// Builds the frames for the memory below the address `end`. `call` is the state in which the thread makes a system
/// call through a `syscall; ret`. This function sets the rsp of that state.
///
/// `extended` is an XSAVE area in standard form as PTRACE_GETREGSET returns it. Each frame begins with `entry`, to
/// which rsp points before a `ret` into the frame ([`crate::gadgets::Gadgets::frame_entry`]).
pub(crate) fn build(
    end: u64,
    home: &State<'_>,
    call: &State<'_>,
    extended: &[u8],
    entry: &[u64],
) -> Frames {
    let xsave = used_xsave(extended);
    let xsave_at = (end - xsave.len() as u64 - 4) & !(XSAVE_ALIGN - 1);
    // At `ret`, the stack pointer must be aligned as at function entry.
    let frame_bytes = (entry.len() * 8 + UCONTEXT_BYTES) as u64;
    let home_at = (xsave_at - frame_bytes) & !15;
    let call_at = (home_at - frame_bytes) & !15;
    let mut bytes = Vec::new();
    let call_registers = Registers {
        rsp: home_at,
        ..*call.registers
    };
    for (state, registers, at) in [
        (call, &call_registers, call_at),
        (home, home.registers, home_at),
    ] {
        bytes.resize((at - call_at) as usize, 0);
        bytes.extend(entry.iter().flat_map(|word| word.to_le_bytes()));
        // Both frames have the same vector state, which includes the memory protection keys (PKRU).
        bytes.extend(user_context(registers, state.mask, xsave_at));
    }
    bytes.resize((xsave_at - call_at) as usize, 0);
    bytes.extend(sigframe_xsave(xsave));
    Frames {
        call: call_at,
        home: home_at,
        bytes,
    }
}

fn user_context(registers: &Registers, mask: u64, xsave_at: u64) -> [u8; UCONTEXT_BYTES] {
    let mut context = [0u8; UCONTEXT_BYTES];
    let mut put = |at: usize, word: u64| context[at..at + 8].copy_from_slice(&word.to_le_bytes());
    put(0, UC_FLAGS);
    put(UC_STACK_FLAGS, ALTSTACK_FLAGS_REFUSED);
    let in_order = [
        registers.r8,
        registers.r9,
        registers.r10,
        registers.r11,
        registers.r12,
        registers.r13,
        registers.r14,
        registers.r15,
        registers.rdi,
        registers.rsi,
        registers.rbp,
        registers.rbx,
        registers.rdx,
        registers.rax,
        registers.rcx,
        registers.rsp,
        registers.rip,
        registers.eflags,
    ];
    for (index, word) in in_order.into_iter().enumerate() {
        put(UC_REGISTERS + index * 8, word);
    }
    // The fields are u16 cs, gs, fs, ss. The kernel uses only cs and ss; fs and gs keep their bases.
    put(
        UC_SEGMENTS,
        (registers.cs & 0xffff) | (registers.ss & 0xffff) << 48,
    );
    put(UC_FPSTATE, xsave_at);
    put(UC_SIGMASK, mask);
    context
}

/// Returns the area up to the end of the last component that is not in its initial state. The whole area may be larger
/// than the kernel accepts from this thread: the register set includes AMX state, but a signal frame may include it
/// only after the process has requested AMX.
fn used_xsave(extended: &[u8]) -> &[u8] {
    let used = word(extended, HEADER);
    let end = (2..63)
        .filter(|component| used & (1 << component) != 0)
        .map(|component| {
            let leaf = std::arch::x86_64::__cpuid_count(0xd, component);
            (leaf.eax + leaf.ebx) as usize
        })
        .fold(HEADER_END, usize::max);
    &extended[..end.min(extended.len())]
}

/// Returns the area with the fields that the kernel requires for restoring more than x87 and SSE.
fn sigframe_xsave(xsave: &[u8]) -> Vec<u8> {
    let mut area = xsave.to_vec();
    // In a register set, the first software word is XCR0 (fpu/xstate.c, xstate_fx_sw_bytes).
    let features = word(xsave, SOFTWARE_BYTES);
    let bytes = xsave.len() as u32;
    let software = &mut area[SOFTWARE_BYTES..HEADER];
    software.fill(0);
    software[0..4].copy_from_slice(&FP_XSTATE_MAGIC1.to_le_bytes());
    software[4..8].copy_from_slice(&(bytes + 4).to_le_bytes());
    software[8..16].copy_from_slice(&features.to_le_bytes());
    software[16..20].copy_from_slice(&bytes.to_le_bytes());
    area.extend(FP_XSTATE_MAGIC2.to_le_bytes());
    area
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|word| word.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_those_of_libc() {
        use std::mem::offset_of;
        assert_eq!(offset_of!(libc::ucontext_t, uc_sigmask), UC_SIGMASK);
        assert_eq!(offset_of!(libc::ucontext_t, uc_mcontext), UC_REGISTERS);
        let fpregs = offset_of!(libc::mcontext_t, fpregs);
        assert_eq!(UC_REGISTERS + fpregs, UC_FPSTATE);
        let segments = libc::REG_CSGSFS as usize * 8;
        assert_eq!(UC_REGISTERS + segments, UC_SEGMENTS);
        let flags = offset_of!(libc::ucontext_t, uc_stack) + offset_of!(libc::stack_t, ss_flags);
        assert_eq!(flags, UC_STACK_FLAGS);
    }

    #[test]
    fn every_register_is_where_libc_looks_for_it() {
        let mut registers = crate::regs::zeroed();
        macro_rules! numbered {
            ($($register:ident $index:ident)*) => {
                $(registers.$register = 100 + libc::$index as u64;)*
                let context = user_context(&registers, 0, 0);
                $(assert_eq!(
                    word(&context, UC_REGISTERS + libc::$index as usize * 8),
                    registers.$register,
                );)*
            };
        }
        numbered! {
            r8 REG_R8 r9 REG_R9 r10 REG_R10 r11 REG_R11 r12 REG_R12 r13 REG_R13 r14 REG_R14
            r15 REG_R15 rdi REG_RDI rsi REG_RSI rbp REG_RBP rbx REG_RBX rdx REG_RDX rax REG_RAX
            rcx REG_RCX rsp REG_RSP rip REG_RIP eflags REG_EFL
        }
    }

    #[test]
    fn frames_stay_below_their_end_are_aligned_and_lead_home() {
        let words = [&[0x1234][..], &[0x1234, 15, 0x5678]];
        let stacks = (0x7000_0000u64..0x7000_0100).step_by(8);
        for (rsp, entry) in stacks.flat_map(|rsp| words.map(|entry| (rsp, entry))) {
            let mut registers = crate::regs::zeroed();
            registers.rsp = rsp;
            let mut extended = vec![0u8; 2696];
            extended[HEADER] = 3;
            let mut call = crate::regs::zeroed();
            call.rdi = 77;
            let state = |registers, mask| State { registers, mask };
            let frames = build(
                registers.rsp,
                &state(&registers, 5),
                &state(&call, 6),
                &extended,
                entry,
            );
            let end = frames.call + frames.bytes.len() as u64;
            assert!(end <= rsp);
            assert_eq!(
                word(&frames.bytes, call_argument(entry.len()) as usize),
                77,
                "the argument"
            );
            for (at, leads_to, mask) in [(frames.call, frames.home, 6), (frames.home, rsp, 5)] {
                assert_eq!(at % 16, 0);
                let frame = &frames.bytes[(at - frames.call) as usize..];
                for (word_there, wanted) in frame.as_chunks::<8>().0.iter().zip(entry) {
                    assert_eq!(word_there, &wanted.to_le_bytes());
                }
                let frame = &frame[entry.len() * 8 - 8..];
                let at = at + entry.len() as u64 * 8 - 8;
                let stack_pointer = libc::REG_RSP as usize * 8;
                assert_eq!(word(frame, 8 + UC_REGISTERS + stack_pointer), leads_to);
                let xsave_at = word(frame, 8 + UC_FPSTATE);
                assert_eq!(xsave_at % XSAVE_ALIGN, 0);
                let area = &frame[(xsave_at - at) as usize..];
                assert_eq!(area.len(), HEADER_END + 4);
                assert_eq!(word(area, SOFTWARE_BYTES) as u32, FP_XSTATE_MAGIC1);
                assert_eq!(word(frame, 8 + UC_SIGMASK), mask);
            }
        }
    }
}
