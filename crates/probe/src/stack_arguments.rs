//! Decides whether a function reads arguments that its caller has left on the stack.
//!
//! Other code that calls such a function would have to know how many arguments there are. The stack pointer is followed
//! through the function, and rbp where it is a frame pointer. An access at or above the position of the first argument
//! (psABI 3.2.3: 8 bytes above the stack pointer at the entry) means that there are such arguments.

use crate::Code;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::collections::BTreeSet;
use std::ops::Range;

/// Maximum number of examined instructions; longer functions remain undecided.
const MOST_INSTRUCTIONS: usize = 100_000;
const LONGEST_INSTRUCTION: u64 = 15;

/// Distances from the stack pointer at the entry down to the current stack pointer and frame pointer, if known.
#[derive(Clone, Copy)]
struct Depths {
    stack: Option<i64>,
    frame: Option<i64>,
}

/// Returns true if the function, or a function that it jumps to at its end, may read arguments on the stack.
pub fn may_take_stack_arguments(code: &Code<'_>, function: &Range<u64>) -> bool {
    let at_entry = Depths {
        stack: Some(0),
        frame: None,
    };
    let mut open = vec![(function.start, at_entry)];
    let mut seen = BTreeSet::new();
    while let Some((mut at, mut depths)) = open.pop() {
        while seen.insert(at) {
            if seen.len() > MOST_INSTRUCTIONS {
                return true;
            }
            let Some(instruction) = instruction_at(code, at) else {
                break;
            };
            if depths.reach_arguments(&instruction) {
                return true;
            }
            let to = instruction.near_branch_target();
            match instruction.flow_control() {
                FlowControl::Return | FlowControl::Exception | FlowControl::Interrupt => break,
                FlowControl::UnconditionalBranch => {
                    open.push((to, depths));
                    break;
                }
                FlowControl::ConditionalBranch => open.push((to, depths)),
                FlowControl::IndirectBranch => {
                    let cases = code.pointers_into(function);
                    open.extend(cases.map(|case| (case, depths)));
                    break;
                }
                // A callee finds its own arguments.
                FlowControl::Call | FlowControl::IndirectCall => {}
                _ => depths.follow(&instruction),
            }
            at = instruction.next_ip();
            if at == function.end {
                break; // behind a call that does not return
            }
        }
    }
    false
}

fn instruction_at(code: &Code<'_>, at: u64) -> Option<Instruction> {
    let bytes = (1..=LONGEST_INSTRUCTION)
        .rev()
        .find_map(|length| code.bytes(&(at..at.checked_add(length)?)))?;
    let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

impl Depths {
    fn reach_arguments(&self, instruction: &Instruction) -> bool {
        let has_memory =
            (0..instruction.op_count()).any(|n| instruction.op_kind(n) == OpKind::Memory);
        let depth = match instruction.memory_base() {
            Register::RSP => self.stack,
            Register::RBP => self.frame,
            _ => None,
        };
        let displacement = instruction.memory_displacement64() as i64;
        has_memory && depth.is_some_and(|depth| displacement - depth >= 8)
    }

    fn follow(&mut self, instruction: &Instruction) {
        let first = instruction.op0_register();
        let has_register = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register;
        let immediate = || {
            let is_known = !matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory);
            is_known.then(|| instruction.immediate(1) as i64)
        };
        let displacement = instruction.memory_displacement64() as i64;
        match instruction.mnemonic() {
            Mnemonic::Leave => {
                self.stack = self.frame.map(|frame| frame - 8);
                self.frame = None;
                return;
            }
            Mnemonic::Cmp | Mnemonic::Test => return,
            Mnemonic::Mov | Mnemonic::Lea if has_register => {
                let from = match (instruction.mnemonic(), instruction.op1_kind()) {
                    (Mnemonic::Mov, OpKind::Register) => self.of(instruction.op1_register()),
                    (Mnemonic::Lea, OpKind::Memory)
                        if instruction.memory_index() == Register::None =>
                    {
                        let base = self.of(instruction.memory_base());
                        base.map(|depth| depth - displacement)
                    }
                    _ => None,
                };
                match first {
                    Register::RSP => self.stack = from,
                    Register::RBP => self.frame = from,
                    Register::EBP => self.frame = None,
                    _ => {}
                }
                return;
            }
            Mnemonic::Sub if has_register && first == Register::RSP => {
                self.stack = self.stack.zip(immediate()).map(|(depth, n)| depth + n);
                return;
            }
            Mnemonic::Add if has_register && first == Register::RSP => {
                self.stack = self.stack.zip(immediate()).map(|(depth, n)| depth - n);
                return;
            }
            Mnemonic::Push => {}
            _ if has_register && first == Register::RSP => {
                self.stack = None;
                return;
            }
            _ if has_register && matches!(first, Register::RBP | Register::EBP) => {
                self.frame = None
            }
            _ => {}
        }
        let moved = i64::from(instruction.stack_pointer_increment());
        self.stack = self.stack.map(|depth| depth - moved);
    }

    fn of(&self, register: Register) -> Option<i64> {
        match register {
            Register::RSP => self.stack,
            Register::RBP => self.frame,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(bytes: &[u8]) -> bool {
        let text = [(0x1000u64, bytes)];
        let function = 0x1000..0x1000 + bytes.len() as u64;
        let code = Code::new(&text, &[], std::slice::from_ref(&function), &[]);
        may_take_stack_arguments(&code, &function)
    }

    #[test]
    fn arguments_on_the_stack_are_found() {
        // push rbp; mov rbp, rsp; sub rsp, 32; mov rax, [rbp + 16]; leave; ret
        assert!(takes(
            b"\x55\x48\x89\xe5\x48\x83\xec\x20\x48\x8b\x45\x10\xc9\xc3"
        ));
        // push rbx; sub rsp, 16; mov rax, [rsp + 32]; add rsp, 16; pop rbx; ret
        assert!(takes(
            b"\x53\x48\x83\xec\x10\x48\x8b\x44\x24\x20\x48\x83\xc4\x10\x5b\xc3"
        ));
        // jmp over; over: mov rax, [rsp + 8]; ret
        assert!(takes(b"\xeb\x01\xcc\x48\x8b\x44\x24\x08\xc3"));
    }

    #[test]
    fn what_is_the_function_s_own_is_not_taken_for_them() {
        // The same with pushed values: [rbp + 8] and [rsp + 24] are the return address.
        assert!(!takes(
            b"\x55\x48\x89\xe5\x48\x83\xec\x20\x48\x8b\x45\x08\xc9\xc3"
        ));
        assert!(!takes(
            b"\x53\x48\x83\xec\x10\x48\x8b\x44\x24\x18\x48\x83\xc4\x10\x5b\xc3"
        ));
        // test edi, edi; je +4; push rbx; pop rbx; ret... and rbp as any other register: mov rbp, rdi; mov rax, [rbp + 64]
        assert!(!takes(
            b"\x85\xff\x74\x02\x53\x5b\x55\x48\x89\xfd\x48\x8b\x45\x40\x5d\xc3"
        ));
        // After the frame is gone: push rbp; mov rbp, rsp; leave; mov rax, [rsp]; ret
        assert!(!takes(b"\x55\x48\x89\xe5\xc9\x48\x8b\x04\x24\xc3"));
    }
}
