//! Routine that pads call to find the counters of the current thread.

use crate::Refusal;
use crate::assembler::Assembler;
use crate::counts::CountsLayout;

/// Maximum number of entries that a thread examines to find its own.
const MOST_TRIES: u32 = 64;
/// Thread pointer that marks an entry of the table as reserved; no thread has it.
const RESERVED: u8 = 1;

/// Emits the routine by which a thread finds its block. In: rcx, the thread pointer; rax, the first entry to examine.
/// Out: rax, the block, or 0 in a forked process. Changes no other register except the flags.
///
/// A signal handler may interrupt the routine and run it too. An entry is reserved first, and gets the thread pointer
/// only when it is complete, so that the handler takes its own entry. The caller increments with a lock prefix, because
/// several threads use block 0.
pub(crate) fn find_block(
    at: u64,
    table_pointer: u64,
    counts: &CountsLayout,
) -> Result<Vec<u8>, Refusal> {
    let word = |value: u64| (value as u32).to_le_bytes();
    let mut code = Assembler::new(at);
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
