//! Transition of a region from one recording thread to several. The attacher makes the transition safe: see the hook's
//! `sequence.hpp`.

use crate::Region;
use crate::memory::tally;
use memhook_abi::{Control, RingHeader};
use std::mem::offset_of;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::{Duration, Instant};

/// membarrier(2): commands of `<linux/membarrier.h>`.
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
/// membarrier(2) command that registers a process for [`barrier`].
pub const REGISTER_GLOBAL_EXPEDITED: u64 = 1 << 2;

/// Maximum time for which one pass waits for a thread to finish recording: many times what a running thread needs.
const RECORDING: Duration = Duration::from_micros(50);

/// How a thread of the target finds its id without a system call.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadNumbers {
    /// Offset of the id in the C library's thread structure, in bytes from the thread pointer.
    pub offset: u32,
    /// Stale id at that offset, which belongs to another thread; 0 if there is none. See `Control::stale_number`.
    pub stale: u32,
    /// Actual id of that thread.
    pub instead: u32,
}

fn membarrier(command: libc::c_int) -> i64 {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

/// Makes every running thread of every registered process execute a memory barrier. Returns false if the kernel (before
/// 4.16) or a seccomp filter of ours does not allow it.
pub fn barrier() -> bool {
    membarrier(GLOBAL_EXPEDITED) == 0
}

/// Admission of further recording threads on request.
#[derive(Default)]
pub struct Admission {
    /// Number of the request, and the ring heads after its barrier.
    heads: Mutex<(u32, Vec<u64>)>,
}

impl Admission {
    /// Answers requests. Any thread calls it with every pass.
    pub fn answer(&self, region: &Region) {
        let word = |offset| region.memory.u32(offset);
        let asked = word(tally!(recorders_asked)).load(SeqCst);
        let granted = offset_of!(Control, recorders_granted);
        if asked == region.control32(granted) {
            return;
        }
        let Ok(mut state) = self.heads.try_lock() else {
            return;
        };
        let head = |ring| region.ring64(ring, offset_of!(RingHeader, head));
        if state.0 != asked {
            if !barrier() {
                return;
            }
            let heads = (0..region.rings_used()).map(|ring| head(ring).load(Acquire));
            *state = (asked, heads.collect());
        }
        // A thread that records increments the word before it moves the head. So a changed head means that the
        // recording in progress at the barrier has ended, even if the next one has already begun.
        let has_ended = |ring: usize| {
            let outer = region.ring64(ring, offset_of!(RingHeader, outer));
            outer.load(Acquire) & 1 == 0 || head(ring).load(Acquire) != state.1[ring]
        };
        let start = Instant::now();
        for ring in 0..state.1.len() {
            while !has_ended(ring) {
                if start.elapsed() > RECORDING {
                    // The thread is not running, or is waiting for space. The next pass tries again.
                    return;
                }
                std::hint::spin_loop();
            }
        }
        region.memory.tell32(granted, asked, Release);
    }
}

impl Region {
    /// Tells the hook whether a seccomp filter might deny the hook's own system calls, or kill the process for them.
    pub fn set_syscalls_filtered(&self, filtered: bool) {
        let offset = offset_of!(Control, syscalls_filtered);
        self.memory.tell32(offset, filtered.into(), Relaxed);
    }

    /// Tells the hook how threads find their ids.
    pub fn set_thread_numbers(&self, numbers: ThreadNumbers) {
        for (offset, value) in [
            (offset_of!(Control, tid_offset), numbers.offset),
            (offset_of!(Control, stale_number), numbers.stale),
            (offset_of!(Control, true_number), numbers.instead),
        ] {
            self.memory.tell32(offset, value, Relaxed);
        }
    }
}
