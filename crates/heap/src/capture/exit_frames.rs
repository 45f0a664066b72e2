//! Frames of the program that remain on the stack of a thread that ends its process.
//!
//! The functions between exit(3) and the system call keep nothing for the program. But compilers
//! give frames more space than they write, and leftovers of earlier calls in that space would look
//! like pointers, in one run and not in the next, depending on the alignment of the stack.

use crate::arch::native;
use crate::snapshot::Snapshot;
use memhook_inject::Registers;
use memhook_process::ModuleImage;
use memhook_unwind::reference::{self, Unwinder};

/// Maximum number of frames. exit(3) calls two or three functions, err(3) a few more.
const MOST_FRAMES: usize = 16;

/// Returns the stack pointer of the innermost function outside the C library, and the values of the
/// callee-saved registers in that function. Returns `None` if the frames cannot be followed that
/// far.
pub fn innermost_caller(
    snapshot: &Snapshot,
    images: &[ModuleImage],
    registers: &Registers,
) -> Option<(u64, Vec<u64>)> {
    let libc = images.iter().find(|image| image.is_libc)?;
    if !libc.contains(native::program_counter(registers)) {
        return None;
    }
    let range = libc.start..libc.end;
    let mut unwinder = Unwinder::with_signature(native::signature(registers));
    unwinder.add_module(libc.base, range.clone(), &libc.bytes);
    let of_thread = native::by_number(registers);
    let read = |address| snapshot.word(address);
    let of_caller = unwinder.caller_outside(of_thread.map(Some), &range, &read, MOST_FRAMES)?;
    let preserved = native::PRESERVED.iter().map(|&number| of_caller[number]);
    let words = preserved.collect::<Option<Vec<u64>>>()?;
    Some((reference::stack_pointer(&of_caller)?, words))
}
