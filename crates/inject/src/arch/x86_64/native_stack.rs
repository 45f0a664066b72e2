//! Whether a thread is on the stack that it was created with.
//!
//! The first remote call finds no memory of ours in the target: the signal frame goes below the
//! red zone of the thread's own stack. That memory is free on a native stack (a signal handler
//! would use it too), but below the stack of a coroutine it may belong to anybody.

use crate::Registers;
use memhook_process::Mapping;

/// The room needed below rsp. The frame takes 1 to 12 KiB of it, depending on the vector state.
const ROOM_BYTES: u64 = 32 * 1024;
/// Larger than glibc's `struct pthread` (2.3 KiB), to which fs points.
const DESCRIPTOR_BYTES: u64 = 4096;
/// The stack ends within this distance behind the descriptor, which is aligned down from the end.
const REACH_BYTES: u64 = 8192;

/// Where the frame may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// Below rsp, mapped already.
    Mapped,
    /// Below rsp on the main thread's stack, which the kernel extends.
    Grows,
}

/// `Err` with the reason if the thread is not on its native stack, or is near the end of it. `read` reads the
/// target's memory and returns whether it could.
pub(crate) fn room(
    mappings: &[Mapping],
    tid: i32,
    registers: &Registers,
    read: impl FnOnce(u64, &mut [u8]) -> bool,
) -> Result<Room, String> {
    let (rsp, thread_pointer) = (registers.rsp, registers.fs_base);
    let Some(stack) = mappings.iter().find(|m| m.write && m.contains(rsp)) else {
        return Err(format!("thread {tid} has no known stack at {rsp:#x}"));
    };
    let has_descriptor = stack.contains(thread_pointer);
    // The main thread's descriptor is elsewhere. A descriptor in this stack is that of another thread, which has a
    // piece of it.
    if stack.path == "[stack]" && !has_descriptor {
        return Ok(Room::Grows);
    }
    // glibc keeps the thread control block, to which fs points, at the upper end of the stack, even of
    // one that was given by pthread_attr_setstack.
    if !(rsp..stack.end).contains(&thread_pointer) {
        return Err(format!(
            "thread {tid} is on a stack of its own making at {rsp:#x} (coroutine or signal stack)"
        ));
    }
    let end = stack
        .end
        .min(thread_pointer.saturating_add(DESCRIPTOR_BYTES));
    let mut descriptor = vec![0; (end - thread_pointer) as usize];
    let begin = read(thread_pointer, &mut descriptor).then(|| begin(&descriptor, thread_pointer));
    let Some(begin) = begin.flatten().filter(|begin| *begin <= rsp) else {
        return Err(format!(
            "thread {tid} is on a stack of unknown bounds at {rsp:#x}"
        ));
    };
    if rsp - begin.max(stack.start) < ROOM_BYTES {
        return Err(format!(
            "thread {tid} is near the end of its stack at {rsp:#x}"
        ));
    }
    Ok(Room::Mapped)
}

/// Where a thread's stack begins. The mapping says little, because below a stack without a guard page, and below
/// memory given by pthread_attr_setstack, there is memory of others. `struct pthread` has `stackblock` and
/// `stackblock_size` one behind the other, at a place that differs between versions. They are found as two
/// words that describe a range around the descriptor, the narrowest one if there are several.
fn begin(descriptor: &[u8], thread_pointer: u64) -> Option<u64> {
    let (words, _) = descriptor.as_chunks::<8>();
    let ends = thread_pointer..=thread_pointer.saturating_add(REACH_BYTES);
    let begin = |pair: &[[u8; 8]]| {
        let (block, bytes) = (u64::from_le_bytes(pair[0]), u64::from_le_bytes(pair[1]));
        let end = block.checked_add(bytes)?;
        (block < thread_pointer && ends.contains(&end)).then_some(block)
    };
    words.windows(2).filter_map(begin).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::mappings;
    use memhook_process::parse_maps;
    use std::os::unix::fs::FileExt;

    #[test]
    fn only_native_stacks_have_room() {
        let stack = |start: u64, end: u64, name: &str| {
            let line = format!("{start:x}-{end:x} rw-p 00000000 00:00 0 {name}");
            parse_maps(&line).remove(0)
        };
        let mappings = [
            stack(0x10_0000, 0x20_0000, ""),
            stack(0x70_0000, 0x72_0000, "[stack]"),
        ];
        // What `struct pthread` says, behind a word that is not part of it.
        let says = |block: u64, bytes: u64| {
            move |_, into: &mut [u8]| {
                into[8..16].copy_from_slice(&block.to_le_bytes());
                into[16..24].copy_from_slice(&bytes.to_le_bytes());
                true
            }
        };
        let at = |rsp, fs_base, block, bytes| {
            let mut registers = crate::regs::zeroed();
            (registers.rsp, registers.fs_base) = (rsp, fs_base);
            room(&mappings, 1, &registers, says(block, bytes))
        };
        let whole = |rsp, fs_base| at(rsp, fs_base, 0x10_0000, 0x10_0000);
        assert_eq!(whole(0x70_0800, 0), Ok(Room::Grows));
        assert_eq!(whole(0x1f_0000, 0x1f_f700), Ok(Room::Mapped));
        assert!(whole(0x10_1000, 0x1f_f700).is_err(), "near the end");
        assert!(whole(0x1f_0000, 0x1e_0000).is_err(), "not above rsp");
        assert!(whole(0x1f_0000, 0x30_0000).is_err(), "elsewhere");
        assert!(whole(0x30_0000, 0x30_0100).is_err(), "not mapped");
        // A stack that is a piece of a mapping.
        let piece = |rsp| at(rsp, 0x17_f700, 0x16_0000, 0x2_0000);
        assert_eq!(piece(0x17_0000), Ok(Room::Mapped));
        assert!(piece(0x16_1000).is_err(), "others are below");
        assert!(piece(0x15_8000).is_err(), "others' stack");
        // A thread on a piece of the main thread's stack, with others below it.
        let on_main = |rsp| at(rsp, 0x71_f700, 0x71_0000, 0x1_0000);
        assert_eq!(on_main(0x71_9000), Ok(Room::Mapped));
        assert!(on_main(0x71_1000).is_err());
    }

    /// glibc states the bounds of a thread of ours, whose stack is a piece of larger memory.
    #[test]
    fn bounds_are_those_that_the_thread_was_given() {
        const PIECE_BYTES: usize = 256 * 1024;
        let mut pool = vec![0u128; 4 * PIECE_BYTES / 16];
        let piece = pool.as_mut_ptr().addr() + PIECE_BYTES;
        extern "C" fn run(piece: *mut libc::c_void) -> *mut libc::c_void {
            let mappings = mappings(std::process::id() as i32).unwrap();
            let memory = std::fs::File::open("/proc/self/mem").unwrap();
            let look = |rsp: u64| {
                let mut registers = crate::regs::zeroed();
                // SAFETY: no pointers; glibc's handle of a thread is its thread pointer.
                registers.fs_base = unsafe { libc::pthread_self() };
                registers.rsp = rsp;
                room(&mappings, 1, &registers, |address, into| {
                    memory.read_exact_at(into, address).is_ok()
                })
            };
            let local = 0u64;
            assert_eq!(look((&raw const local).addr() as u64), Ok(Room::Mapped));
            let begin = piece.addr() as u64;
            assert_eq!(look(begin + ROOM_BYTES), Ok(Room::Mapped));
            assert!(look(begin + ROOM_BYTES - 16).is_err());
            assert!(look(begin - 64).is_err());
            std::ptr::null_mut()
        }
        // SAFETY: the piece lives until the thread has ended, and nobody else uses it.
        unsafe {
            let mut attributes = std::mem::zeroed();
            assert_eq!(libc::pthread_attr_init(&raw mut attributes), 0);
            let at = std::ptr::with_exposed_provenance_mut(piece);
            pool.as_mut_ptr().expose_provenance();
            let set = libc::pthread_attr_setstack(&raw mut attributes, at, PIECE_BYTES);
            assert_eq!(set, 0);
            let mut thread = 0;
            let made = libc::pthread_create(&raw mut thread, &raw const attributes, run, at);
            assert_eq!(made, 0);
            assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
            libc::pthread_attr_destroy(&raw mut attributes);
        }
    }
}
