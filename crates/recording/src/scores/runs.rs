//! Runs of growing blocks. Each block is larger than its predecessor and replaces it, like the
//! blocks of a vector without `reserve`, or of a chain of `realloc`.
//!
//! If a site does not call `realloc`, a run belongs to one site and thread. A block then replaces
//! its predecessor if the predecessor is released after the allocation of the new block and before
//! that of the next one. With `realloc`, the new block replaces the block that the thread has just
//! released, whichever site allocated it. So a chain is followed from block to block, and each site
//! is credited with its own steps of the chain. Blocks that merely happen to get larger are not a
//! run.

/// The runs of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrowingRuns {
    /// Number of runs of at least [`GrowingRuns::LEAST_STEPS`] steps.
    pub runs: u64,
    /// Number of steps in the counted runs. Each step replaces a block.
    pub steps: u64,
    /// Bytes of the replaced blocks, an upper bound on the bytes copied.
    pub outgrown_bytes: u64,
    /// Part of the replaced bytes that is in runs that grow by less than [`GrowingRuns::FACTOR`]
    /// per step.
    pub slow_bytes: u64,
    /// Steps of the longest run.
    pub longest: u64,
    /// First and last size of the run that replaced the most bytes.
    pub from_to: (u64, u64),
    /// Bytes that this run replaced.
    most_outgrown: u64,
}

impl GrowingRuns {
    /// Minimum number of steps of a run. Fewer may be coincidence.
    pub const LEAST_STEPS: u64 = 3;
    /// Minimum growth factor per step at which growing is efficient. On average, such a run copies
    /// about as many bytes as its last block has, whatever its length. Library buffers grow by half
    /// or double, and sizes are rounded.
    pub const FACTOR: f64 = 1.4;

    /// Adds a site's part of a run.
    fn add(&mut self, (first_size, reached): (u64, u64), all: Steps, own: Steps) {
        if all.count < Self::LEAST_STEPS {
            return;
        }
        self.runs += 1;
        self.steps += own.count;
        self.outgrown_bytes = self.outgrown_bytes.saturating_add(own.outgrown_bytes);
        let growth = reached as f64 / first_size.max(1) as f64;
        if growth < Self::FACTOR.powf(all.count as f64) {
            self.slow_bytes = self.slow_bytes.saturating_add(own.outgrown_bytes);
        }
        self.longest = self.longest.max(all.count);
        if own.outgrown_bytes >= self.most_outgrown {
            self.most_outgrown = own.outgrown_bytes;
            self.from_to = (first_size, reached);
        }
    }
}

/// Number of steps, and the bytes of the blocks that they replaced.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    count: u64,
    outgrown_bytes: u64,
}

impl Steps {
    fn add(&mut self, outgrown: u64) {
        self.count += 1;
        self.outgrown_bytes = self.outgrown_bytes.saturating_add(outgrown);
    }
}

/// Maximum number of sites of a chain. Steps by further sites are not attributed.
const MOST_SITES: usize = 8;

/// A current chain of `realloc`.
#[derive(Clone, Debug, Default)]
pub(super) struct Chain {
    first_size: u64,
    reached: u64,
    all: Steps,
    of_sites: Vec<(u32, Steps)>,
}

impl Chain {
    /// Creates a chain for a block that is about to be replaced.
    pub fn of(size: u64) -> Chain {
        Chain {
            first_size: size,
            ..Chain::default()
        }
    }

    /// Adds a step: a site replaces a block of one size with a block of another.
    pub fn step(&mut self, site: u32, from: u64, to: u64) {
        self.reached = to;
        self.all.add(from);
        let at = self.of_sites.iter().position(|(known, _)| *known == site);
        match at {
            Some(at) => self.of_sites[at].1.add(from),
            None if self.of_sites.len() < MOST_SITES => {
                let mut steps = Steps::default();
                steps.add(from);
                self.of_sites.push((site, steps));
            }
            None => {}
        }
    }

    /// Ends the chain, and passes on each site's part of it.
    pub fn finish(&self, mut add: impl FnMut(u32, &dyn Fn(&mut GrowingRuns))) {
        for &(site, own) in &self.of_sites {
            add(site, &|runs| {
                runs.add((self.first_size, self.reached), self.all, own)
            });
        }
    }
}

/// The current run of a site on a thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    /// Address of the last block; 0 if there was none.
    address: u64,
    size: u64,
    is_live: bool,
    /// The second-to-last block, if its release is still needed to show that the last block
    /// replaces it.
    outgrown: Option<(u64, u64)>,
    first_size: u64,
    /// Last size that is certainly part of the run.
    reached: u64,
    steps: Steps,
}

impl Run {
    /// Processes the next allocation of the site and thread.
    pub fn allocated(&mut self, address: u64, size: u64, runs: &mut GrowingRuns) {
        let is_pending = self.outgrown.is_some();
        let is_larger = self.address != 0 && size > self.size;
        if is_larger && !is_pending && self.is_live {
            self.outgrown = Some((self.address, self.size));
        } else {
            let is_next = is_pending && is_larger && self.is_live;
            let last = (self.address, self.size);
            self.finish(runs);
            *self = Run {
                first_size: size,
                reached: size,
                ..Run::default()
            };
            if is_next {
                // The previous block is still live, so the current run ends. The next run may begin
                // with the last block.
                self.outgrown = Some(last);
                self.first_size = last.1;
                self.reached = last.1;
            }
        }
        (self.address, self.size, self.is_live) = (address, size, true);
    }

    /// Processes a release of a block of the site and thread.
    pub fn released(&mut self, address: u64) {
        if let Some((outgrown, size)) = self.outgrown
            && outgrown == address
        {
            self.outgrown = None;
            self.steps.add(size);
            self.reached = self.size;
        } else if self.address == address {
            self.is_live = false;
        }
    }

    /// Ends the run.
    pub fn finish(&self, runs: &mut GrowingRuns) {
        runs.add((self.first_size, self.reached), self.steps, self.steps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Site {
        run: Run,
        runs: GrowingRuns,
    }

    impl Site {
        fn allocate(&mut self, address: u64, size: u64) {
            self.run.allocated(address, size, &mut self.runs);
        }
        fn release(&mut self, address: u64) {
            self.run.released(address);
        }
        fn finish(mut self) -> GrowingRuns {
            self.run.finish(&mut self.runs);
            self.runs
        }
    }

    /// Two vectors grow to 256 bytes, one after the other.
    #[test]
    fn vectors_without_reserve_are_runs() {
        let mut site = Site::default();
        for _ in 0..2 {
            site.allocate(1, 4);
            for step in 1..=6 {
                site.allocate(step + 1, 4 << step);
                site.release(step);
            }
            site.release(7);
        }
        let runs = site.finish();
        assert_eq!((runs.runs, runs.steps, runs.longest), (2, 12, 6));
        assert_eq!(runs.outgrown_bytes, 2 * (256 - 4));
        assert_eq!(runs.slow_bytes, 0);
        assert_eq!(runs.from_to, (4, 256));
    }

    #[test]
    fn chains_belong_to_their_sites() {
        let mut chain = Chain::of(10);
        for size in 1..50 {
            chain.step((size % 5 == 0).into(), size * 10, size * 10 + 10);
        }
        let mut sites = [GrowingRuns::default(); 2];
        chain.finish(|site, add| add(&mut sites[site as usize]));
        let [often, seldom] = sites;
        assert_eq!((often.steps, seldom.steps), (40, 9));
        let all: u64 = (1..50).map(|size| size * 10).sum();
        assert_eq!(often.outgrown_bytes + seldom.outgrown_bytes, all);
        for runs in sites {
            assert_eq!((runs.runs, runs.longest), (1, 49));
            assert_eq!(runs.slow_bytes, runs.outgrown_bytes);
            assert_eq!(runs.from_to, (10, 500));
        }
    }

    /// One or two replacements are not a run, and only a few sites are counted separately.
    #[test]
    fn chains_have_bounds() {
        let mut short = Chain::of(10);
        short.step(0, 10, 20);
        short.step(0, 20, 40);
        short.finish(|_, add| {
            let mut runs = GrowingRuns::default();
            add(&mut runs);
            assert_eq!(runs, GrowingRuns::default());
        });
        let mut wide = Chain::of(1);
        (0..1000).for_each(|site| wide.step(site, 1, 2));
        let mut sites = 0;
        wide.finish(|_, _| sites += 1);
        assert_eq!(sites, MOST_SITES);
    }

    /// A series of ever larger blocks is not a run if none of them replaces another.
    #[test]
    fn blocks_that_only_happen_to_grow_are_none() {
        let mut kept = Site::default();
        let mut temporary = Site::default();
        let mut queue = Site::default();
        for number in 1..100 {
            kept.allocate(number, 10 * number);
            temporary.allocate(1, 10 * number);
            temporary.release(1);
            queue.allocate(number, 10 * number);
            if number > 3 {
                queue.release(number - 3);
            }
        }
        for site in [kept, temporary, queue] {
            assert_eq!(site.finish(), GrowingRuns::default());
        }
    }

    #[test]
    fn a_run_may_begin_with_the_last_block_of_another() {
        let mut site = Site::default();
        // The block of size 8 stays, and 16 to 128 grow.
        site.allocate(1, 8);
        site.allocate(2, 16);
        for (address, size) in [(3, 32), (4, 64), (5, 128)] {
            site.allocate(address, size);
            site.release(address - 1);
        }
        let runs = site.finish();
        assert_eq!((runs.runs, runs.steps), (1, 3));
        assert_eq!(runs.from_to, (16, 128));
    }
}
