//! Questions to a ledger. Those about live blocks walk the whole table.

use crate::{Ledger, LiveBlock, Site, SiteLive, Totals};
use rustc_hash::FxHashMap;

impl Ledger {
    /// Sums over the whole run.
    pub fn totals(&self) -> Totals {
        let live_bytes = self.live_bytes();
        Totals {
            live_bytes,
            live_blocks: self.map.live() as u64,
            ..self.totals
        }
    }

    /// Sums of every allocation site that was ever seen, ordered by stack id.
    pub fn sites(&self) -> Vec<Site> {
        let sums = self.sites.all();
        let mut oldest = vec![u64::MAX; sums.len()];
        for entry in self.map.iter_live() {
            let oldest = &mut oldest[entry.site() as usize];
            *oldest = entry.time_ns().min(*oldest);
        }
        let mut sites: Vec<Site> = sums
            .iter()
            .zip(oldest)
            .map(|(site, oldest)| Site {
                stack: site.stack,
                bytes: site.allocated_bytes - site.released_bytes,
                blocks: site.allocated_blocks - site.released_blocks,
                oldest_ns: if oldest == u64::MAX { 0 } else { oldest },
                allocated_blocks: site.allocated_blocks,
                allocated_bytes: site.allocated_bytes,
                released_blocks: site.released_blocks,
                released_bytes: site.released_bytes,
                min_size: site.min_size,
                max_size: site.max_size,
            })
            .collect();
        sites.sort_unstable_by_key(|site| site.stack);
        sites
    }

    /// All live blocks, in no order.
    pub fn live_blocks(&self) -> impl Iterator<Item = LiveBlock> + '_ {
        self.map.iter_live().map(|entry| LiveBlock {
            address: entry.address(),
            size: self.map.size_of(entry),
            stack: self.sites.stack_of(entry.site()),
            time_ns: entry.time_ns(),
            tid: self.threads.tid_of(entry.tid_index()),
        })
    }

    /// Live sums by stack id, ordered by it, of the blocks allocated before `older_than_ns`
    /// (nanoseconds since the attach), or of all.
    pub fn live_by(&self, older_than_ns: Option<u64>) -> Vec<SiteLive> {
        let mut sums: FxHashMap<u32, SiteLive> = FxHashMap::default();
        for block in self.live_blocks() {
            if older_than_ns.is_some_and(|limit| block.time_ns >= limit) {
                continue;
            }
            let sum = sums.entry(block.stack).or_insert(SiteLive {
                stack: block.stack,
                bytes: 0,
                blocks: 0,
                oldest_ns: u64::MAX,
            });
            sum.bytes += block.size;
            sum.blocks += 1;
            sum.oldest_ns = sum.oldest_ns.min(block.time_ns);
        }
        let mut sums: Vec<_> = sums.into_values().collect();
        sums.sort_unstable_by_key(|sum| sum.stack);
        sums
    }

    /// Live blocks by size: (size, bytes, blocks), ordered by size.
    pub fn by_size(&self) -> Vec<(u64, u64, u64)> {
        self.live_sums(|block| block.size)
    }

    /// Live blocks by allocating thread: (tid, bytes, blocks), ordered by tid.
    pub fn by_thread(&self) -> Vec<(u32, u64, u64)> {
        self.live_sums(|block| block.tid)
    }

    /// Releases of known blocks by the backtrace of the release: (stack, blocks, bytes), ordered by
    /// stack id; empty unless [`LedgerOptions::track_release_stacks`](crate::LedgerOptions).
    ///
    /// When an address changes hands several times within one pass and its sizes differ, a size may
    /// be counted at the release of a neighbour in time; the sums over all stacks are exact.
    pub fn release_sites(&self) -> Vec<(u32, u64, u64)> {
        self.release_sites.all()
    }

    /// Bytes of memory that the table of blocks takes.
    pub fn table_bytes(&self) -> usize {
        self.map.table_bytes()
    }

    fn live_sums<K: std::hash::Hash + Ord + Copy>(
        &self,
        key: impl Fn(&LiveBlock) -> K,
    ) -> Vec<(K, u64, u64)> {
        let mut sums: FxHashMap<K, (u64, u64)> = FxHashMap::default();
        for block in self.live_blocks() {
            let (bytes, blocks) = sums.entry(key(&block)).or_default();
            *bytes += block.size;
            *blocks += 1;
        }
        let mut sums: Vec<_> = sums.into_iter().map(|(k, (a, b))| (k, a, b)).collect();
        sums.sort_unstable_by_key(|sum| sum.0);
        sums
    }
}
