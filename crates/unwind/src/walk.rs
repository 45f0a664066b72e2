//! Unwinds another process's thread with the compiled tables.

use crate::UnwindTable;
use crate::arch::native;
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

/// Returns the program counters of a thread's frames, innermost first, and true if the outermost frame was reached.
/// `read` returns the word at an address of the thread's memory.
pub fn walk(
    modules: &[TableModule],
    start: (u64, u64, u64),
    read: &dyn Fn(u64) -> Option<u64>,
    depth: usize,
) -> (Vec<u64>, bool) {
    let (frames, is_complete) = walk_frames(modules, start, read, depth);
    (frames.iter().map(|frame| frame.pc).collect(), is_complete)
}

/// Returns the frames of a thread, innermost first, and true if the outermost frame was reached, like [`walk`].
pub fn walk_frames(
    modules: &[TableModule],
    (mut pc, mut sp, mut rbp): (u64, u64, u64),
    read: &dyn Fn(u64) -> Option<u64>,
    depth: usize,
) -> (Vec<Frame>, bool) {
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
            rule::PLT => Some(sp.wrapping_add(native::plt_stack_bytes(pc))),
            rule::SIGNAL => {
                let word = |offset| read(sp.wrapping_add(offset));
                let registers = (
                    word(native::SIGNAL_RIP),
                    word(native::SIGNAL_RSP),
                    word(native::SIGNAL_RBP),
                );
                let (Some(at), Some(stack), Some(frame)) = registers else {
                    return (frames, false);
                };
                (pc, sp, rbp, exact) = (at, stack, frame, true);
                frames.push(frame_at(pc, sp, true));
                continue;
            }
            end => return (frames, end == rule::END),
        };
        let Some(cfa) = cfa.filter(|&cfa| cfa > sp) else {
            return (frames, false);
        };
        let Some(caller) = read(cfa.wrapping_add_signed(native::RETURN_ADDRESS_FROM_CFA)) else {
            return (frames, false);
        };
        if caller == 0 {
            return (frames, true);
        }
        rbp = match rule::rbp_kind(packed) {
            rule::RBP_AT_CFA => read(cfa.wrapping_add(rbp_offset)).unwrap_or(0),
            rule::RBP_AT_RBP => read(rbp.wrapping_add(rbp_offset)).unwrap_or(0),
            _ => rbp,
        };
        (pc, sp, exact) = (caller, cfa, false);
        frames.push(frame_at(pc, sp, false));
    }
    (frames, false)
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
