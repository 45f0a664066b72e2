//! Replays a part of a run, from the last checkpoint before its start to its end.
//!
//! The time of a pass follows its events, and passes without events are not in the file. So the
//! state at a time is the state after the last pass at or before it. Passes near the ends are kept
//! until their time is known.
//!
//! A window that begins or ends at a mark is exact. The passes around the mark are cut there, by
//! the times of their events, which arrive a pass after they are claimed. An event that depends on
//! another event never has an earlier time, so events before the cut do not depend on later events.

use crate::file::chunk_file::ChunkRef;
use crate::file::decode::Visitor;
use crate::file::format::Kind;
use crate::replay::Replay;
use crate::replay::pipeline::{self, Consumer};
use crate::{Error, Recording};
use memhook_abi::{Accesses, Event};
use memhook_ledger::Observer;

/// Number of passes after a mark. When they have ended, all events from before the mark have
/// arrived.
const LATEST_PASSES: u64 = 3;

/// Contents of a pass that are kept until its time is known.
enum Item {
    Ring(usize, u32),
    Access(Accesses),
    Event(Event, u64, u64),
}

/// Observer of a replay, at its start and after each pass.
pub(crate) trait Watch<O> {
    /// State saved at the start.
    type Begin;
    /// Called at the start, when everything before it has been replayed.
    fn begin(&mut self, replay: &mut Replay<O>) -> Self::Begin;
    /// Called after a pass.
    fn pass(&mut self, _: &Replay<O>) {}
}

pub(crate) struct Stretch<O, W: Watch<O>> {
    pub replay: Replay<O>,
    from_ns: u64,
    to_ns: u64,
    pub watch: W,
    /// State saved at the start, after it is reached.
    pub begin: Option<W::Begin>,
    /// Contents of the current pass, if its time decides whether it belongs to the stretch.
    pending: Vec<Item>,
    /// True after a pass beyond the end was seen.
    is_over: bool,
    /// True if the start is a mark, and true if the end is a mark.
    is_exact: (bool, bool),
    /// Number of passes that ended after the start, and after the end.
    behind: (u64, u64),
}

impl<O: Observer, W: Watch<O>> Stretch<O, W> {
    /// Creates a stretch. Times are nanoseconds since the attach.
    pub fn new(replay: Replay<O>, from_ns: u64, to_ns: u64, watch: W) -> Self {
        Self {
            replay,
            from_ns,
            to_ns,
            watch,
            begin: None,
            pending: Vec::new(),
            is_over: false,
            is_exact: (false, false),
            behind: (0, 0),
        }
    }

    /// Replays the kept events up to a time, and keeps the remaining ones. The replayed events are
    /// not a complete pass, because only the end of the pass decides about events that are held
    /// back.
    fn cut_pass(&mut self, until_ns: u64) {
        let mut later = Vec::new();
        let mut accesses = None;
        for item in std::mem::take(&mut self.pending) {
            match item {
                Item::Ring(ring, tid) => {
                    self.replay.begin_ring(ring, tid);
                    later.push(Item::Ring(ring, tid));
                }
                // The accesses belong to the release that follows.
                Item::Access(of_release) => accesses = Some(of_release),
                Item::Event(event, size, time_ns) if time_ns <= until_ns => {
                    if let Some(accesses) = accesses.take() {
                        self.replay.access(&accesses);
                    }
                    self.replay.event(event, size, time_ns);
                }
                Item::Event(event, size, time_ns) => {
                    later.extend(accesses.take().map(Item::Access));
                    later.push(Item::Event(event, size, time_ns));
                }
            }
        }
        self.replay.cut_pass(until_ns);
        self.pending = later;
    }

    /// Returns true if passes have to be kept until their time is known.
    #[inline]
    fn keeps_passes(&self) -> bool {
        self.begin.is_none() || self.to_ns != u64::MAX
    }

    #[inline(never)]
    fn keep(&mut self, item: Item) {
        self.pending.push(item);
    }

    fn begin_at(&mut self, now_ns: u64) {
        if self.begin.is_none() && now_ns >= self.from_ns {
            self.begin = Some(self.watch.begin(&mut self.replay));
        }
    }

    /// Returns the state at the start, or at the end if the file ends before the start.
    pub fn begin_or_now(&mut self) -> W::Begin {
        let begin = self.begin.take();
        begin.unwrap_or_else(|| self.watch.begin(&mut self.replay))
    }

    /// Handles passes that were kept because events from before a mark could still have arrived.
    fn end_of_file(&mut self) {
        let is_kept = self.is_exact.0 && self.begin.is_none() && self.behind.0 > 0;
        if !is_kept {
            return;
        }
        self.begin = Some(self.watch.begin(&mut self.replay));
        self.cut_pass(self.to_ns);
    }

    /// Replays the chunks from index `start` to the end of the stretch.
    pub fn run(&mut self, recording: &Recording, start: usize) -> Result<(), Error> {
        let chunks = recording.file.chunks[start..].iter();
        let frames = chunks.filter(|chunk| chunk.kind == Kind::Events);
        let frames: Vec<ChunkRef> = frames.copied().collect();
        let is_mark = |time| recording.marks().iter().any(|mark| mark.time_ns == time);
        self.is_exact = (is_mark(self.from_ns), is_mark(self.to_ns));
        self.begin_at(self.replay.now_ns());
        if self.wants_more() {
            pipeline::run(&recording.file, &frames, self)?;
            self.end_of_file();
        }
        Ok(())
    }
}

impl<O: Observer, W: Watch<O>> Visitor for Stretch<O, W> {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        if self.keeps_passes() {
            self.pending.push(Item::Ring(ring, tid));
        } else {
            self.replay.begin_ring(ring, tid);
        }
    }
    fn access(&mut self, accesses: &Accesses) {
        if self.keeps_passes() {
            self.pending.push(Item::Access(*accesses));
        } else {
            self.replay.access(accesses);
        }
    }
    fn live_access(&mut self, accesses: &Accesses) {
        if !self.is_over {
            self.replay.live_access(accesses);
        }
    }
    #[inline(always)]
    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        if self.keeps_passes() {
            self.keep(Item::Event(event, size, time_ns));
        } else {
            self.replay.event(event, size, time_ns);
        }
    }
    fn end_pass(&mut self, now_ns: u64, passes: u64) {
        if self.is_over {
            return;
        }
        if now_ns > self.from_ns {
            if self.begin.is_none() && self.is_exact.0 {
                self.cut_pass(self.from_ns);
                self.behind.0 += 1;
                if self.behind.0 < LATEST_PASSES {
                    return;
                }
            }
            self.begin_at(now_ns);
        }
        if now_ns > self.to_ns {
            if self.is_exact.1 {
                self.cut_pass(self.to_ns);
                self.behind.1 += 1;
            }
            self.is_over = !self.is_exact.1 || self.behind.1 >= LATEST_PASSES;
            return;
        }
        for item in self.pending.drain(..) {
            match item {
                Item::Ring(ring, tid) => self.replay.begin_ring(ring, tid),
                Item::Access(accesses) => self.replay.access(&accesses),
                Item::Event(event, size, time_ns) => self.replay.event(event, size, time_ns),
            }
        }
        self.replay.end_pass(now_ns, passes);
        self.begin_at(now_ns);
        self.watch.pass(&self.replay);
    }
}

impl<O: Observer, W: Watch<O>> Consumer for Stretch<O, W> {
    fn wants_more(&self) -> bool {
        !self.is_over && (self.is_exact.1 || self.replay.now_ns() < self.to_ns)
    }
}

impl Recording {
    /// Fails if a window has no length, or lies outside the recorded time.
    pub(crate) fn check_window(&self, from_ns: u64, to_ns: u64) -> Result<(), Error> {
        let (start_ns, end_ns) = self.span_ns();
        // The time of the first pass is known only at its end, and a mark may be inside that pass.
        let is_mark = self.marks().iter().any(|mark| mark.time_ns == to_ns);
        let is_before = to_ns < start_ns && !is_mark;
        if from_ns >= to_ns || from_ns > end_ns || is_before {
            return Err(Error::Window {
                from_ns,
                to_ns,
                start_ns,
                end_ns,
            });
        }
        Ok(())
    }
}
