//! Machine code of pads.
//!
//! A pad preserves all registers, the flags and the red zone. At the entry of a function, the ABI lets some registers
//! be clobbered, but GCC's -fipa-ra and assembly rely on more than the ABI promises.

use crate::assembler::{Assembler, distance, moved_by};
use crate::counts::CountsLayout;
use crate::{Condition, JUMP_BYTES, Plan, Refusal};

/// The pad of one function.
#[derive(Clone, Debug)]
pub struct Pad {
    /// Address of the pad.
    pub at: u64,
    /// Machine code of the pad.
    pub code: Vec<u8>,
    /// Offset in the code where the displaced instructions begin.
    pub displaced_at: usize,
    /// Offset in the code at which the displaced instructions end.
    pub displaced_end: usize,
    /// Instructions that the jump displaces, as text.
    pub displaced: Vec<String>,
    /// Address of the jump that leads to the pad.
    pub from: u64,
    /// Original bytes.
    pub original: [u8; JUMP_BYTES],
    /// Bytes of the jump.
    pub jump: [u8; JUMP_BYTES],
}

/// Memory that all pads of an area refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    /// Address in the area of the pointer to the table.
    pub table_pointer: u64,
    /// Address of the routine by which a thread finds its block.
    pub find_block: u64,
    /// Address in the area of the pointer to the code that examines arguments and stacks.
    pub hit_pointer: u64,
}

/// Role of a pad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// At the entry: counts calls.
    Counts,
    /// At the entry: counts calls and stores the time.
    Begins,
    /// At an exit: records the duration of the call.
    Ends,
}

/// Task of one pad.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task<'p> {
    /// Displaced instructions.
    pub plan: &'p Plan,
    /// Difference between an address in the process and the same address in the plan.
    pub bias: u64,
    /// Number of the probe, which selects the counter.
    pub probe: usize,
    /// Layout of the counting memory.
    pub layout: &'p CountsLayout,
    /// Role of the pad.
    pub role: Role,
    /// Conditions that a call must meet to count.
    pub conditions: &'p [Condition],
}

/// Upper bound on the size of a pad without its conditions.
const MOST_PAD_BYTES: u64 = 320;
/// Size of the call to the code that examines arguments and stacks.
const HIT_BYTES: u64 = 96;
/// Size of one condition.
const CONDITION_BYTES: u64 = 19;
/// Number of conditions that a pad can check.
pub const MOST_CONDITIONS: usize = 6;

impl Assembler {
    /// Stores the stack pointer and the time of an entry. In: rax, the block. Changes rax, rcx and the flags.
    ///
    /// Entries at or below this stack pointer have ended without notice (by an exception or longjmp). A signal handler
    /// that interrupts this routine leaves as many entries as it found, and its stack is below this stack pointer.
    fn note_begin(&mut self, layout: &CountsLayout, probe: usize, pushed: u32) {
        let word = |value: u64| (value as u32).to_le_bytes();
        let waiting = layout.waiting();
        self.put(b"\x52\x56"); // push rdx; push rsi
        self.put(b"\x48\x89\xc1"); // mov rcx, rax
        self.put(b"\x48\x8d\xb4\x24"); // lea rsi, [rsp + pushed]
        self.put(&pushed.to_le_bytes());
        self.put(b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0"); // rdtsc; shl rdx, 32; or rax, rdx
        self.put(b"\x48\x8b\x91"); // mov rdx, [rcx + depth]
        self.put(&word(layout.depth()));
        self.put(b"\x48\x85\xd2"); // next: test rdx, rdx
        self.put(b"\x74\x10"); // jz store
        self.put(b"\x48\x39\xb4\x11"); // cmp [rcx + rdx + waiting - 32], rsi
        self.put(&word(
            waiting.wrapping_sub(u64::from(CountsLayout::WAITING_ENTRY)),
        ));
        self.put(b"\x77\x06"); // ja store
        self.put(&[0x48, 0x83, 0xea, CountsLayout::WAITING_ENTRY]); // sub rdx, 32
        self.put(b"\xeb\xeb"); // jmp next
        self.put(b"\x48\x81\xfa"); // store: cmp rdx, waiting_bytes
        self.put(&word(CountsLayout::WAITING_BYTES));
        let full = self.put_forward(b"\x0f\x83"); // jae full
        self.put(b"\x48\x89\xb4\x11"); // mov [rcx + rdx + waiting], rsi
        self.put(&word(waiting));
        self.put(b"\x48\x89\x84\x11"); // mov [rcx + rdx + waiting + 8], rax
        self.put(&word(waiting + 8));
        self.put(b"\x48\xc7\x84\x11"); // mov qword [rcx + rdx + waiting + 16], probe
        self.put(&word(waiting + 16));
        self.put(&word(probe as u64));
        self.put(&[0x48, 0x83, 0xc2, CountsLayout::WAITING_ENTRY]); // add rdx, 32
        self.put(b"\x48\x89\x91"); // mov [rcx + depth], rdx
        self.put(&word(layout.depth()));
        self.arrive(full);
        self.put(b"\x5e\x5a"); // full: pop rsi; pop rdx
    }

    /// Calls the code that examines arguments and stacks. In: rax, the block. Changes the flags and rcx, but not rax.
    ///
    /// The code consists of general-purpose instructions only, and preserves the callee-saved registers of the psABI.
    /// This routine saves the others. It stores the first six arguments in adjacent words for the code.
    fn call_hit(&mut self, probe: usize, pushed: u32, shared: Shared) -> Result<(), Refusal> {
        self.put(b"\x41\x53\x41\x52\x50"); // push r11; push r10; push rax
        self.put(b"\x41\x51\x41\x50"); // push r9; push r8
        // The caller's rcx is below the caller's rax: push qword [rsp + pushed - 16 - 128 + 5 * 8]
        self.put(b"\xff\xb4\x24");
        self.put(&(pushed - 128 - 16 + 5 * 8).to_le_bytes());
        self.put(b"\x52\x56\x57"); // push rdx; push rsi; push rdi
        self.put(b"\x48\x89\xc7"); // mov rdi, rax
        self.put(b"\xbe"); // mov esi, probe
        self.put(&(probe as u32).to_le_bytes());
        self.put(b"\x48\x89\xe2"); // mov rdx, rsp
        self.put(b"\x48\x8d\x8c\x24"); // lea rcx, [rsp + pushed + 9 * 8]
        self.put(&(pushed + 9 * 8).to_le_bytes());
        self.put(b"\x49\x89\xe8"); // mov r8, rbp
        self.put_relative(b"\xff\x15", shared.hit_pointer)?; // call [rip + hit]
        // The stack must not contain an address that looks like a return into the pad: mov qword [rsp - 8], 0
        self.put(b"\x48\xc7\x44\x24\xf8\0\0\0\0");
        self.put(b"\x5f\x5e\x5a\x59"); // pop rdi; pop rsi; pop rdx; pop rcx
        self.put(b"\x41\x58\x41\x59"); // pop r8; pop r9
        self.put(b"\x58\x41\x5a\x41\x5b"); // pop rax; pop r10; pop r11
        Ok(())
    }
}

impl Role {
    /// Returns an upper bound on the size of a pad with this role.
    pub(crate) fn most_bytes(self, conditions: usize) -> u64 {
        let plain = match self {
            Role::Counts => 192,
            Role::Begins | Role::Ends => MOST_PAD_BYTES,
        };
        plain + 2 * HIT_BYTES + conditions as u64 * CONDITION_BYTES
    }
}

impl Pad {
    /// Returns the machine code as text.
    pub fn assembly(&self) -> Vec<String> {
        use iced_x86::{Decoder, DecoderOptions};
        let decoder = Decoder::with_ip(64, &self.code, self.at, DecoderOptions::NONE);
        decoder.into_iter().map(|i| crate::assembly(&i)).collect()
    }

    /// Creates the pad at `at`.
    pub(crate) fn new(task: &Task<'_>, at: u64, shared: Shared) -> Result<Pad, Refusal> {
        match task.role {
            Role::Ends => Pad::at_exit(task, at, shared),
            Role::Counts | Role::Begins => Pad::at_entry(task, at, shared),
        }
    }

    fn at_entry(task: &Task<'_>, at: u64, shared: Shared) -> Result<Pad, Refusal> {
        let Task {
            plan,
            bias,
            probe,
            role,
            layout,
            conditions,
        } = *task;
        // More conditions would not fit into MOST_PAD_BYTES.
        debug_assert!(conditions.len() <= MOST_CONDITIONS);
        let entry = plan.at.wrapping_add(bias);
        let counter = (CountsLayout::counter(probe) as u32).to_le_bytes();
        let mut pad = Assembler::new(at);
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
        // 128 bytes, rax, rcx, and perhaps flags.
        let pushed = 128 + 8 * if plan.flags_are_dead { 2 } else { 3 };
        let call_hit = pad.here();
        if layout.has_events() {
            pad.call_hit(probe, pushed, shared)?;
        }
        if role == Role::Begins {
            // rdx and rsi are above too.
            pad.note_begin(layout, probe, pushed + 16);
        }
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
        pad.put_relocated(&moved)?;
        let displaced_end = pad.code.len();
        if plan.goes_on {
            let back = entry.wrapping_add(plan.displaced_bytes as u64);
            pad.put_relative(b"\xe9", back)?;
        }
        pad.arrive(slow);
        pad.put_relative(b"\xe8", shared.find_block)?; // call find_block
        // The stack must not contain an address that looks like a return into the pad: mov qword [rsp - 8], 0
        pad.put(b"\x48\xc7\x44\x24\xf8\0\0\0\0");
        pad.put(b"\x48\x85\xc0"); // test rax, rax
        pad.put_relative(b"\x0f\x84", counted)?; // jz counted
        pad.put(b"\xf0\x48\xff\x80"); // lock inc qword [rax + counter]
        pad.put(&counter);
        let mut next = counted;
        if layout.has_events() {
            if role == Role::Begins {
                // The call is made first, because otherwise a thread without its own block would store the time of a
                // call in a shared block.
                pad.call_hit(probe, pushed, shared)?;
            } else {
                next = call_hit;
            }
        }
        pad.put_relative(b"\xe9", next)?; // jmp next
        let mut jump = [0xe9; JUMP_BYTES];
        jump[1..].copy_from_slice(&distance(entry.wrapping_add(JUMP_BYTES as u64), at)?);
        Ok(Pad {
            at,
            displaced: plan.assembly(),
            from: entry,
            original: plan.original,
            code: pad.code,
            displaced_at,
            displaced_end,
            jump,
        })
    }

    /// Creates the pad in front of an instruction that leaves the function. All registers and flags may contain
    /// results.
    fn at_exit(task: &Task<'_>, at: u64, shared: Shared) -> Result<Pad, Refusal> {
        let Task {
            plan,
            bias,
            probe,
            layout,
            ..
        } = *task;
        let word = |value: u64| (value as u32).to_le_bytes();
        let moved: Vec<_> = plan.displaced.iter().map(|i| moved_by(i, bias)).collect();
        let (before, exit) = moved.split_at(moved.len().saturating_sub(1));
        let (waiting, histogram) = (layout.waiting(), layout.histogram(probe));
        let mut pad = Assembler::new(at);
        pad.put_relocated(before)?;
        pad.put(b"\x48\x8d\x64\x24\x80"); // lea rsp, [rsp - 128]
        pad.put(b"\x50\x51"); // push rax; push rcx
        pad.put(b"\x9f\x0f\x90\xc0\x50"); // lahf; seto al; push rax
        pad.put(b"\x52\x56"); // push rdx; push rsi
        pad.put(b"\x48\x8d\xb4\x24\xa8\0\0\0"); // lea rsi, [rsp + 128 + 40]
        pad.put(b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0"); // rdtsc; shl rdx, 32; or rax, rdx
        pad.put(b"\x50"); // push rax
        pad.put(b"\x64\x48\x8b\x0c\x25\0\0\0\0"); // mov rcx, fs:[0]
        pad.put(b"\x69\xc1\xb1\x79\x37\x9e"); // imul eax, ecx, 0x9e3779b1
        pad.put(b"\xc1\xe8\x10"); // shr eax, 16
        pad.put(b"\x25\xf0\xff\x00\x00"); // and eax, 0xfff0
        pad.put_relative(b"\x48\x03\x05", shared.table_pointer)?; // add rax, [rip + table]
        pad.put(b"\x48\x39\x08"); // cmp [rax], rcx
        let other = pad.put_forward(b"\x0f\x85"); // jne out: this thread has noted nothing
        pad.put(b"\x48\x8b\x48\x08"); // mov rcx, [rax + 8]
        pad.put(b"\x48\x8b\x91"); // mov rdx, [rcx + depth]
        pad.put(&word(layout.depth()));
        let next = pad.here();
        pad.put(b"\x48\x85\xd2"); // test rdx, rdx
        let none = pad.put_forward(b"\x0f\x84"); // jz out
        pad.put(b"\x48\x83\xea\x20"); // sub rdx, 32
        pad.put(b"\x48\x39\xb4\x11"); // cmp [rcx + rdx + waiting], rsi
        pad.put(&word(waiting));
        pad.put_relative(b"\x0f\x82", next)?; // jb next: ended in another way
        let above = pad.put_forward(b"\x0f\x85"); // jne out: a caller's
        pad.put(b"\x48\x89\x91"); // mov [rcx + depth], rdx
        pad.put(&word(layout.depth()));
        pad.put(b"\x48\x81\xbc\x11"); // cmp qword [rcx + rdx + waiting + 16], probe
        pad.put(&word(waiting + 16));
        pad.put(&word(probe as u64));
        let foreign = pad.put_forward(b"\x0f\x85"); // jne out
        pad.put(b"\x48\x8b\x04\x24"); // mov rax, [rsp]
        pad.put(b"\x48\x2b\x84\x11"); // sub rax, [rcx + rdx + waiting + 8]
        pad.put(&word(waiting + 8));
        pad.put(b"\x73\x02\x31\xc0"); // jae over the next; xor eax, eax: counters of two processors differ
        pad.put(b"\x48\x39\x81"); // cmp [rcx + longest], rax
        pad.put(&word(histogram));
        pad.put(b"\x73\x07"); // jae over the next
        pad.put(b"\x48\x89\x81"); // mov [rcx + longest], rax
        pad.put(&word(histogram));
        // The shortest class: cmp rax, 8; jae over the next instruction; mov eax, 8
        pad.put(b"\x48\x83\xf8\x08\x73\x05\xb8\x08\0\0\0");
        pad.put(b"\x48\x89\xce"); // mov rsi, rcx
        pad.put(b"\x48\x0f\xbd\xc8"); // bsr rcx, rax
        pad.put(b"\x83\xe9\x03"); // sub ecx, 3
        pad.put(b"\x48\xd3\xe8"); // shr rax, cl
        pad.put(b"\x48\x8d\x44\xc8\xf8"); // lea rax, [rax + rcx * 8 - 8]
        pad.put(b"\x48\xff\x84\xc6"); // inc qword [rsi + rax * 8 + classes]
        pad.put(&word(histogram + 8));
        for branch in [other, none, above, foreign] {
            pad.arrive(branch);
        }
        pad.put(b"\x58\x5e\x5a"); // out: pop rax; pop rsi; pop rdx
        pad.put(b"\x58\x04\x7f\x9e"); // pop rax; add al, 127; sahf
        pad.put(b"\x59\x58"); // pop rcx; pop rax
        pad.put(b"\x48\x8d\xa4\x24\x80\0\0\0"); // lea rsp, [rsp + 128]
        let displaced_at = pad.code.len();
        pad.put_relocated(exit)?;
        let entry = plan.at.wrapping_add(bias);
        let mut jump = [0xe9; JUMP_BYTES];
        jump[1..].copy_from_slice(&distance(entry.wrapping_add(JUMP_BYTES as u64), at)?);
        Ok(Pad {
            at,
            displaced: plan.assembly(),
            from: entry,
            original: plan.original,
            displaced_end: pad.code.len(),
            code: pad.code,
            displaced_at,
            jump,
        })
    }
}
