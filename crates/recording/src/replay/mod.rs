//! Replays a recording into a ledger.

pub(crate) mod pipeline;
pub(crate) mod recent;
pub(crate) mod restore;
pub(crate) mod stretch;

use crate::file::decode::Visitor;
use crate::file::format::Kind;
use crate::file::summary::SiteInterval;
use crate::replay::recent::LastPasses;
use crate::replay::restore::Restored;
use crate::replay::stretch::{Stretch, Watch};
use crate::{Error, Recording};
use memhook_abi::{Accesses, Event};
use memhook_ledger::{Ledger, LedgerOptions, Observer, SiteTotals, Totals};
use rustc_hash::FxHashMap;

/// Number of consecutive passes without events that are replayed. After that number of passes, no event is pending in a
/// ledger, because a ledger remembers events for at most 16 passes.
const MAX_EMPTY_PASSES: u64 = 32;

/// A ledger fed from a recording, from its start or from a checkpoint.
///
/// The ledger may report each block to an observer; see [`Observer`].
pub struct Replay<O = ()> {
    pub(crate) ledger: Ledger<O>,
    options: LedgerOptions,
    restored: Option<Restored>,
    now_ns: u64,
    /// Accesses of the block that the next event releases, if known.
    accesses: Option<Accesses>,
    /// Last number assigned to known accesses.
    access_number: u32,
}

impl<O: Observer> Replay<O> {
    fn new(options: LedgerOptions, observer: O) -> Self {
        Self {
            ledger: Ledger::observed(options, observer),
            options,
            restored: None,
            now_ns: 0,
            accesses: None,
            access_number: 0,
        }
    }

    /// Returns the ledger, for queries about live blocks. The ledger's totals and sites count from the checkpoint at
    /// which the replay began. [`Replay::totals`] and [`Replay::sites`] cover the whole run.
    pub fn ledger(&self) -> &Ledger<O> {
        &self.ledger
    }

    pub(crate) fn is_restored(&self) -> bool {
        self.restored.is_some()
    }

    /// Returns the end of the last replayed pass in nanoseconds since the attach.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns sums over the run so far. They are equal to the sums of a ledger that saw all of the run.
    ///
    /// After a start from a checkpoint, `unknown_releases` and `unhooked_releases` may both be inexact if an address
    /// had releases of both kinds just before the checkpoint: the one is then too high by as much as the other is too
    /// low.
    pub fn totals(&self) -> Totals {
        let now = self.ledger.totals();
        match &self.restored {
            None => now,
            Some(restored) => restored.totals(&now, self.options.ignore_unknown_releases),
        }
    }

    /// Returns sums of every allocation site over the run so far, ordered by stack id.
    pub fn sites(&self) -> Vec<SiteTotals> {
        let now = self.ledger.sites();
        match &self.restored {
            None => now,
            Some(restored) => restored.sites(&now),
        }
    }

    /// Returns releases by the backtrace of the release: (stack, blocks, bytes), ordered by stack id.
    pub fn release_sites(&self) -> Vec<(u32, u64, u64)> {
        let now = self.ledger.release_sites();
        match &self.restored {
            None => now,
            Some(restored) => restored.release_sites(&now),
        }
    }
}

impl<O: Observer> Replay<O> {
    #[inline(always)]
    fn is_just_restored(&self) -> bool {
        self.restored.as_ref().is_some_and(Restored::is_fresh)
    }

    /// Handles an event with known accesses, or one soon after a checkpoint.
    #[inline(never)]
    fn rare_event(&mut self, mut event: Event, size: u64, time_ns: u64) {
        if let Some(accesses) = self.accesses.take() {
            // The number 0 means unknown.
            self.access_number = self.access_number.checked_add(1).unwrap_or(1);
            event.size = self.access_number;
            let number = self.access_number;
            self.ledger.observer_mut().accesses(number, &accesses);
        }
        self.ledger.event(event, size, time_ns);
        if let Some(restored) = &mut self.restored
            && restored.is_fresh()
        {
            restored.after(&event, &mut self.ledger);
        }
    }
}

impl<O: Observer> Visitor for Replay<O> {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.ledger.begin_ring(ring, tid);
    }
    fn access(&mut self, accesses: &Accesses) {
        self.accesses = Some(*accesses);
    }
    fn live_access(&mut self, accesses: &Accesses) {
        self.ledger.observer_mut().live_accesses(accesses);
    }
    #[inline(always)]
    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        if self.accesses.is_some() || self.is_just_restored() {
            self.rare_event(event, size, time_ns);
        } else {
            self.ledger.event(event, size, time_ns);
        }
    }
    fn end_pass(&mut self, now_ns: u64, passes: u64) {
        for _ in 0..passes.min(MAX_EMPTY_PASSES) {
            self.ledger.end_pass(now_ns);
        }
        if let Some(restored) = &mut self.restored {
            restored.end_pass(passes);
        }
        self.now_ns = now_ns;
    }
}

impl<O: Observer> Replay<O> {
    /// Updates the sums to this time, within a pass.
    fn cut_pass(&mut self, now_ns: u64) {
        self.ledger.apply_batch();
        // A window without an end has no time at which to cut.
        if now_ns != u64::MAX {
            self.now_ns = now_ns.max(self.now_ns);
        }
    }
}

/// A time window: the state at its end, and the activity in it. Each end is the end of the last
/// pass at or before the requested time.
pub struct Window {
    /// Start in nanoseconds since the attach.
    pub from_ns: u64,
    /// End in nanoseconds since the attach.
    pub to_ns: u64,
    /// Sums of the run up to the start.
    pub totals_before: Totals,
    /// Sites up to the start, sorted by stack id.
    pub sites_before: Vec<SiteTotals>,
    /// State at the end.
    pub replay: Replay,
}

impl Window {
    /// Returns the activity of each site in the window, sorted by stack id. Idle sites and `sizes`
    /// are left out.
    pub fn sites(&self) -> Vec<SiteInterval> {
        let before: FxHashMap<u32, &SiteTotals> =
            self.sites_before.iter().map(|s| (s.stack, s)).collect();
        let sites = self.replay.sites().into_iter().map(|now| {
            let old = before.get(&now.stack);
            let delta = |field: fn(&SiteTotals) -> u64| {
                field(&now).saturating_sub(old.map_or(0, |old| field(old)))
            };
            SiteInterval {
                stack: now.stack,
                allocated_blocks: delta(|s| s.allocated_blocks),
                allocated_bytes: delta(|s| s.allocated_bytes),
                released_blocks: delta(|s| s.released_blocks),
                released_bytes: delta(|s| s.released_bytes),
                sizes: Vec::new(),
            }
        });
        sites
            .filter(|site| site.allocated_blocks > 0 || site.released_blocks > 0)
            .collect()
    }
}

/// Observer that calls back after each pass, and stores the sums at the start.
struct EachPass<'a>(&'a mut dyn FnMut(&Replay));

impl Watch<()> for EachPass<'_> {
    type Begin = (u64, Totals, Vec<SiteTotals>);

    fn begin(&mut self, replay: &mut Replay) -> Self::Begin {
        (replay.now_ns, replay.totals(), replay.sites())
    }

    fn pass(&mut self, replay: &Replay) {
        (self.0)(replay);
    }
}

impl Recording {
    /// Replays everything in the file into a ledger, which ends with [`Ledger::finish`].
    pub fn replay(&self, options: LedgerOptions) -> Result<Replay, Error> {
        self.replay_with(options, &mut |_| {})
    }

    /// Replays the whole run. `observer` sees the state after each pass.
    pub fn replay_with(
        &self,
        options: LedgerOptions,
        observer: &mut dyn FnMut(&Replay),
    ) -> Result<Replay, Error> {
        Ok(self.stretch(0, u64::MAX, options, observer)?.replay)
    }

    /// Replays a window, beginning at the last checkpoint before it. Times are nanoseconds since
    /// the attach. `to_ns` may be after the end.
    ///
    /// Fails if the window has no length, or lies outside the recorded time.
    pub fn window(
        &self,
        from_ns: u64,
        to_ns: u64,
        options: LedgerOptions,
    ) -> Result<Window, Error> {
        self.check_window(from_ns, to_ns)?;
        let mut observer = |_: &Replay| {};
        let mut stretch = self.stretch(from_ns, to_ns, options, &mut observer)?;
        let (from_ns, totals_before, sites_before) = stretch.begin_or_now();
        let replay = stretch.replay;
        Ok(Window {
            from_ns,
            to_ns: replay.now_ns,
            totals_before,
            sites_before,
            replay,
        })
    }

    fn stretch<'a>(
        &self,
        from_ns: u64,
        to_ns: u64,
        options: LedgerOptions,
        observer: &'a mut dyn FnMut(&Replay),
    ) -> Result<Stretch<(), EachPass<'a>>, Error> {
        if self.is_summary() {
            return Err(Error::Mode {
                holds: "sums of intervals",
                wanted: "events",
            });
        }
        let (replay, start) = self.start_before(from_ns, options, || ())?;
        let mut stretch = Stretch::new(replay, from_ns, to_ns, EachPass(observer));
        stretch.run(self, start)?;
        stretch.replay.ledger.finish();
        Ok(stretch)
    }

    /// Returns the state at the last usable checkpoint at or before `from_ns`, and the chunk after it. Without a
    /// checkpoint, returns an empty ledger and the first chunk.
    pub(crate) fn start_before<O: Observer>(
        &self,
        from_ns: u64,
        options: LedgerOptions,
        observer: impl Fn() -> O,
    ) -> Result<(Replay<O>, usize), Error> {
        let mut starts: Vec<usize> = self.checkpoint_starts().collect();
        let chunks = &self.file.chunks;
        // A later part lacks the events before it, so it always begins with a checkpoint.
        let needs_one = self.part() > 0;
        let first = starts.first().copied();
        starts.retain(|&at| chunks[at].from_ns <= from_ns || (needs_one && Some(at) == first));
        let mut last_error = Error::damaged("this part of a recording has no checkpoint");
        for &at in starts.iter().rev() {
            match self.restore(at, options, observer()) {
                Ok(Some(replay)) => return Ok((replay, at + 1)),
                Ok(None) => {}
                Err(error) => last_error = error,
            }
        }
        if needs_one {
            return Err(last_error);
        }
        Ok((Replay::new(options, observer()), 0))
    }

    fn restore<O: Observer>(
        &self,
        at: usize,
        options: LedgerOptions,
        observer: O,
    ) -> Result<Option<Replay<O>>, Error> {
        let Some(checkpoint) = self.read_checkpoint(at)? else {
            return Ok(None);
        };
        let recent = self.passes_before(at)?.evaluate();
        let mut replay = Replay::new(options, observer);
        replay.now_ns = checkpoint.time_ns;
        replay.restored = Some(Restored::feed(checkpoint, recent, &mut replay.ledger)?);
        Ok(Some(replay))
    }

    /// Returns the last two passes before chunk `at`.
    fn passes_before(&self, at: usize) -> Result<LastPasses, Error> {
        let before = self.file.chunks[..at].iter();
        let of_events = [Kind::Events, Kind::LeadIn];
        let frames: Vec<_> = before.filter(|c| of_events.contains(&c.kind)).collect();
        let mut taken = 1;
        loop {
            let start = frames.len().saturating_sub(taken);
            let mut passes = LastPasses::default();
            let mut decoder = crate::file::decode::Decoder::new();
            for chunk in &frames[start..] {
                let payload = self.file.payload(chunk)?;
                let result = decoder.frame(&payload, &mut passes);
                result.map_err(|error| error.in_chunk_at(chunk.offset))?;
            }
            // The first pass may have begun in an earlier frame.
            if passes.count >= 3 || start == 0 {
                return Ok(passes);
            }
            taken *= 2;
        }
    }
}
