//! Memory that the kernel uses for a thread, and to which there may be no pointer in the program. A program that passed
//! memory from malloc to sigaltstack(2) or set_tid_address(2) need not keep the address of that memory, and /proc does
//! not show the address.

use std::ops::Range;
use std::time::Duration;

use crate::Error;
use crate::held::Held;
use crate::stop::{HoldOptions, hold_thread};
use crate::survey::Survey;
use crate::timing::Timing;
use memhook_process::thread_ids;

/// Size of `stack_t`: the stack's address, flags and size.
const STACK_BYTES: usize = 24;
/// Size of the thread id that the kernel clears when the thread ends.
const TID_BYTES: u64 = 4;

/// Returns the alternate signal stacks of all threads of `pid`, and the words that the kernel clears when the threads
/// end, as address ranges. Also returns the longest time for which a thread was held for this query. Fails if a thread
/// could not be queried.
pub fn kernel_places(pid: i32) -> Result<(Vec<Range<u64>>, Duration), Error> {
    let survey = Survey::of(pid, Timing::USUAL)?;
    let options = HoldOptions::anywhere(Duration::ZERO);
    let mut found = Vec::new();
    let mut longest = Duration::ZERO;
    let threads = thread_ids(pid).map_err(|_| Error::TargetGone { pid })?;
    for tid in threads {
        let Some(mut held) = hold_thread(pid, tid, &options, &survey)? else {
            // The thread has ended, so its stack is no longer in use.
            continue;
        };
        let stack = held.alternate_stack();
        let word = held.tid_address();
        longest = longest.max(held.release()?);
        found.extend(stack?);
        found.extend(word?);
    }
    Ok((found, longest))
}

impl Held {
    fn alternate_stack(&mut self) -> Result<Option<Range<u64>>, Error> {
        let place = self.scratch()?.data();
        self.checked_syscall("sigaltstack", libc::SYS_sigaltstack, &[0, place.0])?;
        let mut stack = [0; STACK_BYTES];
        self.read(place, &mut stack)?;
        Ok(match stack.as_chunks::<8>().0 {
            [start, flags, bytes] if u64::from_le_bytes(*flags) & libc::SS_DISABLE as u64 == 0 => {
                let start = u64::from_le_bytes(*start);
                Some(start..start.saturating_add(u64::from_le_bytes(*bytes)))
            }
            _ => None,
        })
    }

    /// The result is also `None` if the kernel was built without CONFIG_CHECKPOINT_RESTORE (PR_GET_TID_ADDRESS,
    /// prctl(2)).
    fn tid_address(&mut self) -> Result<Option<Range<u64>>, Error> {
        let place = self.scratch()?.data();
        let option = libc::PR_GET_TID_ADDRESS as u64;
        if self.syscall(libc::SYS_prctl, [option, place.0, 0, 0, 0, 0])? != 0 {
            return Ok(None);
        }
        let word = self.read_word(place)?;
        Ok((word != 0).then(|| word..word.saturating_add(TID_BYTES)))
    }
}
