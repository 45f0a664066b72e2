//! Resident memory at the start of a trace, and its growth by the end, as stored in recordings.

use crate::recorded::note;
use crate::{RssReport, StackFrame};
use memhook_heap::NetGrowth;
use memhook_recording::{Recording, TWO_LOOKS_NOTE};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// Maximum number of call stacks that a recording stores. The stacks with the most bytes are kept,
/// and each takes about 40 bytes.
const MAX_STACKS: usize = 100_000;

/// Comparison of a process's memory at two moments of a trace, the first and the last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TwoLooks {
    /// Resident memory at the first moment.
    pub first: RssReport,
    /// Time of the first moment in milliseconds since the attach.
    pub first_ms: u64,
    /// Time of the last moment in milliseconds since the attach. It is before the end of the trace.
    #[serde(default)]
    pub last_ms: u64,
    /// Usable bytes of all live blocks at the first moment and at the last moment; `None` if no
    /// heap was dissected.
    pub live_bytes: Option<(u64, u64)>,
    /// Growth of each call stack, sorted by live bytes, largest first. Stacks are identified by id
    /// in a recording, and by index in a profile.
    pub stacks: Vec<StackGrowth>,
    /// Call stacks that mapped memory outside the heap since the attach, sorted by resident bytes,
    /// largest first.
    #[serde(default)]
    pub mapped: Vec<MappedSite>,
}

/// Memory outside the heap that a call stack mapped since the attach.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MappedSite {
    /// Resident bytes at the last moment.
    pub resident_bytes: u64,
    /// The call stack, innermost frame first.
    pub stack: Vec<StackFrame>,
}

/// Usable bytes of the blocks that a call stack allocated since the attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackGrowth {
    /// The call stack.
    pub stack: u32,
    /// Live bytes at the last moment.
    pub live_bytes: u64,
    /// Lower bound on the growth: the part that no other call stack can account for.
    pub at_least_bytes: u64,
    /// Upper bound on the growth: as much of the growth in its block sizes as this call stack can
    /// account for.
    pub at_most_bytes: u64,
}

impl TwoLooks {
    /// Returns the call stacks that grew most.
    pub fn stacks_of(grown: Vec<NetGrowth>) -> Vec<StackGrowth> {
        let stacks = grown.into_iter().map(|one| StackGrowth {
            stack: one.stack,
            live_bytes: one.live_bytes,
            at_least_bytes: one.at_least_bytes,
            at_most_bytes: one.at_most_bytes,
        });
        let mut stacks: Vec<StackGrowth> = stacks.collect();
        stacks.sort_by_key(|one| (Reverse(one.live_bytes), one.stack));
        stacks.truncate(MAX_STACKS);
        stacks
    }

    /// Reads the comparison from a recording, if the recording has one. `index_of` returns the
    /// index of a stack by its id.
    pub(crate) fn of(
        recording: &Recording,
        index_of: impl Fn(u32) -> Option<u32>,
    ) -> Option<Box<TwoLooks>> {
        let text = note(recording, TWO_LOOKS_NOTE);
        let mut looks: TwoLooks = serde_json::from_str(text).ok()?;
        looks.renumber(|id| index_of(recording.stacks().sampled(id).0));
        Some(Box::new(looks))
    }

    /// Renumbers the call stacks, merges stacks that get the same number, and drops stacks without
    /// a number.
    fn renumber(&mut self, number: impl Fn(u32) -> Option<u32>) {
        for one in &mut self.stacks {
            one.stack = number(one.stack).unwrap_or(u32::MAX);
        }
        self.stacks.retain(|one| one.stack != u32::MAX);
        self.stacks.sort_by_key(|one| one.stack);
        self.stacks.dedup_by(|other, kept| {
            let is_same = other.stack == kept.stack;
            if is_same {
                kept.live_bytes = kept.live_bytes.saturating_add(other.live_bytes);
                kept.at_least_bytes = kept.at_least_bytes.saturating_add(other.at_least_bytes);
                kept.at_most_bytes = kept.at_most_bytes.saturating_add(other.at_most_bytes);
            }
            is_same
        });
    }
}
