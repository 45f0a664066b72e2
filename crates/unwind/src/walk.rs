//! Unwinds another process's thread with the compiled tables.

use crate::UnwindTable;
use crate::arch::{Frames, native};
use memhook_abi::unwind_rule as rule;
use std::sync::Arc;

/// A module with its table.
#[derive(Clone)]
pub struct TableModule {
    /// Load bias: avma - svma.
    pub base: u64,
    /// First mapped byte (avma).
    pub start: u64,
    /// Address after the last mapped byte (avma).
    pub end: u64,
    /// Compiled table of the module.
    pub table: Arc<UnwindTable>,
}

/// A frame of a backtrace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Program counter.
    pub pc: u64,
    /// Stack pointer in this frame.
    pub sp: u64,
    /// True if the thread is at `pc`, or was interrupted there by a signal, so that `pc` is not the return address of
    /// a call.
    pub is_exact: bool,
}

impl Frame {
    /// Returns an address inside the current instruction of the frame: a call, unless `pc` is exact.
    pub fn lookup(&self) -> u64 {
        self.pc.wrapping_sub(u64::from(!self.is_exact))
    }
}

/// Registers from which a thread is unwound.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Program counter.
    pub pc: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer.
    pub frame_pointer: u64,
    /// Register in which a call leaves the return address (x30 on AArch64).
    pub return_register: Option<u64>,
    /// Bits that pointer authentication uses in a return address.
    pub signature: u64,
}

impl From<(u64, u64, u64)> for Start {
    fn from((pc, sp, frame_pointer): (u64, u64, u64)) -> Start {
        Start {
            pc,
            sp,
            frame_pointer,
            return_register: None,
            signature: 0,
        }
    }
}

/// Returns the program counters of a thread's frames, innermost first, and true if the outermost frame was reached.
/// `start` has its program counter, stack pointer and frame pointer. `read` returns the word at an address of the thread's
/// memory.
pub fn walk(
    modules: &[TableModule],
    start: impl Into<Start>,
    read: &dyn Fn(u64) -> Option<u64>,
    depth: usize,
) -> (Vec<u64>, bool) {
    let (frames, is_complete) = walk_frames(modules, start, read, depth);
    (frames.iter().map(|frame| frame.pc).collect(), is_complete)
}

/// Like [`walk`], but returns the frames of a thread, innermost first, and true if the outermost frame was reached.
pub fn walk_frames(
    modules: &[TableModule],
    start: impl Into<Start>,
    read: &dyn Fn(u64) -> Option<u64>,
    depth: usize,
) -> (Vec<Frame>, bool) {
    walk_code::<native::Code>(modules, start.into(), read, depth)
}

/// Like [`walk_frames`], for a processor that may not be this one.
pub(crate) fn walk_code<P: Frames>(
    modules: &[TableModule],
    start: Start,
    read: &dyn Fn(u64) -> Option<u64>,
    depth: usize,
) -> (Vec<Frame>, bool) {
    let (mut pc, mut sp, mut rbp) = (start.pc, start.sp, start.frame_pointer);
    let mut return_register = start.return_register;
    let frame_at = |pc, sp, is_exact| Frame { pc, sp, is_exact };
    let mut frames = vec![frame_at(pc, sp, true)];
    let mut exact = true;
    while frames.len() < depth {
        let lookup = pc.wrapping_sub(u64::from(!exact));
        let module = modules.iter().find(|m| (m.start..m.end).contains(&lookup));
        let packed = module.map_or(rule::STOP, |m| {
            let offset = pc.wrapping_sub(m.base);
            if exact {
                m.table.rule_at(offset)
            } else {
                m.table.rule_at_return(offset)
            }
        });
        // The offsets are in two's complement, so a wrapping addition moves in either direction.
        let cfa_offset = rule::cfa_offset(packed) as u64;
        let rbp_offset = rule::rbp_offset(packed) as u64;
        let cfa = match rule::cfa_kind(packed) {
            rule::RSP => Some(sp.wrapping_add(cfa_offset)),
            rule::RBP => Some(rbp.wrapping_add(cfa_offset)),
            rule::AT_RBP => read(rbp.wrapping_add(cfa_offset)),
            rule::PLT => Some(sp.wrapping_add(plt_stack_bytes(pc))),
            rule::SIGNAL => {
                let word = |number: usize| read(sp.wrapping_add(P::SAVED[number]));
                let registers = (word(P::PC), word(P::STACK_POINTER), word(P::FRAME_POINTER));
                let (Some(at), Some(stack), Some(frame)) = registers else {
                    return (frames, false);
                };
                return_register = word(P::RETURN_ADDRESS);
                (pc, sp, rbp, exact) = (at, stack, frame, true);
                frames.push(frame_at(pc, sp, true));
                continue;
            }
            end => return (frames, end == rule::END),
        };
        // A leaf function may have no frame, if a call instruction pushes nothing.
        let is_further_out = |cfa: u64| cfa > sp || cfa == sp && exact && !P::CALLS_PUSH;
        let Some(cfa) = cfa.filter(|&cfa| is_further_out(cfa)) else {
            return (frames, false);
        };
        let caller = match rule::rbp_kind(packed) {
            rule::LINK_SAME => return_register,
            rule::LINK_AT_CFA => read(cfa.wrapping_add(rbp_offset)),
            rule::RECORD_AT_CFA => read(cfa.wrapping_add(rbp_offset).wrapping_add(8)),
            _ => read(cfa.wrapping_sub(PUSHED_BYTES)),
        };
        let Some(caller) = caller.map(|caller| caller & !start.signature) else {
            return (frames, false);
        };
        if caller == 0 {
            return (frames, true);
        }
        rbp = match rule::rbp_kind(packed) {
            rule::RBP_AT_CFA | rule::RECORD_AT_CFA => {
                read(cfa.wrapping_add(rbp_offset)).unwrap_or(0)
            }
            rule::RBP_AT_RBP => read(rbp.wrapping_add(rbp_offset)).unwrap_or(0),
            _ => rbp,
        };
        // The call that the caller is in has overwritten it.
        return_register = None;
        (pc, sp, exact) = (caller, cfa, false);
        frames.push(frame_at(pc, sp, false));
    }
    (frames, false)
}

/// Distance of a pushed return address from the CFA.
const PUSHED_BYTES: u64 = 8;

/// Returns the number of bytes by which a PLT entry of x86-64 has moved the stack pointer at `pc`. An entry is 16 bytes
/// long, and its push instruction ends at byte 11 (GCC's and LLVM's own CFA expression for .plt).
const fn plt_stack_bytes(pc: u64) -> u64 {
    if pc & 15 >= 11 { 16 } else { 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers of a signal frame are read relative to a stack pointer chosen by the target.
    #[test]
    fn a_stack_pointer_at_the_end_of_memory() {
        let signal = rule::pack(rule::SIGNAL, 0, rule::RBP_SAME, 0);
        let table = UnwindTable {
            offsets: vec![0],
            row_rules: vec![1],
            rules: vec![rule::STOP, signal],
            inexpressible: 0,
        };
        let modules = [TableModule {
            base: 0,
            start: 0,
            end: u64::MAX,
            table: Arc::new(table),
        }];
        let read = |_| None;
        let (frames, complete) = walk(&modules, (0x1000, u64::MAX - 7, 0), &read, 8);
        assert_eq!((frames, complete), (vec![0x1000], false));
    }
}
