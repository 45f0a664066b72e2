//! Restores a ledger from a checkpoint.
//!
//! The live blocks are fed as allocations, old blocks some passes before the others. The latest
//! events of addresses that changed in the last two passes before the checkpoint are fed with their
//! sequence numbers, because older events of these addresses may still arrive. The allocation of a
//! live block is fed unchanged. A release is fed together with an artificial allocation for it to
//! release. The fed events are then subtracted from the ledger's sums, and the sums of the
//! checkpoint are added.

use crate::Error;
use crate::file::checkpoint::Checkpoint;
use crate::file::reader::MAX_TOTAL_BYTES;
use crate::replay::recent::{Latest, Recent};
use memhook_abi::{Event, Op, SEQUENCE_BITS, sequence_before};
use memhook_ledger::{Ledger, LiveBlock, Observer, SiteTotals, Totals};
use rustc_hash::FxHashMap;

/// Number of passes after which new events are later than everything before the checkpoint.
const FRESH_PASSES: u64 = 2;

/// Corrections of the ledger's sums.
pub(crate) struct Restored {
    base: Checkpoint,
    /// Totals of the ledger directly after the events were fed.
    fed: Totals,
    fed_sites: FxHashMap<u32, SiteTotals>,
    fed_releases: FxHashMap<u32, (u64, u64)>,
    recent: FxHashMap<u64, Latest>,
    /// Number of passes since the checkpoint; counted only as long as it matters.
    passes: u64,
    /// Number of releases that were fed in addition to the recorded ones.
    extra_releases: u64,
}

fn event(op: Op, address: u64, sequence: u32, size: u64, stack: u32) -> Event {
    Event {
        op,
        address,
        sequence,
        size: size.min(u64::from(u32::MAX)) as u32,
        stack,
        value: 0,
    }
}

struct Feeder<'a, O> {
    ledger: &'a mut Ledger<O>,
    tid: Option<u32>,
}

impl<O: Observer> Feeder<'_, O> {
    fn block(&mut self, block: &LiveBlock, sequence: u32) {
        if self.tid != Some(block.tid) {
            self.ledger.begin_ring(0, block.tid);
            self.tid = Some(block.tid);
        }
        let allocation = event(
            Op::Allocation,
            block.address,
            sequence,
            block.size,
            block.stack,
        );
        self.ledger.event(allocation, block.size, block.time_ns);
    }
}

impl Restored {
    pub fn feed<O: Observer>(
        mut base: Checkpoint,
        recent: Recent,
        ledger: &mut Ledger<O>,
    ) -> Result<Self, Error> {
        let mut bytes = 0u64;
        for block in &base.blocks {
            bytes = bytes.saturating_add(block.size);
            if bytes > MAX_TOTAL_BYTES {
                return Err(Error::damaged("more live bytes than a process can have"));
            }
        }
        let mut feeder = Feeder { ledger, tid: None };
        let mut latest = recent.latest;
        let mut young = [Vec::new(), Vec::new()];
        for block in std::mem::take(&mut base.blocks) {
            match latest.remove(&block.address) {
                Some(event) if !event.is_release => {
                    young[usize::from(event.of_last_pass)].push((block, event.sequence));
                }
                _ => feeder.block(&block, 0),
            }
        }
        for _ in 0..=FRESH_PASSES {
            feeder.ledger.end_pass(base.time_ns);
        }
        // Each block keeps its pass, which decides whether it came before another thread's pair of
        // events.
        let [before_last, last] = young;
        for (block, sequence) in &before_last {
            feeder.block(block, *sequence);
        }
        feeder.ledger.end_pass(base.time_ns);
        // With more than one ring, only the live blocks at the end of a pass count for the peak.
        // The blocks that are fed for the releases below must not count.
        for _ in 0..2 {
            feeder.ledger.begin_ring(0, feeder.tid.unwrap_or(0));
        }
        for (block, sequence) in &last {
            feeder.block(block, *sequence);
        }
        latest.retain(|_, event| event.is_release);
        // Pairs of an existing site leave no trace.
        let (stack, size) = base.sites.first().map_or((0, 0), |s| (s.stack, s.min_size));
        if size.saturating_mul(latest.len() as u64) > MAX_TOTAL_BYTES {
            return Err(Error::damaged("a size that no allocator grants"));
        }
        for (&address, release) in &latest {
            let before = release.sequence.wrapping_sub(1) & ((1 << SEQUENCE_BITS) - 1);
            let block = LiveBlock {
                address,
                size,
                stack,
                time_ns: base.time_ns,
                tid: feeder.tid.unwrap_or(0),
                sampling: 0,
            };
            feeder.block(&block, before);
            let release = event(Op::Release, address, release.sequence, 0, release.stack);
            feeder.ledger.event(release, 0, base.time_ns);
        }
        for (ring, tid, event) in recent.announced {
            ledger.begin_ring(ring, tid);
            ledger.event(event, 0, base.time_ns);
        }
        ledger.end_pass(base.time_ns);
        Ok(Self {
            fed: ledger.totals(),
            fed_sites: ledger.sites().into_iter().map(|s| (s.stack, s)).collect(),
            fed_releases: ledger
                .release_sites()
                .into_iter()
                .map(|(stack, blocks, bytes)| (stack, (blocks, bytes)))
                .collect(),
            base,
            recent: latest,
            passes: 0,
            extra_releases: 0,
        })
    }

    /// Returns true if events from before the checkpoint may still arrive.
    #[inline]
    pub fn is_fresh(&self) -> bool {
        self.passes < FRESH_PASSES
    }

    pub fn end_pass(&mut self, passes: u64) {
        self.passes = self.passes.saturating_add(passes);
    }

    /// Handles an allocation that was released before the checkpoint. The checkpoint counted that
    /// release as a release of an unknown block, and the release was fed with an artificial block.
    /// Now the release gets this allocation as its block.
    #[cold]
    pub fn after<O: Observer>(&mut self, event: &Event, ledger: &mut Ledger<O>) {
        if event.op != Op::Allocation {
            return;
        }
        if let Some(release) = self.recent.get(&event.address)
            && sequence_before(event.sequence, release.sequence)
        {
            let release = self::event(
                Op::Release,
                event.address,
                release.sequence,
                0,
                release.stack,
            );
            ledger.event(release, 0, self.base.time_ns);
            self.extra_releases += 1;
        }
    }

    pub fn totals(&self, now: &Totals, ignore_unknown: bool) -> Totals {
        let (base, fed) = (&self.base.totals, &self.fed);
        let sum = |field: fn(&Totals) -> u64| corrected(field(base), field(now), field(fed));
        let releases = sum(|t| t.releases).saturating_sub(self.extra_releases);
        let unhooked = sum(|t| t.unhooked_releases);
        // Every release belongs to a released block or to an unknown one, and every released block
        // has either a hooked release or an unhooked one.
        let released_blocks: u64 = self.released_blocks_of(now);
        let unknown = (releases.saturating_add(unhooked)).saturating_sub(released_blocks);
        Totals {
            allocations: sum(|t| t.allocations),
            releases,
            allocated_bytes: sum(|t| t.allocated_bytes),
            released_bytes: sum(|t| t.released_bytes),
            live_bytes: now.live_bytes,
            live_blocks: now.live_blocks,
            unknown_releases: if ignore_unknown { 0 } else { unknown },
            unhooked_releases: unhooked,
            peak_live_bytes: base.peak_live_bytes.max(now.peak_live_bytes),
        }
    }

    /// Returns the number of blocks released over the whole run: allocated blocks that are not
    /// live.
    fn released_blocks_of(&self, now: &Totals) -> u64 {
        corrected(
            self.base.totals.allocations,
            now.allocations,
            self.fed.allocations,
        )
        .saturating_sub(now.live_blocks)
    }

    pub fn sites(&self, now: &[SiteTotals]) -> Vec<SiteTotals> {
        let mut sites: FxHashMap<u32, SiteTotals> = FxHashMap::default();
        for site in &self.base.sites {
            // Assumes that the site has no live blocks; the loop below adds those that the ledger
            // has.
            let released = SiteTotals {
                bytes: 0,
                blocks: 0,
                oldest_ns: 0,
                ..*site
            };
            sites.insert(site.stack, released);
        }
        for site in now {
            let fed = self.fed_sites.get(&site.stack);
            let base = sites.get(&site.stack).copied();
            let sum = |field: fn(&SiteTotals) -> u64| {
                let (base, fed) = (base.as_ref().map_or(0, field), fed.map_or(0, field));
                corrected(base, field(site), fed)
            };
            let merged = SiteTotals {
                stack: site.stack,
                sampling: 0,
                bytes: site.bytes,
                blocks: site.blocks,
                oldest_ns: site.oldest_ns,
                allocated_blocks: sum(|s| s.allocated_blocks),
                allocated_bytes: sum(|s| s.allocated_bytes),
                released_blocks: sum(|s| s.released_blocks),
                released_bytes: sum(|s| s.released_bytes),
                min_size: base.map_or(site.min_size, |b| b.min_size.min(site.min_size)),
                max_size: base.map_or(site.max_size, |b| b.max_size.max(site.max_size)),
            };
            if merged.allocated_blocks > 0 {
                sites.insert(site.stack, merged);
            }
        }
        let mut sites: Vec<_> = sites.into_values().collect();
        sites.sort_unstable_by_key(|site| site.stack);
        sites
    }

    pub fn release_sites(&self, now: &[(u32, u64, u64)]) -> Vec<(u32, u64, u64)> {
        let mut sums: FxHashMap<u32, (u64, u64)> = FxHashMap::default();
        for &(stack, blocks, bytes) in &self.base.release_sites {
            sums.insert(stack, (blocks, bytes));
        }
        for &(stack, blocks, bytes) in now {
            let fed = self.fed_releases.get(&stack).copied().unwrap_or_default();
            let sum = sums.entry(stack).or_default();
            sum.0 = corrected(sum.0, blocks, fed.0);
            sum.1 = corrected(sum.1, bytes, fed.1);
        }
        let mut sums: Vec<_> = sums
            .into_iter()
            .filter(|(_, sum)| sum.0 > 0)
            .map(|(stack, (blocks, bytes))| (stack, blocks, bytes))
            .collect();
        sums.sort_unstable();
        sums
    }
}

/// Returns a sum over the whole run.
fn corrected(base: u64, now: u64, fed: u64) -> u64 {
    base.saturating_add(now).saturating_sub(fed)
}
