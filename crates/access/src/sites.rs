//! Live blocks of a process by site, with the known times of their accesses.

use crate::ages::{BANDS, band};
use crate::pages::Writes;
use crate::random::Random;
use rustc_hash::FxHashMap;

/// Blocks that are reported together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// Blocks that a call stack has allocated, by its id.
    Stack(u32),
    /// Pre-attach blocks of one type and size; the value is the index of that kind.
    Kind(u32),
    /// Pages from before the attach whose blocks are unknown.
    Pages,
}

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// Its address.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Its site.
    pub site: Site,
    /// Time of the allocation; `None` if it was before the attach.
    pub allocated_ms: Option<u32>,
}

/// Question about a block that page evidence leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stratum {
    /// The block has not been written for the required time, but may have been read.
    Unwritten,
    /// The block may have been written: it shares pages with blocks that were written, or its pages
    /// have not been write-protected for long enough.
    Open,
}

/// The strata.
pub const STRATA: [Stratum; 2] = [Stratum::Unwritten, Stratum::Open];

/// Blocks of one stratum of one site.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Their bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes multiplied by the time, in ms, for which no access to them was seen.
    pub idle_byte_ms: f64,
    /// The block with the largest product of bytes and time.
    pub most_idle: Option<LiveBlock>,
    most_idle_byte_ms: f64,
    /// A sample of the blocks, drawn with replacement and with probability proportional to size.
    pub drawn: Vec<LiveBlock>,
}

/// Sample size of each part. Each block is observed only once. Otherwise, a block whose accesses
/// are frequent would be observed repeatedly while an idle block is still being watched.
const DRAWN: usize = 32;

impl Part {
    fn count(&mut self, block: &LiveBlock, idle_ms: u32) {
        self.bytes += block.bytes;
        self.blocks += 1;
        let idle_byte_ms = block.bytes as f64 * f64::from(idle_ms);
        self.idle_byte_ms += idle_byte_ms;
        if self.most_idle.is_none() || idle_byte_ms > self.most_idle_byte_ms {
            self.most_idle = Some(*block);
            self.most_idle_byte_ms = idle_byte_ms;
        }
    }

    fn add(&mut self, block: &LiveBlock, idle_ms: u32, random: &mut Random) {
        self.count(block, idle_ms);
        if self.drawn.is_empty() {
            self.drawn = vec![*block; DRAWN];
            return;
        }
        // The block replaces each element of the sample with a probability equal to the block's
        // share of the bytes so far. A block with a small share rarely replaces more than one
        // element.
        let probability = block.bytes as f64 / self.bytes as f64;
        let expected = probability * DRAWN as f64;
        if expected < 0.1 {
            if random.share() < expected {
                self.drawn[random.below(DRAWN as u64) as usize] = *block;
            }
            return;
        }
        for place in &mut self.drawn {
            if random.share() < probability {
                *place = *block;
            }
        }
    }
}

/// The blocks of one site.
#[derive(Clone, Debug, Default)]
pub struct SiteBlocks {
    /// Bytes of all live blocks.
    pub live_bytes: u64,
    /// Number of all live blocks.
    pub live_blocks: u64,
    /// Bytes of blocks that were certainly accessed within the required time.
    pub touched_bytes: u64,
    /// Blocks that were certainly neither read nor written within the required time. They are never
    /// drawn.
    pub idle: Part,
    /// The other blocks, by stratum.
    pub parts: [Part; 2],
    /// Last time at which a block of the site was certainly accessed.
    pub last_access_ms: Option<u32>,
    /// Bytes of blocks with a watched word that was accessed within the required time.
    pub hit_bytes: u64,
    /// True if the site's state is known well enough that watching other sites is more informative.
    pub is_known: bool,
}

/// A census of the live blocks at one moment.
pub struct Census<'a> {
    older_ms: u32,
    now_ms: u32,
    hits: &'a FxHashMap<u64, u32>,
    random: Random,
    /// Blocks by site.
    pub sites: FxHashMap<Site, SiteBlocks>,
    /// Bytes of all sites, by the time without a touch.
    pub ages: [u64; BANDS],
}

impl<'a> Census<'a> {
    /// Creates an empty census. `hits` maps block addresses to the times of their last observed
    /// accesses.
    pub fn new(older_ms: u32, now_ms: u32, hits: &'a FxHashMap<u64, u32>, random: Random) -> Self {
        Census {
            older_ms,
            now_ms,
            hits,
            random,
            sites: FxHashMap::default(),
            ages: [0; BANDS],
        }
    }

    /// Counts a block, given the known `writes` to its pages. `written_ms` is the latest time at
    /// which the pages may have been written. `idle_since` is the time since which they have
    /// certainly not been accessed, if it is long enough ago.
    pub fn add(
        &mut self,
        block: &LiveBlock,
        writes: Writes,
        written_ms: u32,
        idle_since: Option<u32>,
    ) {
        if block.bytes == 0 {
            return;
        }
        let site = self.sites.entry(block.site).or_default();
        site.live_bytes += block.bytes;
        site.live_blocks += 1;
        let hit = self.hits.get(&block.address).copied();
        let hit = hit.filter(|&at| block.allocated_ms.is_none_or(|allocated| at >= allocated));
        let touched_ms = [hit, block.allocated_ms].into_iter().flatten().max();
        let touched_ms = touched_ms.map_or(written_ms, |at| at.max(written_ms));
        self.ages[band(self.now_ms.saturating_sub(touched_ms))] += block.bytes;
        let write = match writes {
            Writes::At(at) => Some(at),
            _ => None,
        };
        let horizon_ms = self.now_ms.saturating_sub(self.older_ms);
        let is_recent = |at: u32| at > horizon_ms;
        site.last_access_ms = [site.last_access_ms, hit, write, block.allocated_ms]
            .into_iter()
            .flatten()
            .max();
        if hit.is_some_and(is_recent) {
            site.hit_bytes += block.bytes;
        }
        if block.allocated_ms.is_some_and(is_recent) || write.is_some_and(is_recent) {
            site.touched_bytes += block.bytes;
            return;
        }
        if let Some(since) = idle_since.filter(|_| !hit.is_some_and(is_recent)) {
            let idle_ms = self.now_ms.saturating_sub(since);
            site.idle.count(block, idle_ms);
            return;
        }
        let (part, since_ms) = match writes {
            Writes::NoneSince(since) => (0, since),
            _ => (1, horizon_ms),
        };
        let since_ms = hit.map_or(since_ms, |at| at.max(since_ms));
        let idle_ms = self.now_ms.saturating_sub(since_ms);
        site.parts[part].add(block, idle_ms, &mut self.random);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(address: u64, bytes: u64, allocated_ms: Option<u32>) -> LiveBlock {
        LiveBlock {
            address,
            bytes,
            site: Site::Stack(1),
            allocated_ms,
        }
    }

    #[test]
    fn what_is_known_of_each_block() {
        let hits = FxHashMap::from_iter([(4, 9500), (5, 100)]);
        let mut census = Census::new(5000, 10_000, &hits, Random::seeded(1));
        census.add(&block(1, 10, Some(6000)), Writes::Unknown, 9999, None);
        census.add(&block(2, 100, Some(10)), Writes::At(7000), 7000, None);
        census.add(&block(3, 1000, None), Writes::NoneSince(2000), 2000, None);
        census.add(&block(4, 10_000, None), Writes::Unknown, 0, None);
        // The hit was on a block that no longer exists.
        census.add(
            &block(5, 100_000, Some(200)),
            Writes::NoneSince(4000),
            4000,
            None,
        );
        // The block counts as not accessed unless a hit shows otherwise.
        census.add(&block(6, 7, Some(4)), Writes::NoneSince(5), 5, Some(3000));
        let site = census.sites.get_mut(&Site::Stack(1)).expect("counted");
        let idle = (site.idle.bytes, site.idle.blocks, site.idle.idle_byte_ms);
        assert_eq!(idle, (7, 1, 7.0 * 7000.0));
        (site.live_bytes, site.live_blocks) = (site.live_bytes - 7, site.live_blocks - 1);
        assert_eq!(site.parts[0].most_idle.map(|b| b.address), Some(5));
        assert_eq!((site.live_bytes, site.live_blocks), (111_110, 5));
        assert_eq!((site.touched_bytes, site.hit_bytes), (110, 10_000));
        assert_eq!(
            (site.parts[0].bytes, site.parts[1].bytes),
            (101_000, 10_000)
        );
        assert_eq!(site.last_access_ms, Some(9500));
        assert_eq!(
            site.parts[0].idle_byte_ms,
            1000.0 * 8000.0 + 100_000.0 * 6000.0
        );
        assert_eq!(census.ages, [10_010, 0, 100, 100_000, 1007, 0, 0]);
    }

    #[test]
    fn blocks_are_drawn_by_their_size() {
        let hits = FxHashMap::default();
        let mut large = 0;
        for seed in 0..125 {
            let mut census = Census::new(1, 10, &hits, Random::seeded(seed));
            for address in 0..10 {
                let bytes = if address == 3 { 900 } else { 100 };
                census.add(&block(address, bytes, None), Writes::Unknown, 0, None);
            }
            let drawn = &census.sites[&Site::Stack(1)].parts[1].drawn;
            large += drawn.iter().filter(|b| b.address == 3).count();
        }
        // Half of the bytes are in one block.
        assert!((1800..2200).contains(&large), "{large} of 4000");
    }
}
