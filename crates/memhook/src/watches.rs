//! Watched memory, checked on the thread that follows the process.

use crate::block::{Access, Block, WatchId};
use crate::error::{Error, in_words};
use crate::heap::Told;
use crate::profiler::{Next, Profiler};
use memhook_access::NextAccesses;
use memhook_attach::Trace;
use memhook_inject::Access as SeenAccess;
use memhook_process::inner_tid;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

const WORD_BYTES: u64 = 8;
/// Number of frames in the call stack of an access.
const DEPTH: usize = 64;

/// Kinds of accesses that are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Touch {
    /// Reads and writes.
    #[default]
    Any,
    /// Writes only.
    Write,
}

/// A watch of some memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Watch {
    /// Id of the watch.
    pub id: WatchId,
    /// Watched part at the beginning of the range: one word of eight bytes for each watchpoint that was free.
    pub range: Range<u64>,
}

struct Watched {
    words: Vec<u64>,
    /// Block at the beginning of the watch, if the watch was set for a block. The watch ends with the block.
    block: Option<Block>,
}

/// Watches of one process.
#[derive(Default)]
pub(crate) struct Watches {
    accesses: Option<NextAccesses>,
    watched: BTreeMap<WatchId, Watched>,
    next: u64,
}

impl Watches {
    pub fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }

    /// Watches the memory in `range`.
    pub fn add(
        &mut self,
        pid: i32,
        range: Range<u64>,
        touch: Touch,
        block: Option<Block>,
    ) -> Result<Watch, Error> {
        let accesses = match &mut self.accesses {
            Some(accesses) => accesses,
            none => none.insert(NextAccesses::start(pid).map_err(|error| {
                let why = in_words(&error);
                Error::NoWatchpoints { pid, why }
            })?),
        };
        let first = range.start / WORD_BYTES * WORD_BYTES;
        let mut words = Vec::new();
        let mut word = first;
        while word < range.end && accesses.watch(word, touch == Touch::Write) {
            words.push(word);
            word += WORD_BYTES;
        }
        if words.is_empty() {
            return Err(Error::WatchpointsInUse { pid });
        }
        self.next += 1;
        let id = WatchId(self.next);
        let range = range.start..word.min(range.end);
        self.watched.insert(id, Watched { words, block });
        Ok(Watch { id, range })
    }

    /// Ends a watch. Returns true if it was still active.
    pub fn remove(&mut self, id: WatchId) -> bool {
        let Some(watched) = self.watched.remove(&id) else {
            return false;
        };
        if let Some(accesses) = &mut self.accesses {
            watched.words.iter().for_each(|&word| accesses.forget(word));
        }
        true
    }

    /// Ends all watches.
    pub fn clear(&mut self) {
        self.watched.clear();
        self.accesses = None;
    }

    /// Reports the accesses since the last call.
    pub fn turn<P: Profiler>(&mut self, trace: &Trace<Told<P>>) {
        if self.is_empty() {
            return;
        }
        let found = self.accesses.as_mut().map(NextAccesses::take);
        for seen in found.unwrap_or_default() {
            self.report(trace, &seen);
        }
        self.end_with_blocks(trace);
    }

    fn report<P: Profiler>(&mut self, trace: &Trace<Told<P>>, seen: &SeenAccess) {
        let mut all = self.watched.iter();
        let Some((&watch, watched)) = all.find(|(_, w)| w.words.contains(&seen.address)) else {
            return;
        };
        let pid = trace.session().pid();
        let origin = trace.consumer().monotonic_origin_ns();
        let access = Access {
            watch,
            address: seen.address,
            tid: inner_tid(pid, seen.tid).unwrap_or(seen.tid as u32),
            time: Duration::from_nanos(seen.time_ns.saturating_sub(origin)),
            by_kernel: seen.by_kernel,
            frames: match seen.registers {
                (0, ..) => Vec::new(),
                registers => trace
                    .session()
                    .unwind(registers, &|at| seen.stack_word(at), DEPTH),
            },
        };
        let start = watched.block.map(|block| block.address);
        let mut state = trace.consumer().lock();
        let heap = state.ledger.observer_mut().blocks_mut();
        let start = start.or_else(|| heap.block_with(seen.address));
        let next = heap.accessed(&access, start);
        drop(state);
        match (next, &mut self.accesses) {
            (Next::Again, Some(accesses)) => accesses.watch_again(seen),
            (Next::OtherThreads, _) => {}
            _ => {
                self.remove(watch);
            }
        }
    }

    /// Ends the watches of blocks that are gone.
    fn end_with_blocks<P: Profiler>(&mut self, trace: &Trace<Told<P>>) {
        let mut state = trace.consumer().lock();
        let heap = state.ledger.observer_mut().blocks_mut();
        let is_gone = |block: &Block| {
            let now = heap.block(block.address);
            now.is_none_or(|(now, _)| now != block)
        };
        let gone = self.watched.iter();
        let gone: Vec<WatchId> = gone
            .filter(|(_, watched)| watched.block.as_ref().is_some_and(is_gone))
            .map(|(id, _)| *id)
            .collect();
        drop(state);
        for id in gone {
            self.remove(id);
        }
    }
}
