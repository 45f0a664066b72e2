//! System calls past the C library.

use std::arch::{asm, naked_asm};

/// Makes a system call without touching `errno`.
///
/// # Safety
/// The requirements of the call itself.
pub(crate) unsafe fn call(nr: i64, arguments: [usize; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: the kernel changes rax, rcx and r11, and memory for which the caller is responsible.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// clone3(2), which no libc wraps. The child calls `run` with `argument`.
///
/// # Safety
/// The arguments are valid for the call, and provide a stack for the child. `run` does not return.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn clone3(
    arguments: *const u8,
    bytes: usize,
    argument: *const u8,
    run: extern "C" fn(*const u8) -> !,
) -> i64 {
    naked_asm!(
        // The kernel keeps all registers but rax, rcx and r11.
        "mov r8, rdx",
        "mov r9, rcx",
        "mov eax, {clone3}",
        "syscall",
        "test rax, rax",
        "jz 1f",
        "ret",
        "1: xor ebp, ebp",
        "mov rdi, r8",
        "call r9",
        "ud2",
        clone3 = const libc::SYS_clone3,
    )
}
