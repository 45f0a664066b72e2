//! Sums by allocation site, and the small tables that entries of the live map point into.

use rustc_hash::FxHashMap;

/// Sums of one allocation site. Live sums are the difference of allocated and released.
///
/// One cache line: sites of different sums are looked at in random order.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct SiteSums {
    pub stack: u32,
    /// Its allocations are samples. Those of the same stack that are not are another site.
    pub is_sampled: bool,
    pub allocated_blocks: u64,
    pub allocated_bytes: u64,
    pub released_blocks: u64,
    pub released_bytes: u64,
    pub min_size: u64,
    pub max_size: u64,
}

impl SiteSums {
    pub fn new(stack: u32, is_sampled: bool) -> Self {
        Self {
            stack,
            is_sampled,
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

/// All sites, by a dense index. There are never more than stack ids, so 26 bits are enough.
#[derive(Default)]
pub(crate) struct SiteTable {
    sites: Vec<SiteSums>,
    /// Index + 1 by stack id, in chunks that exist when one of their ids was seen: ids are dense,
    /// since they are places in an arena. The second one has the sites of samples.
    by_stack: [Vec<Option<Box<[u32; CHUNK]>>>; 2],
    /// Allocations that come now are samples.
    is_sampling: bool,
    /// The last stack looked up and its index: one call site often allocates many times in a row.
    last: Option<(u32, u32)>,
    /// When there are too many sites: the two that allocations of all further stacks are counted at,
    /// the second one samples, and what each had counted before.
    others: Option<[(u32, u64); 2]>,
}

impl SiteTable {
    /// Says whether the allocations that follow are samples.
    pub fn set_sampling(&mut self, is_on: bool) {
        if self.is_sampling != is_on {
            self.is_sampling = is_on;
            self.last = None;
        }
    }

    /// Whether the allocations of this site are samples.
    pub fn is_sampled(&self, index: u32) -> bool {
        self.sites[index as usize].is_sampled
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

    /// Counts `count` allocations, at least one, that were released again, and returns the site's index.
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

    /// Takes back one [`SiteTable::released`].
    pub fn reinstated(&mut self, index: u32, size: u64) {
        let site = &mut self.sites[index as usize];
        site.released_blocks -= 1;
        site.released_bytes -= size;
    }

    /// From now on, stacks that were not seen before are counted together, as stack 0.
    pub fn close(&mut self) {
        if self.others.is_none() {
            let is_sampling = self.is_sampling;
            self.others = Some([false, true].map(|sampling| {
                self.set_sampling(sampling);
                let index = self.index_of(0);
                (index, self.sites[index as usize].allocated_blocks)
            }));
            self.set_sampling(is_sampling);
        }
    }

    /// Allocations that were counted without their stack for that reason; `None`: it is not so.
    pub fn unattributed(&self) -> Option<u64> {
        let of = |(index, before): (u32, u64)| self.sites[index as usize].allocated_blocks - before;
        Some(self.others?.map(of).iter().sum())
    }

    /// Bytes of memory.
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
        let by_stack = &self.by_stack[usize::from(self.is_sampling)];
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

    #[inline]
    fn index_of(&mut self, stack: u32) -> u32 {
        if let Some((last, index)) = self.last
            && last == stack
        {
            return index;
        }
        let (chunk, at) = (stack as usize / CHUNK, stack as usize % CHUNK);
        if let Some(others) = self.others {
            let (others, _) = others[usize::from(self.is_sampling)];
            let by_stack = &self.by_stack[usize::from(self.is_sampling)];
            let known = by_stack.get(chunk).and_then(|c| c.as_ref());
            let known = known.and_then(|chunk| chunk[at].checked_sub(1));
            return known.unwrap_or(others);
        }
        let by_stack = &mut self.by_stack[usize::from(self.is_sampling)];
        if chunk >= by_stack.len() {
            by_stack.resize_with(chunk + 1, || None);
        }
        let place = &mut by_stack[chunk].get_or_insert_with(|| Box::new([0; CHUNK]))[at];
        let next = self.sites.len() as u32;
        let index = place.checked_sub(1).unwrap_or(next);
        if index == next {
            *place = next + 1;
            self.sites.push(SiteSums::new(stack, self.is_sampling));
        }
        self.last = Some((stack, index));
        index
    }
}

/// Blocks and bytes by the backtrace of their release.
#[derive(Default)]
pub(crate) struct ReleaseSites {
    /// Whole numbers until a released block stands for others, too.
    sums: FxHashMap<u32, (f64, f64)>,
    is_closed: bool,
}

impl ReleaseSites {
    /// `weight`: how many blocks of this size the released one stands for.
    pub fn add(&mut self, stack: u32, size: u64, weight: f64) {
        let is_new = self.is_closed && !self.sums.contains_key(&stack);
        let stack = if is_new { 0 } else { stack };
        let (blocks, bytes) = self.sums.entry(stack).or_default();
        *blocks += weight;
        *bytes += weight * size as f64;
    }

    /// From now on, stacks that were not seen before are counted together, as stack 0.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.sums.capacity() * (size_of::<(u32, (f64, f64))>() + 1)
    }

    /// Takes back one [`ReleaseSites::add`].
    pub fn remove(&mut self, stack: u32, size: u64, weight: f64) {
        if let Some((blocks, bytes)) = self.sums.get_mut(&stack) {
            *blocks = (*blocks - weight).max(0.0);
            *bytes = (*bytes - weight * size as f64).max(0.0);
        }
    }

    pub fn all(&self) -> Vec<(u32, u64, u64)> {
        let mut all: Vec<_> = self
            .sums
            .iter()
            .filter(|(_, sums)| sums.0 >= 0.5)
            .map(|(&stack, &(blocks, bytes))| (stack, blocks.round() as u64, bytes.round() as u64))
            .collect();
        all.sort_unstable();
        all
    }
}

/// Thread ids by a 16-bit index. Index 0 is thread 0: threads beyond 65,535 different ones.
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
