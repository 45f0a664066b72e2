//! Unused memory in a thread's own stack.
//!
//! At the first remote call, the target has no memory of ours, but the frames through which the thread returns must be
//! written before it executes anything. They cannot be below the stack pointer, because the stack pointer may point
//! into another stack that lies inside the thread's original one: a coroutine or a signal handler may run on a local
//! array of main, with main's other data below it.
//!
//! The lowest part of the thread's original stack is unused as long as it contains only zeros. Either the thread has
//! never used that part, or its true stack pointer is in that part, and then so is a return address. So the frames are
//! written there, and overwritten with zeros after use. In case this process is killed before that, a mark stores the
//! address and a hash of the frames. A part that has changed since then is not considered unused.

use crate::Registers;
use memhook_process::Mapping;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

/// Size of the unused part. The frames take 2 to 24 KiB of it, depending on the vector state.
pub(crate) const ROOM_BYTES: u64 = 32 * 1024;
/// Number of bytes at the lower end of the part for the timeout of a repeated call. The kernel reads the timeout when
/// the thread is already running again, so it is never zeroed.
const TIMEOUT_BYTES: u64 = 16;
/// Mark, stored after the timeout and followed by the address, length and hash of the frames.
const MARK: &[u8; 16] = b"memhook-way-home";
/// Bytes below the frames.
pub(crate) const RESERVED_BYTES: u64 = 64;
/// Upper bound of the size of glibc's `struct pthread` (2.3 KiB), to which fs points.
const DESCRIPTOR_BYTES: u64 = 4096;
/// Upper bound of the distance from the descriptor to the end of the stack. The descriptor is aligned down from the
/// end.
const REACH_BYTES: u64 = 8192;
const PAGE_BYTES: u64 = 4096;

/// The unused part of a thread's stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Room {
    pub range: Range<u64>,
    /// True if the part is below the mapped part of the main thread's stack, which the kernel extends.
    pub grows: bool,
}

/// Finds the unused part. Returns `Err` with the reason if the thread is not on its original stack, or has used up that
/// part. `read` reads the target's memory and returns false if it failed.
pub(crate) fn room(
    mappings: &[Mapping],
    tid: i32,
    registers: &Registers,
    read: impl Fn(u64, &mut [u8]) -> bool,
) -> Result<Room, String> {
    let (rsp, thread_pointer) = (registers.rsp, registers.fs_base);
    let Some(stack) = mappings.iter().find(|m| m.write && m.contains(rsp)) else {
        return Err(format!("thread {tid} has no known stack at {rsp:#x}"));
    };
    let has_descriptor = stack.contains(thread_pointer);
    // The main thread's descriptor is not in its stack. A descriptor in this stack belongs to another thread, which
    // runs on a part of this stack.
    if stack.path == "[stack]" && !has_descriptor {
        let lowest = stack.start..stack.start.saturating_add(ROOM_BYTES);
        if lowest.end <= rsp && is_unused(&lowest, &read) {
            return Ok(Room {
                range: lowest,
                grows: false,
            });
        }
        return Ok(Room {
            range: stack.start.saturating_sub(ROOM_BYTES)..stack.start,
            grows: true,
        });
    }
    // glibc keeps the thread control block, to which fs points, at the upper end of the stack, even of a stack from
    // pthread_attr_setstack.
    if !(rsp..stack.end).contains(&thread_pointer) {
        return Err(format!(
            "thread {tid} runs on a custom stack at {rsp:#x} (coroutine or signal stack)"
        ));
    }
    let end = stack
        .end
        .min(thread_pointer.saturating_add(DESCRIPTOR_BYTES));
    let mut descriptor = vec![0; (end - thread_pointer) as usize];
    let begin = read(thread_pointer, &mut descriptor).then(|| begin(&descriptor, thread_pointer));
    let Some(begin) = begin.flatten().filter(|begin| *begin <= rsp) else {
        return Err(format!(
            "thread {tid} runs on a stack with unknown bounds at {rsp:#x}"
        ));
    };
    let start = begin.max(stack.start).next_multiple_of(PAGE_BYTES);
    let lowest = start..start.saturating_add(ROOM_BYTES);
    if lowest.end > rsp || !is_unused(&lowest, &read) {
        return Err(format!(
            "thread {tid} has little or no stack left at {rsp:#x}"
        ));
    }
    Ok(Room {
        range: lowest,
        grows: false,
    })
}

impl Room {
    /// Returns the mark of the frames at an address, and the address of the mark.
    pub(crate) fn mark(&self, at: u64, frames: &[u8]) -> (u64, Vec<u8>) {
        let words = [at, frames.len() as u64, hash(frames)];
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        let mark = MARK.iter().copied().chain(words).collect();
        (self.range.start + TIMEOUT_BYTES, mark)
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn is_unused(range: &Range<u64>, read: &impl Fn(u64, &mut [u8]) -> bool) -> bool {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    if !read(range.start, &mut bytes) {
        return false;
    }
    let bytes = &mut bytes[TIMEOUT_BYTES as usize..];
    if bytes.starts_with(MARK) {
        forget_frames(range.start + TIMEOUT_BYTES, bytes);
    }
    bytes.iter().all(|&byte| byte == 0)
}

/// Zeroes the mark and its frames if they are unchanged, or not written yet.
fn forget_frames(start: u64, bytes: &mut [u8]) -> Option<()> {
    let (words, _) = bytes.get(MARK.len()..)?.as_chunks::<8>();
    let [at, length, hashed] =
        [0, 1, 2].map(|i| words.get(i).map(|word| u64::from_le_bytes(*word)));
    let first = usize::try_from(at?.checked_sub(start)?).ok()?;
    let frames = first..first.checked_add(usize::try_from(length?).ok()?)?;
    let there = bytes.get(frames.clone())?;
    if hash(there) == hashed? || there.iter().all(|&byte| byte == 0) {
        bytes[frames].fill(0);
        bytes[..MARK.len() + 24].fill(0);
    }
    Some(())
}

/// Returns the start of a thread's stack. The mapping is not enough, because below a stack without a guard page, or a
/// stack from pthread_attr_setstack, there may be other memory. `struct pthread` has `stackblock` and `stackblock_size`
/// in sequence, at an offset that differs between versions. They are recognized as two words that describe a range
/// around the descriptor. If several pairs do, the smallest range wins.
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
        // The contents of `struct pthread` after an unrelated word, in memory that is zero except for one byte.
        let at = |rsp, fs_base, (block, bytes): (u64, u64), used: u64| {
            let mut registers = crate::regs::zeroed();
            (registers.rsp, registers.fs_base) = (rsp, fs_base);
            room(&mappings, 1, &registers, |address, into: &mut [u8]| {
                if address == fs_base {
                    into[8..16].copy_from_slice(&block.to_le_bytes());
                    into[16..24].copy_from_slice(&bytes.to_le_bytes());
                } else if let Some(byte) = into.get_mut(used.wrapping_sub(address) as usize) {
                    *byte = 1;
                }
                true
            })
        };
        let there = |start: u64, grows| {
            let range = start..start + ROOM_BYTES;
            Ok(Room { range, grows })
        };
        let whole = |rsp, fs_base| at(rsp, fs_base, (0x10_0000, 0x10_0000), 0);
        assert_eq!(whole(0x71_0800, 0), there(0x70_0000, false));
        assert_eq!(whole(0x70_0800, 0), there(0x70_0000 - ROOM_BYTES, true));
        let used = |used| at(0x71_f000, 0, (0, 0), used);
        assert_eq!(used(0x70_7fff), there(0x70_0000 - ROOM_BYTES, true));
        assert_eq!(used(0x70_000f), there(0x70_0000, false), "a timeout");
        assert_eq!(whole(0x1f_0000, 0x1f_f700), there(0x10_0000, false));
        assert!(whole(0x10_1000, 0x1f_f700).is_err(), "near the end");
        assert!(at(0x1f_0000, 0x1f_f700, (0x10_0000, 0x10_0000), 0x10_0100).is_err());
        assert!(whole(0x1f_0000, 0x1e_0000).is_err(), "not above rsp");
        assert!(whole(0x1f_0000, 0x30_0000).is_err(), "elsewhere");
        assert!(whole(0x30_0000, 0x30_0100).is_err(), "not mapped");
        // A stack that is part of a larger mapping.
        let piece = |rsp| at(rsp, 0x17_f700, (0x16_0000, 0x2_0000), 0);
        assert_eq!(piece(0x17_0000), there(0x16_0000, false));
        assert!(piece(0x16_1000).is_err(), "others are below");
        assert!(piece(0x15_8000).is_err(), "others' stack");
        // Frames left by a killed attacher, both unchanged and changed.
        for (byte, is_left) in [(7, true), (8, false)] {
            let range = 0x70_0000..0x70_0000 + ROOM_BYTES;
            let (at, mark) = Room {
                range: range.clone(),
                grows: false,
            }
            .mark(0x70_1000, &[7; 100]);
            let unused = is_unused(&range, &|_, into: &mut [u8]| {
                into[(at - range.start) as usize..][..mark.len()].copy_from_slice(&mark);
                into[0x1000..0x1000 + 100].fill(byte);
                true
            });
            assert_eq!(unused, is_left);
        }
        // A thread on a part of the main thread's stack, with other threads below it.
        let on_main = |rsp| at(rsp, 0x71_f700, (0x71_0000, 0x1_0000), 0);
        assert_eq!(on_main(0x71_9000), there(0x71_0000, false));
        assert!(on_main(0x71_1000).is_err());
    }

    /// The stack of a thread in this process is part of a larger memory area, and the bounds found are those that glibc
    /// reports.
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
            let begin = piece.addr() as u64;
            let start = begin.next_multiple_of(PAGE_BYTES);
            let found = Ok(Room {
                range: start..start + ROOM_BYTES,
                grows: false,
            });
            assert_eq!(look((&raw const local).addr() as u64), found);
            assert_eq!(look(start + ROOM_BYTES), found);
            assert!(look(start + ROOM_BYTES - 16).is_err());
            assert!(look(begin - 64).is_err());
            std::ptr::null_mut()
        }
        // SAFETY: the piece lives until the thread has ended, and no other code uses it.
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
