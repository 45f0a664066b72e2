//! Our memory in the target during one hold, and the code in it.
//!
//! From low to high addresses:
//!
//! ```text
//! guard page (PROT_NONE) | stack, grows down | data page | code page (read and execute)
//! ```
//!
//! The code makes a call or a system call, stores the result and a token that means "done", and rings the bell: the
//! thread sends itself a signal that is ignored by default. A tracer sees even an ignored signal (sig_ignored in
//! kernel/signal.c), so the thread stops there immediately. A trap instruction would also do that, but would kill a
//! thread that has lost its tracer. If the bell does not stop the thread, it spins for some time (`Timing::spin`), so
//! that an interrupt finds it. Then the thread returns to its own work by itself ("goes home"). It closes the
//! descriptor that it has opened for us, restores `errno`, points rsp at the signal frame on its own stack, and jumps
//! to libc's `syscall; ret` with the registers for a munmap of this memory; the `ret` leads to rt_sigreturn.
//!
//! Spinning without the bell would work, but each operation would cost a scheduler tick if this process and the thread
//! share a processor. Sleeping instead of spinning does not work: an interrupted sleep would overwrite the kernel's
//! record of the target's own sleep (the restart block).

use std::arch::global_asm;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use memhook_process::{Mapping, RemoteAddress};

pub(crate) const PAGE_BYTES: u64 = 4096;
/// Upper bound on the addresses that mmap returns without a higher hint (47 bits).
const USER_END: u64 = (1 << 47) - PAGE_BYTES;
/// Size of a stack for dlopen and the allocator that it calls. Only touched pages cost memory.
const STACK_BYTES: u64 = 256 * 1024;

/// Words of the data page, by offset.
pub(crate) mod word {
    /// rax after the operation.
    pub(crate) const RESULT: u64 = 0;
    /// Token, once the result is stored.
    pub(crate) const DONE: u64 = 8;
    /// Value to store in [`DONE`].
    pub(crate) const TOKEN: u64 = 16;
    /// Number of time stamp counter ticks to spin.
    pub(crate) const COUNTS: u64 = 24;
    /// Address of the signal frame.
    pub(crate) const FRAME: u64 = 32;
    /// Address of `syscall; ret`.
    pub(crate) const GADGET: u64 = 40;
    /// Address and length of the scratch mapping.
    pub(crate) const START: u64 = 48;
    pub(crate) const BYTES: u64 = 56;
    /// Address of the thread's errno (0 while it is unknown), and its value.
    pub(crate) const ERRNO_ADDRESS: u64 = 64;
    pub(crate) const ERRNO_VALUE: u64 = 72;
    /// Signal of the bell; 0: none.
    pub(crate) const BELL: u64 = 80;
    /// Descriptor to close on the way home, plus one; 0 or less: none, or the call that should open it failed.
    pub(crate) const OPENED: u64 = 88;
    /// Device and inode that the descriptor had when it was opened. Only this object may be closed: another thread may
    /// have closed the descriptor and opened a file of the target under the same number.
    pub(crate) const DEVICE: u64 = 96;
    pub(crate) const INODE: u64 = 104;
    /// Result of fstat(2): on x86-64 it begins with the device and inode, and is 144 bytes long (asm/stat.h).
    pub(crate) const STATUS: u64 = 112;
    /// Counter of the time for which the thread has waited for permission to make a system call; [`TAKEN`] once the
    /// thread has used the permission.
    pub(crate) const WAITS: u64 = STATUS + 144;
    /// Time stamp counter value at which the permission ends; 0: no permission.
    pub(crate) const LEAVE: u64 = WAITS + 8;
    /// End of the words; strings and structures follow.
    pub(crate) const END: u64 = LEAVE + 8;
    /// Value of [`WAITS`] when the thread is about to make the call.
    pub(crate) const TAKEN: u64 = u64::MAX;
}

global_asm!(
    r#"
    .pushsection .rodata.memhook_inject_stub, "a", @progbits
    .balign 16
    # Closes the descriptor rdi if it still is the object that was noted. The look and the call follow each other at
    # once, so no attacher that is stopped in between leaves another thread time to get the number.
    .macro memhook_close_what_was_noted
    mov qword ptr [rip + memhook_inject_stub_begin - {page} + {opened}], 0
    lea rsi, [rip + memhook_inject_stub_begin - {page} + {status}]
    mov eax, {fstat}
    syscall
    test eax, eax
    js 9f
    mov rcx, [rip + memhook_inject_stub_begin - {page} + {status}]
    cmp rcx, [rip + memhook_inject_stub_begin - {page} + {device}]
    jne 8f
    mov rcx, [rip + memhook_inject_stub_begin - {page} + {status} + 8]
    cmp rcx, [rip + memhook_inject_stub_begin - {page} + {inode}]
    jne 8f
    mov eax, {close}
    syscall
    jmp 9f
8:  mov rax, -{bad_descriptor}
9:
    .endm
    .irp label, begin, syscall, leave, open, close, each, fork, rung, home, found, end
    .globl memhook_inject_stub_\label
    .hidden memhook_inject_stub_\label
    .endr
memhook_inject_stub_begin:
    call r11
    jmp 1f
memhook_inject_stub_each:
    cmp r12, r13
    jae 2f
    mov rdi, [r12]
    add r12, 8
    call r14
    rdtsc
    shl rdx, 32
    or rax, rdx
    cmp rax, r15
    jb memhook_inject_stub_each
2:  mov rax, r12
    jmp 1f
memhook_inject_stub_fork:
    mov ebx, eax
    syscall
    test rax, rax
    js 1f
    jnz 3f
    mov eax, ebx
    syscall
    xor edi, edi
    mov eax, {exit_group}
    syscall
3:  mov rdi, rax
    xor esi, esi
    mov edx, {wait_all}
    xor r10d, r10d
    mov eax, {wait4}
    syscall
    jmp 1f
memhook_inject_stub_leave:
    push rax
    push rdx
    rdtsc
    shl rdx, 32
    or rax, rdx
    mov r11, rax
2:  pause
    add qword ptr [rip + memhook_inject_stub_begin - {page} + {waits}], 1
    rdtsc
    shl rdx, 32
    or rax, rdx
    cmp rax, [rip + memhook_inject_stub_begin - {page} + {leave}]
    jb 3f
    sub rax, r11
    cmp rax, [rip + memhook_inject_stub_begin - {page} + {counts}]
    jl 2b
    jmp memhook_inject_stub_home
3:  mov qword ptr [rip + memhook_inject_stub_begin - {page} + {waits}], -1
    pop rdx
    pop rax
    jmp rbx
memhook_inject_stub_open:
    syscall
    lea rcx, [rax + 1]
    mov [rip + memhook_inject_stub_begin - {page} + {opened}], rcx
    test rax, rax
    js 1f
    mov r9, rax
    mov rdi, rax
    lea rsi, [rip + memhook_inject_stub_begin - {page} + {status}]
    mov eax, {fstat}
    syscall
    mov rcx, [rip + memhook_inject_stub_begin - {page} + {status}]
    mov [rip + memhook_inject_stub_begin - {page} + {device}], rcx
    mov rcx, [rip + memhook_inject_stub_begin - {page} + {status} + 8]
    mov [rip + memhook_inject_stub_begin - {page} + {inode}], rcx
    mov rax, r9
    jmp 1f
memhook_inject_stub_close:
    memhook_close_what_was_noted
    jmp 1f
memhook_inject_stub_syscall:
    syscall
1:  mov [rip + memhook_inject_stub_begin - {page} + {result}], rax
    mov rax, [rip + memhook_inject_stub_begin - {page} + {token}]
    mov [rip + memhook_inject_stub_begin - {page} + {done}], rax
    cmp qword ptr [rip + memhook_inject_stub_begin - {page} + {bell}], 0
    je memhook_inject_stub_rung
    mov eax, {getpid}
    syscall
    mov edi, eax
    mov eax, {gettid}
    syscall
    mov esi, eax
    mov edx, [rip + memhook_inject_stub_begin - {page} + {bell}]
    mov eax, {tgkill}
    syscall
memhook_inject_stub_rung:
    rdtsc
    shl rdx, 32
    or rax, rdx
    mov r8, rax
2:  pause
    rdtsc
    shl rdx, 32
    or rax, rdx
    sub rax, r8
    cmp rax, [rip + memhook_inject_stub_begin - {page} + {counts}]
    jl 2b
memhook_inject_stub_home:
    mov rdi, [rip + memhook_inject_stub_begin - {page} + {opened}]
    sub rdi, 1
    js 4f
    memhook_close_what_was_noted
4:  mov rcx, [rip + memhook_inject_stub_begin - {page} + {errno_address}]
    test rcx, rcx
    jz 3f
    mov eax, [rip + memhook_inject_stub_begin - {page} + {errno_value}]
    mov [rcx], eax
3:  mov rsp, [rip + memhook_inject_stub_begin - {page} + {frame}]
    mov rdi, [rip + memhook_inject_stub_begin - {page} + {start}]
    mov rsi, [rip + memhook_inject_stub_begin - {page} + {bytes}]
    mov eax, {munmap}
    jmp [rip + memhook_inject_stub_begin - {page} + {gadget}]
memhook_inject_stub_found:
    mov eax, 1
    ret
memhook_inject_stub_end:
    .popsection

    # What this program is recognized by as one that attaches to others (`is_attacher` of the process crate): a note
    # (elf(5)) without contents, whose name is all that matters.
    .pushsection .note.memhook, "a", @note
    .balign 4
    .long 2f - 1f
    .long 0
    .long 1
1:  .asciz "memhook-rs"
2:  .balign 4
    .popsection
    "#,
    page = const PAGE_BYTES,
    result = const word::RESULT,
    token = const word::TOKEN,
    done = const word::DONE,
    counts = const word::COUNTS,
    errno_address = const word::ERRNO_ADDRESS,
    errno_value = const word::ERRNO_VALUE,
    frame = const word::FRAME,
    start = const word::START,
    bytes = const word::BYTES,
    gadget = const word::GADGET,
    bell = const word::BELL,
    opened = const word::OPENED,
    device = const word::DEVICE,
    inode = const word::INODE,
    status = const word::STATUS,
    waits = const word::WAITS,
    leave = const word::LEAVE,
    fstat = const libc::SYS_fstat,
    bad_descriptor = const libc::EBADF,
    close = const libc::SYS_close,
    getpid = const libc::SYS_getpid,
    gettid = const libc::SYS_gettid,
    tgkill = const libc::SYS_tgkill,
    munmap = const libc::SYS_munmap,
    exit_group = const libc::SYS_exit_group,
    wait4 = const libc::SYS_wait4,
    wait_all = const libc::__WALL,
);

unsafe extern "C" {
    static memhook_inject_stub_begin: u8;
    static memhook_inject_stub_syscall: u8;
    static memhook_inject_stub_leave: u8;
    static memhook_inject_stub_open: u8;
    static memhook_inject_stub_close: u8;
    static memhook_inject_stub_each: u8;
    static memhook_inject_stub_fork: u8;
    static memhook_inject_stub_rung: u8;
    static memhook_inject_stub_home: u8;
    static memhook_inject_stub_found: u8;
    static memhook_inject_stub_end: u8;
}

/// Returns the code for the code page.
pub(crate) fn stub() -> &'static [u8] {
    let begin = &raw const memhook_inject_stub_begin;
    let bytes = (&raw const memhook_inject_stub_end).addr() - begin.addr();
    // SAFETY: both labels bound one read-only object of this program, defined above.
    unsafe { std::slice::from_raw_parts(begin, bytes) }
}

/// Address of the scratch mapping, chosen before the mapping is made, so that a thread that we leave behind can unmap
/// it. The address is random, in the middle of the largest gap between mappings. The kernel does not choose such an
/// address by itself, and neither the heap nor stacks grow to it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Middle half of the gap.
    room: Range<u64>,
    address: u64,
}

impl Place {
    pub(crate) fn among(mappings: &[Mapping]) -> Place {
        let mut gap = 0..0;
        let mut end = 0;
        let used = mappings.iter().map(|m| m.start..m.end);
        for next in used.chain(std::iter::once(USER_END..USER_END)) {
            let start = next.start.min(USER_END);
            if start.saturating_sub(end) > gap.end - gap.start {
                gap = end..start;
            }
            end = end.max(next.end);
        }
        let quarter = (gap.end - gap.start) / 4;
        let mut place = Place {
            room: gap.start + quarter..gap.end - quarter,
            address: 0,
        };
        place.change();
        place
    }

    /// Returns a random address for our other memory, which is mapped for longer and must also be far from the results
    /// of mmap(2) and brk(2). `None`: the gap is too small.
    pub(crate) fn for_memory(&self, bytes: u64) -> Option<u64> {
        let pages = (self.room.end - self.room.start).checked_sub(bytes)? / PAGE_BYTES;
        let page = RandomState::new().hash_one(bytes) % pages.max(1);
        Some(self.room.start.next_multiple_of(PAGE_BYTES) + page * PAGE_BYTES)
    }

    /// Chooses another place.
    pub(crate) fn change(&mut self) {
        let room = self.room.end - self.room.start;
        let pages = room.saturating_sub(Scratch::BYTES) / PAGE_BYTES;
        let page = RandomState::new().hash_one(self.address) % pages.max(1);
        self.address = (self.room.start & !(PAGE_BYTES - 1)) + page * PAGE_BYTES;
    }

    pub(crate) fn address(&self) -> RemoteAddress {
        RemoteAddress(self.address)
    }
}

/// The scratch mapping.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    pub start: RemoteAddress,
}

impl Scratch {
    pub(crate) const BYTES: u64 = PAGE_BYTES + STACK_BYTES + 2 * PAGE_BYTES;

    pub(crate) fn stack_top(self) -> RemoteAddress {
        self.start + (PAGE_BYTES + STACK_BYTES)
    }

    /// Returns the address of the page of words.
    pub(crate) fn words(self) -> RemoteAddress {
        self.stack_top()
    }

    /// Returns the address of the space for strings and structures, up to the end of the page.
    pub(crate) fn data(self) -> RemoteAddress {
        self.words() + word::END
    }

    pub(crate) fn code(self) -> RemoteAddress {
        self.words() + PAGE_BYTES
    }

    /// Returns the entry that calls r11.
    pub(crate) fn call_entry(self) -> RemoteAddress {
        self.code()
    }

    /// Returns the entry point that calls r14 with each word from r12 to r13 (exclusive), or until the time stamp
    /// counter reaches r15. Its result is the address at which it stopped.
    pub(crate) fn each_entry(self) -> RemoteAddress {
        self.at(&raw const memhook_inject_stub_each)
    }

    /// Returns the entry point that makes the clone call in the registers and waits for the child. The child makes the
    /// same call, and both it and its own child exit.
    pub(crate) fn fork_entry(self) -> RemoteAddress {
        self.at(&raw const memhook_inject_stub_fork)
    }

    /// Number of bytes at [`Scratch::data`].
    pub(crate) const DATA_BYTES: u64 = PAGE_BYTES - word::END;

    /// Returns the entry point that makes the system call in the registers.
    pub(crate) fn syscall_entry(self) -> RemoteAddress {
        self.at(&raw const memhook_inject_stub_syscall)
    }

    /// Returns the entry point that waits until the permission is valid ([`word::LEAVE`]), then continues at rbx.
    /// Without permission, the thread goes home after `Timing::spin`.
    pub(crate) fn leave_entry(self) -> RemoteAddress {
        self.at(&raw const memhook_inject_stub_leave)
    }

    /// Returns the entry point that makes a system call that opens a descriptor, and records the object that was
    /// opened. The call is in the registers. The descriptor is closed on the way home.
    pub(crate) fn open_entry(self) -> RemoteAddress {
        self.at(&raw const memhook_inject_stub_open)
    }

    /// Returns the entry point that closes the descriptor in rdi if it is the recorded object, and returns EBADF
    /// otherwise. From its first instruction on, the way home closes no descriptor, because another thread may have
    /// reused the number by then.
    pub(crate) fn close_entry(self) -> RemoteAddress {
        self.at(&raw const memhook_inject_stub_close)
    }

    /// Returns the entry that goes home immediately.
    pub(crate) fn home_entry(self) -> RemoteAddress {
        self.at(&raw const memhook_inject_stub_home)
    }

    /// Returns the address of a callback for dl_iterate_phdr(3) that ends the iteration.
    pub(crate) fn found(self) -> RemoteAddress {
        self.at(&raw const memhook_inject_stub_found)
    }

    /// Returns the address at which the thread stops after ringing the bell.
    pub(crate) fn rung(self) -> RemoteAddress {
        self.at(&raw const memhook_inject_stub_rung)
    }

    fn at(self, label: *const u8) -> RemoteAddress {
        let begin = &raw const memhook_inject_stub_begin;
        self.code() + (label.addr() - begin.addr()) as u64
    }

    /// Returns true if the program counter is in the code page.
    pub(crate) fn runs(self, rip: u64) -> bool {
        (self.code()..self.code() + PAGE_BYTES).contains(&RemoteAddress(rip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::mappings;

    #[test]
    fn the_stub_fits_and_begins_with_the_call() {
        assert_eq!(stub()[..3], [0x41, 0xff, 0xd3]);
        assert!(stub().len() < 1024);
        let start = RemoteAddress(0x10000);
        let scratch = Scratch { start };
        let syscall = (scratch.syscall_entry().0 - scratch.code().0) as usize;
        assert_eq!(stub()[syscall..syscall + 2], [0x0f, 0x05]);
    }

    #[test]
    fn a_place_is_free_and_far_from_everything() {
        let own = mappings(std::process::id() as i32).unwrap();
        for mappings in [&own[..], &[]] {
            let mut place = Place::among(mappings);
            let first = place.address();
            place.change();
            assert_ne!(first, place.address());
            for start in [first.0, place.address().0] {
                let far = 1 << 30;
                let (low, high) = (start - far, start + Scratch::BYTES + far);
                assert_eq!(start % PAGE_BYTES, 0);
                assert!(high < USER_END);
                assert!(mappings.iter().all(|m| m.end < low || m.start > high));
            }
        }
    }

    #[test]
    fn a_full_address_space_has_a_place_too() {
        let mut mapping = mappings(std::process::id() as i32).unwrap().remove(0);
        (mapping.start, mapping.end) = (0, u64::MAX);
        let place = Place::among(&[mapping]);
        assert_eq!(place.address().0 % PAGE_BYTES, 0);
    }
}
