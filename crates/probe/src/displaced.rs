//! Instructions that a jump displaces, and their equivalents at another address.

use crate::Refusal;
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code as Opcode, Decoder, DecoderOptions, Encoder,
    FastFormatter, FlowControl, Instruction, InstructionBlock, Mnemonic, OpKind, Register,
};

/// Returns an instruction as text.
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

/// Checks that an instruction has the same effect at any address, after its operands are adapted.
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
        // A transaction would abort to code outside the pad. Software interrupts and system calls would keep the thread
        // in the pad for their duration.
        FlowControl::XbeginXabortXend | FlowControl::Interrupt | FlowControl::Exception => false,
    };
    is_movable.then_some(()).ok_or_else(immovable)
}

/// Returns true for conditional jumps that have a form with a wide displacement, unlike loops and jumps on rcx.
fn is_plain_conditional(instruction: &Instruction) -> bool {
    instruction.is_jcc_short_or_near()
}

fn is_bound_to_its_place(instruction: &Instruction) -> bool {
    instruction.is_privileged()
        || matches!(
            instruction.mnemonic(),
            // An endbr64 after the entry may be the target of an indirect branch.
            Mnemonic::Endbr64
                | Mnemonic::Endbr32
                | Mnemonic::Syscall
                | Mnemonic::Sysenter
                | Mnemonic::Hlt
                | Mnemonic::In
                | Mnemonic::Out
        )
}

/// Returns true if an instruction uses rsp. A relocated call first pushes its return address, which changes rsp.
fn refers_to_stack_pointer(instruction: &Instruction) -> bool {
    let of_memory = [instruction.memory_base(), instruction.memory_index()];
    of_memory.contains(&Register::RSP)
        || (instruction.op0_kind() == OpKind::Register
            && instruction.op0_register() == Register::RSP)
}

/// Returns true if control never continues from this instruction to the next.
pub(crate) fn ends_here(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return
    )
}

/// Returns true if an instruction is a call.
pub(crate) fn is_call(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    )
}

/// Returns the machine code of displaced instructions at `address`. A call, which can only be the last instruction,
/// becomes a push of its original return address and a jump. So the callee returns to the function itself, and a
/// backtrace through the call looks like the original one.
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

/// Returns true if code at `address` is the correct result of `relocated` for these instructions. The code is decoded
/// again, and each instruction must have the same operands, address the same memory, and branch to the same target.
pub(crate) fn is_same(instructions: &[Instruction], code: &[u8], address: u64) -> bool {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    for original in instructions {
        let is_same = if is_call(original) {
            let push = decoder.decode();
            let upper = decoder.decode();
            let jump = decoder.decode();
            let back = original.next_ip();
            push.mnemonic() == Mnemonic::Push
                && push.immediate32to64() as u32 == back as u32
                && upper.code() == Opcode::Mov_rm32_imm32
                && upper.memory_base() == Register::RSP
                && upper.memory_index() == Register::None
                && upper.memory_displacement64() == 4
                && upper.immediate32() == (back >> 32) as u32
                && jump_in_place_of(original).is_ok_and(|wanted| is_alike(&wanted, &jump))
        } else {
            is_alike(original, &decoder.decode())
        };
        if !is_same {
            return false;
        }
    }
    decoder.position() == code.len()
}

fn is_alike(original: &Instruction, copy: &Instruction) -> bool {
    let is_branch = |i: &Instruction| matches!(i.op0_kind(), OpKind::NearBranch64);
    if is_branch(original) {
        return is_branch(copy)
            && original.mnemonic() == copy.mnemonic()
            && original.near_branch_target() == copy.near_branch_target();
    }
    // The displacement of a relative operand differs, but its target address does not. The comparison of instructions
    // covers immediates and the lengths of prefixes, but not the position.
    original.code() == copy.code()
        && original.op_count() == copy.op_count()
        && (0..original.op_count()).all(|n| {
            original.op_kind(n) == copy.op_kind(n)
                && match original.op_kind(n) {
                    OpKind::Register => original.op_register(n) == copy.op_register(n),
                    OpKind::Memory => true,
                    kind if is_immediate(kind) => original.immediate(n) == copy.immediate(n),
                    _ => true,
                }
        })
        && original.memory_base() == copy.memory_base()
        && original.memory_index() == copy.memory_index()
        && original.memory_index_scale() == copy.memory_index_scale()
        && original.memory_displacement64() == copy.memory_displacement64()
        && original.memory_segment() == copy.memory_segment()
        && original.memory_size() == copy.memory_size()
        && original.has_lock_prefix() == copy.has_lock_prefix()
        && original.has_rep_prefix() == copy.has_rep_prefix()
        && original.has_repne_prefix() == copy.has_repne_prefix()
        && original.op_mask() == copy.op_mask()
        && original.zeroing_masking() == copy.zeroing_masking()
        && original.rounding_control() == copy.rounding_control()
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate8_2nd
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
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

/// `push imm32` sign-extends its operand; the upper half is then overwritten.
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
