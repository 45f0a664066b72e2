//! Runs of growing blocks: each is allocated by the same site and thread as the one before it, is larger,
//! and takes its place, as the blocks of a vector without `reserve` do, or those of a chain of `realloc`.
//!
//! A block takes the place of the one before it if that one is released after the new one was allocated
//! and before the next but one is; or, where the site calls `realloc`, if that one was the last thing that
//! the thread released. So blocks that merely happen to grow are no run.

/// The runs of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrowingRuns {
    /// Runs of at least [`GrowingRuns::LEAST_STEPS`] steps.
    pub runs: u64,
    /// Steps in them: blocks that were outgrown.
    pub steps: u64,
    /// Bytes of the outgrown blocks: what was copied, at most.
    pub outgrown_bytes: u64,
    /// Of those, the ones in runs that grow by less than [`GrowingRuns::FACTOR`] a step.
    pub slow_bytes: u64,
    /// Steps of the longest run.
    pub longest: u64,
    /// The first and the last size of the run that outgrew most bytes.
    pub from_to: (u64, u64),
    /// Bytes that this run outgrew.
    most_outgrown: u64,
}

impl GrowingRuns {
    /// Fewer steps may be chance.
    pub const LEAST_STEPS: u64 = 3;
    /// Runs that grow by as much a step, on average, copy about as much as the last block has, however long it gets.
    /// Buffers of libraries grow by a half or by themselves; sizes are rounded.
    pub const FACTOR: f64 = 1.4;

    fn add(&mut self, run: &Run) {
        if run.steps < Self::LEAST_STEPS {
            return;
        }
        self.runs += 1;
        self.steps += run.steps;
        self.outgrown_bytes = self.outgrown_bytes.saturating_add(run.outgrown_bytes);
        let growth = run.reached as f64 / run.first_size.max(1) as f64;
        if growth < Self::FACTOR.powf(run.steps as f64) {
            self.slow_bytes = self.slow_bytes.saturating_add(run.outgrown_bytes);
        }
        self.longest = self.longest.max(run.steps);
        if run.outgrown_bytes >= self.most_outgrown {
            self.most_outgrown = run.outgrown_bytes;
            self.from_to = (run.first_size, run.reached);
        }
    }
}

/// The run of a site on a thread that is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    /// The last block; 0 if there was none.
    address: u64,
    size: u64,
    is_live: bool,
    /// Number of the event of the thread by which the last block was released.
    released_at: u64,
    /// The block before the last one, if it has to be released yet for the last one to take its place.
    outgrown: Option<(u64, u64)>,
    first_size: u64,
    /// The last size that is certain.
    reached: u64,
    steps: u64,
    outgrown_bytes: u64,
}

impl Run {
    /// The next block of the site and thread. `event`: the number of the thread's event.
    pub fn allocated(
        &mut self,
        address: u64,
        size: u64,
        event: u64,
        is_realloc: bool,
        runs: &mut GrowingRuns,
    ) {
        let is_pending = self.outgrown.is_some();
        let is_larger = self.address != 0 && size > self.size;
        let takes_its_place = is_realloc && !self.is_live && self.released_at + 1 == event;
        if is_larger && !is_pending && self.is_live && !is_realloc {
            self.outgrown = Some((self.address, self.size));
        } else if is_larger && !is_pending && takes_its_place {
            self.step(self.size, size);
        } else {
            let is_next = is_pending && is_larger && self.is_live;
            let last = (self.address, self.size);
            runs.add(self);
            *self = Run {
                first_size: size,
                reached: size,
                ..Run::default()
            };
            if is_next {
                // The block before is still there, so this run ends; the next may begin with the last block.
                self.outgrown = Some(last);
                self.first_size = last.1;
                self.reached = last.1;
            }
        }
        (self.address, self.size, self.is_live) = (address, size, true);
    }

    /// A block of the site and thread was released.
    pub fn released(&mut self, address: u64, event: u64) {
        if let Some((outgrown, size)) = self.outgrown
            && outgrown == address
        {
            self.outgrown = None;
            self.step(size, self.size);
        } else if self.address == address {
            self.is_live = false;
            self.released_at = event;
        }
    }

    /// Nothing more will come.
    pub fn finish(&self, runs: &mut GrowingRuns) {
        runs.add(self);
    }

    fn step(&mut self, old_size: u64, new_size: u64) {
        self.steps += 1;
        self.outgrown_bytes = self.outgrown_bytes.saturating_add(old_size);
        self.reached = new_size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Site {
        run: Run,
        runs: GrowingRuns,
        event: u64,
        is_realloc: bool,
    }

    impl Site {
        fn new(is_realloc: bool) -> Site {
            Site {
                run: Run::default(),
                runs: GrowingRuns::default(),
                event: 0,
                is_realloc,
            }
        }
        fn allocate(&mut self, address: u64, size: u64) {
            self.event += 1;
            let (event, is_realloc) = (self.event, self.is_realloc);
            self.run
                .allocated(address, size, event, is_realloc, &mut self.runs);
        }
        fn release(&mut self, address: u64) {
            self.event += 1;
            self.run.released(address, self.event);
        }
        fn finish(mut self) -> GrowingRuns {
            self.run.finish(&mut self.runs);
            self.runs
        }
    }

    /// Two vectors that grow to 256 bytes, one after the other.
    #[test]
    fn vectors_without_reserve_are_runs() {
        let mut site = Site::new(false);
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

    /// The release of the old block comes before the new one, which may have the same address.
    #[test]
    fn chains_of_realloc_are_runs() {
        let mut site = Site::new(true);
        site.allocate(1, 10);
        for size in 2..=50 {
            site.release(1);
            site.allocate(1, size * 10);
        }
        let runs = site.finish();
        assert_eq!((runs.runs, runs.steps), (1, 49));
        assert_eq!(runs.outgrown_bytes, (1..50).map(|size| size * 10).sum());
        assert_eq!(runs.slow_bytes, runs.outgrown_bytes);
        assert_eq!(runs.from_to, (10, 500));
    }

    /// Of these, each is larger than the last, but none takes the place of another.
    #[test]
    fn blocks_that_only_happen_to_grow_are_none() {
        let mut kept = Site::new(false);
        let mut temporary = Site::new(false);
        let mut queue = Site::new(false);
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
        let mut site = Site::new(false);
        // 8 stays, 16 to 128 grow.
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
