//! Walks over the live blocks in slices. The lock on the ledger can be released between two slices: a walk over
//! millions of blocks takes longer than a thread of the target should wait for space in its ring.
//!
//! A walk sees every block that is live throughout the walk exactly once, because a block keeps its position in the
//! order of the walk even if the table grows in the meantime. A block that is allocated or released during the walk may
//! or may not be seen.

use crate::entry::Entry;
use crate::{Ledger, LiveBlock, Observer, SampledAllocations, SiteLive, SiteTotals};

/// Number of table slots in one slice. A single segment may have more.
const SLICE_PLACES: usize = 1 << 16;

/// Progress of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveWalk {
    /// Position of the walk, in the order that `LiveMap::live_from` describes.
    position: u64,
    /// Current shard.
    shard: usize,
    /// Number of shards at the last slice.
    shards: usize,
    /// Start of the walk in each shard except the first: the position of the walk when the ledger was divided.
    from: u64,
}

/// Walk that sums up the live blocks of each site.
#[derive(Clone, Debug, Default)]
pub struct SiteWalk {
    walk: LiveWalk,
    older_than_ns: Option<u64>,
    /// Computes what the samples represent; set if the sums of all blocks are to be estimated.
    samples: Option<SampledAllocations>,
    has_begun: bool,
    /// Sites by their dense index at the time of the first slice, one shard after the other.
    sites: Vec<SiteTotals>,
    /// Start and number of each shard's sites. If the ledger was divided after the walk began, all shards share the
    /// same indices.
    of_shard: Vec<(usize, usize)>,
    /// Counts of each site during the walk, as blocks and bytes; estimates if not all blocks are kept. Empty if the
    /// sums of the first slice are enough.
    counted: Vec<(f64, f64)>,
}

impl SiteWalk {
    /// Creates a walk over all blocks, or over those allocated before `older_than_ns` (nanoseconds since the attach).
    pub fn new(older_than_ns: Option<u64>) -> SiteWalk {
        SiteWalk {
            older_than_ns,
            ..SiteWalk::default()
        }
    }

    /// Creates a walk that estimates sums of all blocks from the recorded samples. Live sums are unbiased; allocated
    /// sums use the mean size of the site's samples.
    pub fn estimating(samples: &SampledAllocations) -> SiteWalk {
        SiteWalk {
            samples: samples.sample_bytes().map(|_| *samples),
            ..SiteWalk::default()
        }
    }

    /// Returns every call stack seen so far, ordered by id. `bytes` and `blocks` are sums of the walked blocks.
    pub fn into_sites(self) -> Vec<SiteTotals> {
        let mut sites = self.into_sites_by_sampling();
        // Samples of a stack are separate sites.
        sites.dedup_by(|site, of_stack| {
            let is_same = site.stack == of_stack.stack;
            if is_same {
                of_stack.add(site);
            }
            is_same
        });
        sites.iter_mut().for_each(|site| site.sampling = 0);
        sites
    }

    /// Like [`LiveWalk::into_sites`], with the samples of a stack as separate sites.
    pub fn into_sites_by_sampling(mut self) -> Vec<SiteTotals> {
        for (site, (blocks, bytes)) in self.sites.iter_mut().zip(self.counted) {
            (site.blocks, site.bytes) = (blocks.round() as u64, bytes.round() as u64);
            if self.older_than_ns.is_none() {
                site.released_blocks = site.allocated_blocks.saturating_sub(site.blocks);
                site.released_bytes = site.allocated_bytes.saturating_sub(site.bytes);
            }
        }
        for site in &mut self.sites {
            if site.oldest_ns == u64::MAX {
                site.oldest_ns = 0;
            }
        }
        let key = |site: &SiteTotals| (site.stack, site.sampling);
        self.sites.sort_unstable_by_key(key);
        // Counts of several shards.
        self.sites.dedup_by(|site, of_stack| {
            let is_same = key(site) == key(of_stack);
            if is_same {
                of_stack.add(site);
            }
            is_same
        });
        self.sites
    }

    /// Returns the sites with live blocks, ordered by stack id.
    pub fn into_live(self) -> Vec<SiteLive> {
        let sites = self.into_sites().into_iter();
        sites
            .filter(|site| site.blocks > 0)
            .map(|site| SiteLive {
                stack: site.stack,
                bytes: site.bytes,
                blocks: site.blocks,
                oldest_ns: site.oldest_ns,
            })
            .collect()
    }
}

impl<O: Observer> Ledger<O> {
    /// Passes the blocks of the next slice to `each`. Returns true if there are more slices.
    pub fn walk_blocks(&self, walk: &mut LiveWalk, mut each: impl FnMut(LiveBlock)) -> bool {
        self.choose_shard(walk);
        match walk.shard.checked_sub(1) {
            None => self.walk(walk, |entry| each(self.live_block(entry))),
            Some(other) => {
                let other = &self.others[other];
                other.walk(walk, |entry| each(other.live_block(entry)))
            }
        }
        self.has_more(walk)
    }

    /// Takes the next slice. Returns true if there are more.
    ///
    /// Without an age limit, and as long as all blocks are kept, the blocks and bytes of all sites are those at the
    /// time of the first slice.
    pub fn walk_sites(&self, walk: &mut SiteWalk) -> bool {
        if !std::mem::replace(&mut walk.has_begun, true) {
            self.begin_sites(walk);
            self.others.iter().for_each(|other| other.begin_sites(walk));
            let is_counted = walk.older_than_ns.is_some() || walk.samples.is_some();
            if is_counted || self.map.is_thinned() {
                walk.counted = vec![(0.0, 0.0); walk.sites.len()];
            }
        }
        self.choose_shard(&mut walk.walk);
        match walk.walk.shard.checked_sub(1) {
            None => self.walk_own_sites(walk),
            Some(other) => self.others[other].walk_own_sites(walk),
        }
        self.has_more(&mut walk.walk)
    }

    /// Notes the sums of this shard.
    fn begin_sites(&self, walk: &mut SiteWalk) {
        let begin = walk.sites.len();
        let samples = &walk.samples;
        walk.sites.extend(self.sites.all().iter().map(|site| {
            let each = samples.map_or(1.0, |samples| {
                let mean = site.allocated_bytes / site.allocated_blocks.max(1);
                samples.weight_of(site.level, mean)
            });
            let all = |sum: u64| (sum as f64 * each).round() as u64;
            let all = |sum: u64| if each == 1.0 { sum } else { all(sum) };
            SiteTotals {
                stack: site.stack,
                sampling: site.level,
                bytes: site.allocated_bytes.saturating_sub(site.released_bytes),
                blocks: site.allocated_blocks.saturating_sub(site.released_blocks),
                oldest_ns: u64::MAX,
                allocated_blocks: all(site.allocated_blocks),
                allocated_bytes: all(site.allocated_bytes),
                released_blocks: all(site.released_blocks),
                released_bytes: all(site.released_bytes),
                min_size: site.min_size,
                max_size: site.max_size,
            }
        }));
        walk.of_shard.push((begin, self.sites.len()));
    }

    fn walk_own_sites(&self, walk: &mut SiteWalk) {
        let SiteWalk {
            walk: place,
            older_than_ns,
            sites,
            of_shard,
            counted,
            samples,
            ..
        } = walk;
        let shard = of_shard.get(place.shard).or(of_shard.first());
        let (begin, count) = shard.copied().unwrap_or_default();
        self.walk(place, |entry| {
            let (index, time_ns) = (entry.site() as usize, entry.time_ns());
            if older_than_ns.is_some_and(|limit| time_ns >= limit) {
                return;
            }
            // Sites that are younger than the walk are not included.
            if index >= count {
                return;
            }
            let index = begin + index;
            let site = &mut sites[index];
            site.oldest_ns = site.oldest_ns.min(time_ns);
            if let Some((blocks, bytes)) = counted.get_mut(index) {
                let size = self.map.size_of(entry);
                let of_sample = samples.map_or(1.0, |samples| {
                    samples.weight_of(self.sites.level_of(entry.site()), size)
                });
                let weight = self.weight(size) * of_sample;
                *blocks += weight;
                *bytes += weight * size as f64;
            }
        });
    }

    /// Prepares a slice.
    fn choose_shard(&self, walk: &mut LiveWalk) {
        if walk.shards != self.shards() {
            (walk.shards, walk.from) = (self.shards(), walk.position);
        }
    }

    /// Ends a slice; returns true if there are more.
    fn has_more(&self, walk: &mut LiveWalk) -> bool {
        if !is_over(walk) {
            return true;
        }
        if walk.shard + 1 == self.shards() {
            return false;
        }
        (walk.shard, walk.position) = (walk.shard + 1, walk.from);
        true
    }

    fn walk(&self, walk: &mut LiveWalk, mut each: impl FnMut(Entry)) {
        let mut places = 0;
        while places < SLICE_PLACES {
            let Some((more, entries, next)) = self.map.live_from(walk.position) else {
                return;
            };
            entries.for_each(&mut each);
            places += more;
            walk.position = next;
        }
    }
}

/// Returns true if nothing of the shard remains.
fn is_over(walk: &LiveWalk) -> bool {
    walk.position > u64::from(u32::MAX)
}
