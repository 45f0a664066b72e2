//! Assembler for the machine code of pads.

use crate::Refusal;
use crate::displaced::{is_same, relocated};
use iced_x86::Instruction;

/// Machine code under construction.
pub(crate) struct Assembler {
    at: u64,
    pub(crate) code: Vec<u8>,
}

impl Assembler {
    pub(crate) fn new(at: u64) -> Assembler {
        Assembler {
            at,
            code: Vec::new(),
        }
    }

    /// Pads to a multiple of 16.
    pub(crate) fn align(&mut self) {
        while !self.here().is_multiple_of(16) {
            self.code.push(0xcc);
        }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.code.extend(bytes);
    }

    pub(crate) fn here(&self) -> u64 {
        self.at + self.code.len() as u64
    }

    /// Appends an instruction whose last field is a displacement, with `to` as its target.
    pub(crate) fn put_relative(&mut self, opcode: &[u8], to: u64) -> Result<(), Refusal> {
        self.put(opcode);
        let distance = distance(self.here() + 4, to)?;
        self.put(&distance);
        Ok(())
    }

    /// Appends a forward branch with a displacement that [`Assembler::arrive`] fills in.
    pub(crate) fn put_forward(&mut self, opcode: &[u8]) -> usize {
        self.put(opcode);
        self.put(&[0; 4]);
        self.code.len()
    }

    /// Appends instructions with the same effect as at their original address, and verifies the result by decoding it
    /// again.
    pub(crate) fn put_relocated(&mut self, instructions: &[Instruction]) -> Result<(), Refusal> {
        let code = relocated(instructions, self.here())?;
        if !is_same(instructions, &code, self.here()) {
            return Err(Refusal::OutOfReach);
        }
        self.put(&code);
        Ok(())
    }

    pub(crate) fn arrive(&mut self, branch: usize) {
        let distance = (self.code.len() - branch) as u32;
        self.code[branch - 4..branch].copy_from_slice(&distance.to_le_bytes());
    }
}

pub(crate) fn distance(from: u64, to: u64) -> Result<[u8; 4], Refusal> {
    let distance = to.wrapping_sub(from) as i64;
    i32::try_from(distance)
        .map(i32::to_le_bytes)
        .map_err(|_| Refusal::OutOfReach)
}

/// Moves an instruction that was decoded at another address to its address in the process.
pub(crate) fn moved_by(instruction: &Instruction, bias: u64) -> Instruction {
    use iced_x86::OpKind::{NearBranch16, NearBranch32, NearBranch64};
    let mut moved = *instruction;
    moved.set_ip(instruction.ip().wrapping_add(bias));
    if matches!(
        instruction.op0_kind(),
        NearBranch16 | NearBranch32 | NearBranch64
    ) {
        moved.set_near_branch64(instruction.near_branch_target().wrapping_add(bias));
    }
    if instruction.is_ip_rel_memory_operand() {
        let to = instruction.ip_rel_memory_address().wrapping_add(bias);
        moved.set_memory_displacement64(to);
    }
    moved
}
