//! Sums by allocation site, and small tables that entries of the live map refer to.

use crate::estimate::MOST_LEVELS;
use crate::observer::CountedSite;
use rustc_hash::FxHashMap;

/// Sums of one allocation site. Live sums are the allocated sums minus the released sums.
///
/// Fills one cache line, because sites are accessed in random order.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct SiteSums {
    pub stack: u32,
    /// Sampling level of its allocations ([`crate::Ledger::set_sampling`]). Allocations with the same stack but another
    /// level belong to another site.
    pub level: u8,
    pub allocated_blocks: u64,
    pub allocated_bytes: u64,
    pub released_blocks: u64,
    pub released_bytes: u64,
    pub min_size: u64,
    pub max_size: u64,
}

impl SiteSums {
    pub fn new(stack: u32, level: u8) -> Self {
        Self {
            stack,
            level,
            allocated_blocks: 0,
            allocated_bytes: 0,
            released_blocks: 0,
            released_bytes: 0,
            min_size: u64::MAX,
            max_size: 0,
        }
    }
}

const CHUNK: usize = 4096;
/// Number of sampling levels: one for no sampling, and one for each mean sampling interval.
pub(crate) const LEVELS: usize = MOST_LEVELS as usize + 1;

/// All sites, by a dense index. There are never more sites than stack ids, so 26 bits suffice.
#[derive(Default)]
pub(crate) struct SiteTable {
    sites: Vec<SiteSums>,
    /// Index + 1 by stack id, in chunks that are created when one of their ids first occurs. Ids are dense, because
    /// they are positions in an arena. Each sampling level has its own table, created at its first use.
    by_stack: [Vec<Option<Box<[u32; CHUNK]>>>; LEVELS],
    /// Level of sampling of the current allocations.
    level: u8,
    /// Stack of the last lookup, and its index. The same call site often allocates many times in a row.
    last: Option<(u32, u32)>,
    /// Once there are too many sites: for each sampling level, the site that counts the allocations of all other
    /// stacks, and its previous count.
    others: Option<[Option<(u32, u64)>; LEVELS]>,
}

impl SiteTable {
    /// Returns the same sites without counts.
    pub fn without_sums(&self) -> SiteTable {
        let sites = self.sites.iter();
        SiteTable {
            sites: sites
                .map(|site| SiteSums::new(site.stack, site.level))
                .collect(),
            by_stack: self.by_stack.clone(),
            ..SiteTable::default()
        }
    }

    /// Moves a block's contribution to its site's sums to another table. The site has the same index in both tables.
    pub fn hand_over(&mut self, other: &mut SiteTable, index: u32, size: u64, is_released: bool) {
        let here = &mut self.sites[index as usize];
        let there = &mut other.sites[index as usize];
        here.allocated_blocks -= 1;
        here.allocated_bytes -= size;
        there.allocated_blocks += 1;
        there.allocated_bytes += size;
        if is_released {
            here.released_blocks -= 1;
            here.released_bytes -= size;
            there.released_blocks += 1;
            there.released_bytes += size;
        }
    }

    /// Sets how the following allocations are sampled.
    pub fn set_sampling(&mut self, level: u8) {
        if self.level != level {
            self.level = level.min(LEVELS as u8 - 1);
            self.last = None;
        }
    }

    /// Returns the sampling level of this site's allocations.
    pub fn level_of(&self, index: u32) -> u8 {
        self.sites[index as usize].level
    }

    /// Returns a site in the form for observers.
    #[inline(always)]
    pub fn counted(&self, index: u32) -> CountedSite {
        let site = &self.sites[index as usize];
        CountedSite {
            index,
            stack: site.stack,
            level: site.level,
        }
    }

    /// Counts an allocation and returns the site's index.
    #[inline]
    pub fn allocated(&mut self, stack: u32, size: u64) -> u32 {
        let index = self.index_of(stack);
        let site = &mut self.sites[index as usize];
        site.allocated_blocks += 1;
        site.allocated_bytes += size;
        site.min_size = site.min_size.min(size);
        site.max_size = site.max_size.max(size);
        index
    }

    /// Counts `count` allocations (at least one) together with their releases, and returns the site's index.
    pub fn paired(&mut self, stack: u32, size: u64, count: u64) -> u32 {
        let index = self.allocated(stack, size);
        let site = &mut self.sites[index as usize];
        site.allocated_blocks += count - 1;
        site.allocated_bytes += size * (count - 1);
        site.released_blocks += count;
        site.released_bytes += size * count;
        index
    }

    #[inline]
    pub fn released(&mut self, index: u32, size: u64) {
        let site = &mut self.sites[index as usize];
        site.released_blocks += 1;
        site.released_bytes += size;
    }

    /// Undoes one [`SiteTable::released`].
    pub fn reinstated(&mut self, index: u32, size: u64) {
        let site = &mut self.sites[index as usize];
        site.released_blocks -= 1;
        site.released_bytes -= size;
    }

    /// Counts all new stacks together, as stack 0, from now on.
    pub fn close(&mut self) {
        if self.others.is_none() {
            self.others = Some(std::array::from_fn(|level| {
                let index = self.known(level, 0)?;
                Some((index, self.sites[index as usize].allocated_blocks))
            }));
        }
    }

    /// Returns the number of allocations that were counted without their stack since `close`, or `None` before `close`.
    pub fn unattributed(&self) -> Option<u64> {
        let of = |(index, before): (u32, u64)| self.sites[index as usize].allocated_blocks - before;
        Some(self.others?.into_iter().flatten().map(of).sum())
    }

    /// Returns the number of bytes of memory.
    pub fn bytes(&self) -> usize {
        let chunks = self.by_stack.iter().flatten().flatten().count();
        self.sites.capacity() * size_of::<SiteSums>() + chunks * CHUNK * size_of::<u32>()
    }

    pub fn len(&self) -> usize {
        self.sites.len()
    }

    pub fn all(&self) -> &[SiteSums] {
        &self.sites
    }

    pub fn stack_of(&self, index: u32) -> u32 {
        self.sites[index as usize].stack
    }

    /// Prefetches the sums of a stack.
    #[inline]
    pub fn expect_stack(&self, stack: u32) {
        let by_stack = &self.by_stack[usize::from(self.level)];
        let chunk = by_stack.get(stack as usize / CHUNK);
        let index = chunk
            .and_then(|c| c.as_ref())
            .map_or(0, |c| c[stack as usize % CHUNK]);
        self.expect(index.wrapping_sub(1));
    }

    /// Prefetches the sums of a site.
    #[inline]
    pub fn expect(&self, index: u32) {
        if let Some(site) = self.sites.get(index as usize) {
            memhook_abi::prefetch(site);
        }
    }

    /// Returns the index of a known site.
    fn known(&self, level: usize, stack: u32) -> Option<u32> {
        let chunk = self.by_stack[level].get(stack as usize / CHUNK)?;
        chunk.as_ref()?[stack as usize % CHUNK].checked_sub(1)
    }

    #[inline]
    fn index_of(&mut self, stack: u32) -> u32 {
        if let Some((last, index)) = self.last
            && last == stack
        {
            return index;
        }
        let (chunk, at) = (stack as usize / CHUNK, stack as usize % CHUNK);
        if let Some(others) = &mut self.others {
            let level = usize::from(self.level);
            let next = self.sites.len() as u32;
            let (other, _) = *others[level].get_or_insert((next, 0));
            if other == next {
                self.sites.push(SiteSums::new(0, self.level));
            }
            return self.known(level, stack).unwrap_or(other);
        }
        let by_stack = &mut self.by_stack[usize::from(self.level)];
        if chunk >= by_stack.len() {
            by_stack.resize_with(chunk + 1, || None);
        }
        let place = &mut by_stack[chunk].get_or_insert_with(|| Box::new([0; CHUNK]))[at];
        let next = self.sites.len() as u32;
        let index = place.checked_sub(1).unwrap_or(next);
        if index == next {
            *place = next + 1;
            self.sites.push(SiteSums::new(stack, self.level));
        }
        self.last = Some((stack, index));
        index
    }
}

/// Blocks and bytes by the backtrace of their release.
#[derive(Default)]
pub(crate) struct ReleaseSites {
    /// Sums. They are whole numbers as long as each released block represents only itself.
    sums: FxHashMap<u32, (f64, f64)>,
    is_closed: bool,
}

impl ReleaseSites {
    /// Counts a release. `weight`: number of blocks of this size that the released block represents.
    pub fn add(&mut self, stack: u32, size: u64, weight: f64) {
        let is_new = self.is_closed && !self.sums.contains_key(&stack);
        let stack = if is_new { 0 } else { stack };
        let (blocks, bytes) = self.sums.entry(stack).or_default();
        *blocks += weight;
        *bytes += weight * size as f64;
    }

    /// Counts all new stacks together, as stack 0, from now on.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Returns the number of bytes of memory.
    pub fn bytes(&self) -> usize {
        self.sums.capacity() * (size_of::<(u32, (f64, f64))>() + 1)
    }

    /// Undoes one [`ReleaseSites::add`].
    pub fn remove(&mut self, stack: u32, size: u64, weight: f64) {
        // Negative only in a shard, where it undoes additions made before the division.
        if !self.is_closed || self.sums.contains_key(&stack) {
            let (blocks, bytes) = self.sums.entry(stack).or_default();
            *blocks -= weight;
            *bytes -= weight * size as f64;
        }
    }

    /// Returns the sites of all shards.
    pub fn all_of<'a>(shards: impl Iterator<Item = &'a Self>) -> Vec<(u32, u64, u64)> {
        let mut sums = FxHashMap::<u32, (f64, f64)>::default();
        for (&stack, &(blocks, bytes)) in shards.flat_map(|shard| &shard.sums) {
            let sum = sums.entry(stack).or_default();
            (sum.0, sum.1) = (sum.0 + blocks, sum.1 + bytes);
        }
        let mut all: Vec<_> = sums
            .iter()
            .filter(|(_, sums)| sums.0 >= 0.5)
            .map(|(&stack, &(blocks, bytes))| (stack, blocks.round() as u64, bytes.round() as u64))
            .collect();
        all.sort_unstable();
        all
    }
}

/// Thread ids by a 16-bit index. Index 0 is thread 0, and represents all threads after the first 65,535.
#[derive(Clone)]
pub(crate) struct ThreadTable {
    tids: Vec<u32>,
    by_tid: FxHashMap<u32, u16>,
}

impl ThreadTable {
    pub fn new() -> Self {
        Self {
            tids: vec![0],
            by_tid: FxHashMap::default(),
        }
    }

    pub fn index_of(&mut self, tid: u32) -> u16 {
        if let Some(&index) = self.by_tid.get(&tid) {
            return index;
        }
        let Ok(index) = u16::try_from(self.tids.len()) else {
            return 0;
        };
        self.tids.push(tid);
        self.by_tid.insert(tid, index);
        index
    }

    pub fn tid_of(&self, index: u16) -> u32 {
        self.tids.get(usize::from(index)).copied().unwrap_or(0)
    }
}
