//! x86-64 (psABI), as Linux uses it.

use super::Frames;
pub(crate) use gimli::X86_64;
use gimli::{
    CfaRule, Encoding, Operation, Reader, RegisterRule, UnwindSection, UnwindTableRow, Vendor,
};
use memhook_abi::unwind_rule as rule;
use std::ops::Range;

/// Number of registers in call frame information.
pub(crate) const REGISTERS: usize = 17;

/// Offset of the return address that a `call` pushes, from the CFA.
pub(crate) const RETURN_ADDRESS_FROM_CFA: i64 = -8;

/// Code of this processor.
pub(crate) enum Code {}

impl Frames for Code {
    // psABI, figure 3.36.
    const STACK_POINTER: usize = X86_64::RSP.0 as usize;
    const FRAME_POINTER: usize = X86_64::RBP.0 as usize;
    const RETURN_ADDRESS: usize = X86_64::RA.0 as usize;
    const PC: usize = Self::RETURN_ADDRESS;
    /// The registers are in a `struct ucontext`, whose `gregs` begin at byte 40 (asm/sigcontext.h) with r8 to r15, rdi,
    /// rsi, rbp, rbx, rdx, rax, rcx, rsp and rip.
    const SAVED: &'static [u64] = &[
        144, 136, 152, 128, 112, 104, 120, 160, 40, 48, 56, 64, 72, 80, 88, 96, 168,
    ];
    const VENDOR: Vendor = Vendor::Default;

    fn rule_of<R, S>(row: &UnwindTableRow<R::Offset>, frames: &S, encoding: Encoding) -> Option<u64>
    where
        R: Reader<Offset = usize>,
        S: UnwindSection<R>,
    {
        match row.register(X86_64::RA) {
            Some(RegisterRule::Undefined) => return Some(rule::END),
            // The return address is below the CFA in all code that uses `call`.
            Some(RegisterRule::Offset(RETURN_ADDRESS_FROM_CFA)) => {}
            _ => return None,
        }
        let (cfa, cfa_offset) = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                let base = match *register {
                    X86_64::RSP => rule::RSP,
                    X86_64::RBP => rule::RBP,
                    _ => return None,
                };
                (base, i32::try_from(*offset).ok()?)
            }
            CfaRule::Expression(expression) => {
                let expression = expression.get(frames).ok()?;
                cfa_expression(&operations(expression, encoding)?)?
            }
        };
        let (rbp, rbp_offset) = match row.register(X86_64::RBP) {
            None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => (rule::RBP_SAME, 0),
            Some(RegisterRule::Offset(offset)) => (rule::RBP_AT_CFA, i16::try_from(offset).ok()?),
            Some(RegisterRule::Expression(expression)) => {
                let expression = expression.get(frames).ok()?;
                match operations(expression, encoding)?[..] {
                    [
                        Operation::RegisterOffset {
                            register: X86_64::RBP,
                            offset,
                            ..
                        },
                    ] => (rule::RBP_AT_RBP, i16::try_from(offset).ok()?),
                    _ => return None,
                }
            }
            _ => return None,
        };
        Some(rule::pack(cfa, cfa_offset, rbp, rbp_offset))
    }

    /// C libraries describe theirs.
    fn trampolines(_: &[u8]) -> Vec<Range<u64>> {
        Vec::new()
    }
}

/// Recognizes the two CFA expressions that compilers and linkers emit: "the word at rbp + n" for a realigned stack,
/// and "rsp + 8, and 8 more if rip & 15 >= 11" for the PLT.
fn cfa_expression<R: Reader>(operations: &[Operation<R>]) -> Option<(u64, i32)> {
    match operations {
        [
            Operation::RegisterOffset {
                register: X86_64::RBP,
                offset,
                ..
            },
            Operation::Deref { space: false, .. },
        ] => Some((rule::AT_RBP, i32::try_from(*offset).ok()?)),
        [
            Operation::RegisterOffset {
                register: X86_64::RSP,
                offset: 8,
                ..
            },
            Operation::RegisterOffset {
                register: X86_64::RA,
                offset: 0,
                ..
            },
            Operation::UnsignedConstant { value: 15 },
            Operation::And,
            Operation::UnsignedConstant { value: 11 },
            Operation::Ge,
            Operation::UnsignedConstant { value: 3 },
            Operation::Shl,
            Operation::Plus,
        ] => Some((rule::PLT, 0)),
        _ => None,
    }
}

/// Returns the operations of an expression, or `None` if there are too many.
fn operations<R: Reader>(
    expression: gimli::Expression<R>,
    encoding: gimli::Encoding,
) -> Option<Vec<Operation<R>>> {
    let mut found = Vec::new();
    let mut iterator = expression.operations(encoding);
    while let Some(operation) = iterator.next().ok()? {
        if found.len() > 16 {
            return None;
        }
        found.push(operation);
    }
    Some(found)
}
