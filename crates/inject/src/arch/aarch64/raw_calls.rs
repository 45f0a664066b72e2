//! System calls past the C library.

use std::arch::{asm, naked_asm};

/// Makes a system call without touching `errno`.
///
/// # Safety
/// The requirements of the call itself.
pub(crate) unsafe fn call(nr: i64, arguments: [usize; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: the kernel changes x0, and memory for which the caller is responsible.
    unsafe {
        asm!(
            "svc #0",
            in("x8") nr,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    result
}

/// clone3(2), which no libc wraps. The child calls `run` with `argument`.
///
/// # Safety
/// The arguments are those of the call, and name a stack for the child. `run` does not return.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn clone3(
    arguments: *const u8,
    bytes: usize,
    argument: *const u8,
    run: extern "C" fn(*const u8) -> !,
) -> i64 {
    naked_asm!(
        // The kernel keeps all registers but x0.
        "mov x9, x2",
        "mov x10, x3",
        "mov x8, {clone3}",
        "svc #0",
        "cbz x0, 1f",
        "ret",
        "1: mov x29, xzr",
        "mov x0, x9",
        "blr x10",
        "brk #1",
        clone3 = const libc::SYS_clone3,
    )
}
