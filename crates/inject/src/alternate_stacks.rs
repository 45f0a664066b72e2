//! Alternate signal stacks: the kernel knows where they are, and often nobody else. A program that gave
//! sigaltstack(2) memory from malloc need not keep its address, and /proc does not tell it.

use std::time::Duration;

use crate::stop::{HoldOptions, hold_thread};
use crate::survey::Survey;
use crate::{Error, procfs};

/// `stack_t`: the stack's address, flags, its size.
const STACK_BYTES: usize = 24;
/// SS_DISABLE: there is none.
const DISABLED: u64 = 2;

/// The alternate signal stacks of all threads of `pid`, as address ranges, and for how long one thread
/// was held at most to ask it. An error if one of them could not be asked.
pub fn alternate_stacks(pid: i32) -> Result<(Vec<(u64, u64)>, Duration), Error> {
    let survey = Survey::of(pid)?;
    let options = HoldOptions::anywhere(Duration::ZERO);
    let mut found = Vec::new();
    let mut longest = Duration::ZERO;
    for tid in procfs::threads(pid) {
        let Some(mut held) = hold_thread(pid, tid, &options, &survey)? else {
            // Ended: its stack is no longer one.
            continue;
        };
        let place = held.scratch()?.data();
        let arguments = [0, place, 0, 0, 0, 0];
        held.checked_syscall("sigaltstack", libc::SYS_sigaltstack, arguments)?;
        let mut stack = [0; STACK_BYTES];
        held.read(place, &mut stack)?;
        longest = longest.max(held.release()?);
        if let [start, flags, bytes] = stack.as_chunks::<8>().0
            && u64::from_le_bytes(*flags) & DISABLED == 0
        {
            let start = u64::from_le_bytes(*start);
            found.push((start, start.saturating_add(u64::from_le_bytes(*bytes))));
        }
    }
    Ok((found, longest))
}
