//! Instructions that a jump displaces, and the same ones at another address.

use crate::Refusal;
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code as Opcode, Encoder, FastFormatter, FlowControl,
    Instruction, InstructionBlock, Mnemonic, OpKind, Register,
};

/// An instruction as text.
pub fn assembly(instruction: &Instruction) -> String {
    let mut text = String::new();
    let mut formatter = FastFormatter::new();
    formatter
        .options_mut()
        .set_space_after_operand_separator(true);
    formatter.options_mut().set_uppercase_hex(false);
    formatter.options_mut().set_use_hex_prefix(true);
    formatter.format(instruction, &mut text);
    text
}

/// Whether an instruction does the same at any address, once its operands are adapted.
pub(crate) fn check_movable(instruction: &Instruction) -> Result<(), Refusal> {
    let immovable = || Refusal::Immovable {
        instruction: assembly(instruction),
    };
    let is_movable = match instruction.flow_control() {
        FlowControl::Next => !is_bound_to_its_place(instruction),
        FlowControl::ConditionalBranch => is_plain_conditional(instruction),
        FlowControl::UnconditionalBranch => instruction.is_jmp_short_or_near(),
        FlowControl::IndirectBranch => instruction.is_jmp_near_indirect(),
        FlowControl::Return => matches!(instruction.mnemonic(), Mnemonic::Ret),
        FlowControl::Call => instruction.is_call_near(),
        FlowControl::IndirectCall => {
            instruction.is_call_near_indirect() && !refers_to_stack_pointer(instruction)
        }
        // A transaction would be aborted to code elsewhere; interrupts and system calls leave the thread in the pad
        // for as long as they take.
        FlowControl::XbeginXabortXend | FlowControl::Interrupt | FlowControl::Exception => false,
    };
    is_movable.then_some(()).ok_or_else(immovable)
}

/// Loops and jumps on rcx have no form with a wide displacement.
fn is_plain_conditional(instruction: &Instruction) -> bool {
    instruction.is_jcc_short_or_near()
}

fn is_bound_to_its_place(instruction: &Instruction) -> bool {
    instruction.is_privileged()
        || matches!(
            instruction.mnemonic(),
            // Behind the entry, this is where indirect branches may arrive.
            Mnemonic::Endbr64
                | Mnemonic::Endbr32
                | Mnemonic::Syscall
                | Mnemonic::Sysenter
                | Mnemonic::Hlt
                | Mnemonic::In
                | Mnemonic::Out
        )
}

/// A relocated call pushes its return address first, which moves rsp.
fn refers_to_stack_pointer(instruction: &Instruction) -> bool {
    let of_memory = [instruction.memory_base(), instruction.memory_index()];
    of_memory.contains(&Register::RSP)
        || (instruction.op0_kind() == OpKind::Register
            && instruction.op0_register() == Register::RSP)
}

/// Whether the next instruction is never executed after this one.
pub(crate) fn ends_here(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return
    )
}

/// Whether an instruction is a call.
pub(crate) fn is_call(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    )
}

/// The machine code of displaced instructions at `address`. A call, which can only be the last one, becomes a push
/// of the return address that it would have pushed at its own place, and a jump: its callee returns to the
/// function, and a backtrace through it is the original one.
pub(crate) fn relocated(instructions: &[Instruction], address: u64) -> Result<Vec<u8>, Refusal> {
    let (plain, call) = match instructions.split_last() {
        Some((last, before)) if is_call(last) => (before, Some(last)),
        _ => (instructions, None),
    };
    let mut code = Vec::new();
    if !plain.is_empty() {
        code = encoded(plain, address)?;
    }
    if let Some(call) = call {
        push_address(call.next_ip(), &mut code);
        let jump = jump_in_place_of(call)?;
        code.extend(encoded(&[jump], address.wrapping_add(code.len() as u64))?);
    }
    Ok(code)
}

fn encoded(instructions: &[Instruction], address: u64) -> Result<Vec<u8>, Refusal> {
    if let [only] = instructions
        && !only.is_ip_rel_memory_operand()
        && only.flow_control() == FlowControl::Next
    {
        let mut encoder = Encoder::new(64);
        encoder
            .encode(only, address)
            .map_err(|_| Refusal::OutOfReach)?;
        return Ok(encoder.take_buffer());
    }
    let block = InstructionBlock::new(instructions, address);
    BlockEncoder::encode(64, block, BlockEncoderOptions::NONE)
        .map(|encoded| encoded.code_buffer)
        .map_err(|_| Refusal::OutOfReach)
}

/// `push imm32` extends the sign; the upper half is then written over.
fn push_address(address: u64, code: &mut Vec<u8>) {
    code.push(0x68);
    code.extend((address as u32).to_le_bytes());
    // mov dword [rsp + 4], imm32
    code.extend([0xc7, 0x44, 0x24, 0x04]);
    code.extend(((address >> 32) as u32).to_le_bytes());
}

fn jump_in_place_of(call: &Instruction) -> Result<Instruction, Refusal> {
    let mut jump = *call;
    let code = match call.code() {
        Opcode::Call_rel32_64 => Opcode::Jmp_rel32_64,
        Opcode::Call_rm64 => Opcode::Jmp_rm64,
        _ => {
            return Err(Refusal::Immovable {
                instruction: assembly(call),
            });
        }
    };
    jump.set_code(code);
    Ok(jump)
}
