//! The machine code of pads.
//!
//! A pad leaves all registers, the flags and the red zone as it found them: at the entry of a function the ABI would
//! give away some registers, but GCC's -fipa-ra and assembly count on what the ABI does not promise.

use crate::counts::CountsLayout;
use crate::displaced::{is_same, relocated};
use crate::{Condition, JUMP_BYTES, Plan, Refusal};

/// Entries that a thread looks at to find its own.
const MOST_TRIES: u32 = 64;
/// Reserves an entry of the table; no thread has this thread pointer.
const RESERVED: u8 = 1;

/// The pad of one function.
#[derive(Clone, Debug)]
pub struct Pad {
    /// Where it is.
    pub at: u64,
    /// Its machine code.
    pub code: Vec<u8>,
    /// Where in the code the displaced instructions begin.
    pub displaced_at: usize,
    /// Where in the code they end.
    pub displaced_end: usize,
    /// What the function's entry will hold.
    pub jump: [u8; JUMP_BYTES],
}

/// The memory that all pads of an area refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    /// Where the area keeps the address of the table.
    pub table_pointer: u64,
    /// Where the routine is by which a thread finds its block.
    pub find_block: u64,
}

/// What one pad does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task<'p> {
    /// What is displaced.
    pub plan: &'p Plan,
    /// What to add to the plan's addresses for those in the process.
    pub bias: u64,
    /// The number of the probe, whose counter it is.
    pub probe: usize,
    /// Which calls count: those that meet all of them.
    pub conditions: &'p [Condition],
}

/// More than any pad takes.
pub(crate) const MOST_PAD_BYTES: u64 = 384;
/// Conditions that a pad can check.
pub const MOST_CONDITIONS: usize = 6;

struct Assembler {
    at: u64,
    code: Vec<u8>,
}

impl Assembler {
    fn put(&mut self, bytes: &[u8]) {
        self.code.extend(bytes);
    }

    fn here(&self) -> u64 {
        self.at + self.code.len() as u64
    }

    /// An instruction that ends with a displacement to `to`.
    fn put_relative(&mut self, opcode: &[u8], to: u64) -> Result<(), Refusal> {
        self.put(opcode);
        let distance = distance(self.here() + 4, to)?;
        self.put(&distance);
        Ok(())
    }

    /// A branch forward by a displacement that is filled in by [`Assembler::arrive`].
    fn put_forward(&mut self, opcode: &[u8]) -> usize {
        self.put(opcode);
        self.put(&[0; 4]);
        self.code.len()
    }

    fn arrive(&mut self, branch: usize) {
        let distance = (self.code.len() - branch) as u32;
        self.code[branch - 4..branch].copy_from_slice(&distance.to_le_bytes());
    }
}

fn distance(from: u64, to: u64) -> Result<[u8; 4], Refusal> {
    let distance = to.wrapping_sub(from) as i64;
    i32::try_from(distance)
        .map(i32::to_le_bytes)
        .map_err(|_| Refusal::OutOfReach)
}

impl Pad {
    /// Its machine code as text.
    pub fn assembly(&self) -> Vec<String> {
        use iced_x86::{Decoder, DecoderOptions};
        let decoder = Decoder::with_ip(64, &self.code, self.at, DecoderOptions::NONE);
        decoder.into_iter().map(|i| crate::assembly(&i)).collect()
    }

    /// The pad at `at`.
    pub(crate) fn new(task: &Task<'_>, at: u64, shared: Shared) -> Result<Pad, Refusal> {
        let Task {
            plan,
            bias,
            probe,
            conditions,
        } = *task;
        // More would not fit into MOST_PAD_BYTES.
        debug_assert!(conditions.len() <= MOST_CONDITIONS);
        let entry = plan.at.wrapping_add(bias);
        let counter = (CountsLayout::counter(probe) as u32).to_le_bytes();
        let mut pad = Assembler {
            at,
            code: Vec::new(),
        };
        pad.put(b"\x48\x8d\x64\x24\x80"); // lea rsp, [rsp - 128]
        pad.put(b"\x50\x51"); // push rax; push rcx
        if !plan.flags_are_dead {
            pad.put(b"\x9f\x0f\x90\xc0\x50"); // lahf; seto al; push rax
        }
        let mut passed_by = Vec::new();
        for condition in conditions {
            pad.put(&condition.compare());
            passed_by.push(pad.put_forward(&condition.jump_unless()));
        }
        pad.put(b"\x64\x48\x8b\x0c\x25\0\0\0\0"); // mov rcx, fs:[0]
        pad.put(b"\x69\xc1\xb1\x79\x37\x9e"); // imul eax, ecx, 0x9e3779b1
        pad.put(b"\xc1\xe8\x10"); // shr eax, 16
        pad.put(b"\x25\xf0\xff\x00\x00"); // and eax, 0xfff0
        pad.put_relative(b"\x48\x03\x05", shared.table_pointer)?; // add rax, [rip + table]
        pad.put(b"\x48\x39\x08"); // cmp [rax], rcx
        let slow = pad.put_forward(b"\x0f\x85"); // jne slow
        pad.put(b"\x48\x8b\x40\x08"); // mov rax, [rax + 8]
        pad.put(b"\x48\xff\x80"); // inc qword [rax + counter]
        pad.put(&counter);
        let counted = pad.here();
        for branch in passed_by {
            pad.arrive(branch);
        }
        if !plan.flags_are_dead {
            pad.put(b"\x58\x04\x7f\x9e"); // pop rax; add al, 127; sahf
        }
        pad.put(b"\x59\x58"); // pop rcx; pop rax
        pad.put(b"\x48\x8d\xa4\x24\x80\0\0\0"); // lea rsp, [rsp + 128]
        let displaced_at = pad.code.len();
        let moved: Vec<_> = plan.displaced.iter().map(|i| moved_by(i, bias)).collect();
        let code = relocated(&moved, pad.here())?;
        if !is_same(&moved, &code, pad.here()) {
            return Err(Refusal::OutOfReach);
        }
        pad.put(&code);
        let displaced_end = pad.code.len();
        if plan.goes_on {
            let back = entry.wrapping_add(plan.displaced_bytes as u64);
            pad.put_relative(b"\xe9", back)?;
        }
        pad.arrive(slow);
        pad.put_relative(b"\xe8", shared.find_block)?; // call find_block
        // Nothing on the stack is to look like a way back into the pad: mov qword [rsp - 8], 0
        pad.put(b"\x48\xc7\x44\x24\xf8\0\0\0\0");
        pad.put(b"\x48\x85\xc0"); // test rax, rax
        pad.put_relative(b"\x0f\x84", counted)?; // jz counted
        pad.put(b"\xf0\x48\xff\x80"); // lock inc qword [rax + counter]
        pad.put(&counter);
        pad.put_relative(b"\xe9", counted)?; // jmp counted
        let mut jump = [0xe9; JUMP_BYTES];
        jump[1..].copy_from_slice(&distance(entry.wrapping_add(JUMP_BYTES as u64), at)?);
        debug_assert!((pad.code.len() as u64) < MOST_PAD_BYTES);
        Ok(Pad {
            at,
            code: pad.code,
            displaced_at,
            displaced_end,
            jump,
        })
    }
}

/// An instruction that was decoded at another address, as it is in the process.
fn moved_by(instruction: &iced_x86::Instruction, bias: u64) -> iced_x86::Instruction {
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

/// The routine by which a thread finds its block. In: rcx, the thread pointer; rax, the first entry to look at. Out:
/// rax, the block, or 0 in a forked process. Changes no other register, but the flags.
///
/// A signal handler may interrupt it and come here too: an entry is reserved first, and carries the thread pointer
/// only when it is complete, so that the handler takes an entry of its own. The caller increments with a lock prefix,
/// because block 0 is used by several threads.
pub(crate) fn find_block(
    at: u64,
    table_pointer: u64,
    counts: &CountsLayout,
) -> Result<Vec<u8>, Refusal> {
    let word = |value: u64| (value as u32).to_le_bytes();
    let mut code = Assembler {
        at,
        code: Vec::new(),
    };
    code.put(b"\x52\x56\x57"); // push rdx; push rsi; push rdi
    code.put_relative(b"\x48\x8b\x3d", table_pointer)?; // mov rdi, [rip + table]
    code.put(b"\x83\xbf"); // cmp dword [rdi + is_live], 0
    code.put(&word(CountsLayout::IS_LIVE));
    code.put(&[0]);
    let none = code.put_forward(b"\x0f\x84"); // je none
    code.put(b"\xbe"); // mov esi, tries
    code.put(&MOST_TRIES.to_le_bytes());
    let next = code.here();
    code.put(b"\x48\x8b\x10"); // mov rdx, [rax]
    code.put(b"\x48\x39\xca"); // cmp rdx, rcx
    let found = code.put_forward(b"\x0f\x84"); // je found
    code.put(b"\x48\x85\xd2"); // test rdx, rdx
    let claim = code.put_forward(b"\x0f\x84"); // jz claim
    code.put(b"\x48\x83\xc0\x10"); // add rax, 16
    code.put(b"\x48\x8d\x97"); // lea rdx, [rdi + entries]
    code.put(&word(CountsLayout::TABLE_ENTRY_BYTES));
    code.put(b"\x48\x39\xd0"); // cmp rax, rdx
    code.put(b"\x72\x03"); // jb over the next
    code.put(b"\x48\x89\xf8"); // mov rax, rdi
    code.put(b"\xff\xce"); // dec esi
    code.put_relative(b"\x0f\x85", next)?; // jnz next
    let common = code.here();
    code.put(b"\x48\x8b\x87"); // mov rax, [rdi + blocks_at]
    code.put(&word(CountsLayout::BLOCKS_AT));
    code.put(b"\x48\x05"); // add rax, first_block
    code.put(&word(CountsLayout::FIRST_BLOCK));
    let done = code.here();
    code.put(b"\x5f\x5e\x5a\xc3"); // pop rdi; pop rsi; pop rdx; ret
    code.arrive(found);
    code.put(b"\x48\x8b\x40\x08"); // mov rax, [rax + 8]
    code.put_relative(b"\xe9", done)?;
    code.arrive(none);
    code.put(b"\x31\xc0"); // xor eax, eax
    code.put_relative(b"\xe9", done)?;
    code.arrive(claim);
    code.put(b"\x48\x8b\x97"); // mov rdx, [rdi + blocks_at]
    code.put(&word(CountsLayout::BLOCKS_AT));
    code.put(b"\x48\x81\x7a\0"); // cmp qword [rdx], most_blocks
    code.put(&word(CountsLayout::MOST_BLOCKS));
    code.put_relative(b"\x0f\x83", common)?; // jae common
    code.put(b"\x48\x89\xc2"); // mov rdx, rax
    code.put(b"\x31\xc0"); // xor eax, eax
    code.put(b"\x51\x6a"); // push rcx; push reserved
    code.put(&[RESERVED]);
    code.put(b"\x59"); // pop rcx
    code.put(b"\xf0\x48\x0f\xb1\x0a"); // lock cmpxchg [rdx], rcx
    code.put(b"\x59"); // pop rcx
    code.put(b"\x48\x89\xd0"); // mov rax, rdx
    code.put_relative(b"\x0f\x85", next)?; // jne next: another thread was faster
    code.put(b"\x50"); // push rax
    code.put(b"\x48\x8b\x97"); // mov rdx, [rdi + blocks_at]
    code.put(&word(CountsLayout::BLOCKS_AT));
    code.put(b"\xb8\x01\0\0\0"); // mov eax, 1
    code.put(b"\xf0\x48\x0f\xc1\x02"); // lock xadd [rdx], rax
    code.put(b"\x48\x3d"); // cmp rax, most_blocks
    code.put(&word(CountsLayout::MOST_BLOCKS));
    let full = code.put_forward(b"\x0f\x83"); // jae full
    code.put(b"\x48\x69\xc0"); // imul rax, rax, block_bytes
    code.put(&word(counts.block_bytes()));
    code.put(b"\x48\x8d\x84\x10"); // lea rax, [rax + rdx + first_block]
    code.put(&word(CountsLayout::FIRST_BLOCK));
    code.put(b"\x48\x89\x08"); // mov [rax], rcx
    code.put(b"\x5a"); // pop rdx
    code.put(b"\x48\x89\x42\x08"); // mov [rdx + 8], rax
    code.put(b"\x48\x89\x0a"); // mov [rdx], rcx
    code.put_relative(b"\xe9", done)?;
    code.arrive(full);
    code.put(b"\x58"); // pop rax
    code.put_relative(b"\xe9", common)?;
    Ok(code.code)
}
