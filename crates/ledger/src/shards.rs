//! A ledger in shards, so that several threads can apply the events of one pass at the same time.
//!
//! What is known of one address is in one shard: its entry, its contest, its partners, its open `realloc`. The rule of
//! `order` looks at one address at a time, so a shard decides as the whole ledger would, if it gets the events of its
//! addresses in the same passes, and those of one ring in their order. Sums are kept by shard and added up when somebody
//! asks. Two facts are about more than one address:
//!
//! - An announced `realloc` is ended by the next event of its ring, which may be of another shard. [`Router`] knows
//!   which shard waits for it, and tells that one.
//! - The most live bytes within a pass are known only where one ledger sees all events of it in their order. A ledger
//!   in shards looks at the live bytes when its passes end, as an undivided one does where several rings had events.

use crate::Observer;
use crate::bound::LEAST_BYTES;
use crate::order::Ledger;
use crate::reallocs::Undo;
use memhook_abi::{Event, MAX_RINGS, Op, RawEvent};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Shards that a ledger can have.
pub const MOST_SHARDS: usize = 16;
/// Bytes of the windows that addresses are distributed by, as a power of two: those of a page. Even a heap of a few
/// hundred kilobytes has so many of them that shards get about equal shares.
const WINDOW_BITS: u32 = 12;
/// A bucket gives back what it no longer needs when it has room for so many times what it held last, at least.
const MUCH_TOO_LARGE: usize = 8;
/// But keeps so many events.
const USUAL_EVENTS: usize = 1 << 14;

/// The shard of an address, of so many. By other bits than those that choose the segment of its table, which would
/// else leave most segments empty.
#[inline(always)]
pub(crate) fn shard_of(address: u64, shards: usize) -> usize {
    let window = (address >> WINDOW_BITS) as u32;
    let hash = u64::from((window ^ window >> 17).wrapping_mul(0x85eb_ca6b));
    ((hash * shards as u64) >> 32) as usize
}

/// Message between the events of a bucket.
#[derive(Clone, Copy, Debug)]
enum Mark {
    /// Events of this ring follow, sampled at this level, at this time.
    Begin {
        ring: usize,
        tid: u32,
        level: u8,
        time_ns: u64,
    },
    Sampling(u8),
    Time(u64),
    /// The requested size of the next event.
    Size(u64),
    /// The `realloc` that this ring has announced has succeeded.
    Confirm,
}

/// The events of one shard that one thread has taken from its rings.
#[derive(Default)]
struct Bucket {
    events: Vec<RawEvent>,
    /// With the number of events before each.
    marks: Vec<(usize, Mark)>,
    /// The run of a ring that the last mark is of.
    run: u64,
    level: u8,
    time_ns: u64,
}

impl Bucket {
    fn mark(&mut self, mark: Mark) {
        self.marks.push((self.events.len(), mark));
    }

    fn clear(&mut self) {
        let most = (self.events.len() * MUCH_TOO_LARGE).max(USUAL_EVENTS);
        if self.events.capacity() > most {
            self.events = Vec::with_capacity(most / 2);
        }
        self.events.clear();
        // Usually a few. A target can make one for each event.
        if self.marks.capacity() > USUAL_EVENTS {
            self.marks = Vec::new();
        }
        self.marks.clear();
        self.run = 0;
    }
}

/// For each ring, the shard that waits for the end of a `realloc` announced there, plus one; 0: none does. A ring is
/// read by one thread in a pass, and by others in other passes.
#[derive(Debug)]
pub struct OpenReallocs(Vec<AtomicU8>);

impl OpenReallocs {
    fn new() -> Self {
        Self((0..MAX_RINGS).map(|_| AtomicU8::new(0)).collect())
    }
}

/// Distributes the events of some rings to the shards of their addresses. One for each thread that reads rings.
pub struct Router {
    buckets: Vec<Bucket>,
    open: Arc<OpenReallocs>,
    /// Counts [`Router::begin_ring`]: which buckets have heard of it.
    run: u64,
    ring: usize,
    tid: u32,
    level: u8,
    always_level: u8,
    time_ns: u64,
    /// State of this ring, as in [`OpenReallocs`].
    waits: u8,
}

impl Router {
    /// The events that follow were published by thread `tid` in ring `ring`.
    pub fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.keep_waiting();
        self.run += 1;
        (self.ring, self.tid, self.level) = (ring, tid, self.always_level);
        self.waits = self.open.0.get(ring).map_or(0, |open| open.load(Relaxed));
        if let Some(shard) = self.waits.checked_sub(1) {
            // Where the announcement is by another thread than this one, it is done.
            self.tell_of_ring(usize::from(shard));
        }
    }

    /// As [`Ledger::set_sampling`].
    pub fn set_sampling(&mut self, level: u8) {
        self.level = level;
    }

    /// One event, as [`Ledger::event`] takes it.
    #[inline(always)]
    pub fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        if event.address == 0 {
            return; // no allocator hands out null, and no hook writes it
        }
        self.time_ns = time_ns;
        let shard = shard_of(event.address, self.buckets.len());
        if self.waits != 0 {
            self.end_realloc(shard);
        }
        if event.op == Op::ReallocRelease {
            self.waits = shard as u8 + 1;
        }
        let bucket = &mut self.buckets[shard];
        if bucket.run != self.run || bucket.time_ns != time_ns || bucket.level != self.level {
            self.tell_of_ring(shard);
        }
        let bucket = &mut self.buckets[shard];
        if size != u64::from(event.size) && event.op == Op::Allocation {
            bucket.mark(Mark::Size(size));
        }
        bucket.events.push(event.words());
    }

    /// An event follows behind an announced `realloc`.
    #[cold]
    fn end_realloc(&mut self, shard: usize) {
        let waiting = usize::from(self.waits - 1);
        self.waits = 0;
        if waiting != shard {
            self.tell_of_ring(waiting);
            self.buckets[waiting].mark(Mark::Confirm);
        }
    }

    #[inline(never)]
    fn tell_of_ring(&mut self, shard: usize) {
        let &mut Router {
            run,
            ring,
            tid,
            level,
            time_ns,
            ..
        } = self;
        let bucket = &mut self.buckets[shard];
        if bucket.run != run {
            bucket.run = run;
            bucket.mark(Mark::Begin {
                ring,
                tid,
                level,
                time_ns,
            });
        } else {
            if bucket.level != level {
                bucket.mark(Mark::Sampling(level));
            }
            if bucket.time_ns != time_ns {
                bucket.mark(Mark::Time(time_ns));
            }
        }
        (bucket.level, bucket.time_ns) = (level, time_ns);
    }

    fn keep_waiting(&self) {
        if let Some(open) = self.open.0.get(self.ring)
            && self.run != 0
        {
            open.store(self.waits, Relaxed);
        }
    }

    /// Marks that reading has ended.
    pub fn end_reading(&mut self) {
        self.keep_waiting();
        self.run = 0;
    }

    /// Marks that everything distributed has been applied.
    pub fn clear(&mut self) {
        self.buckets.iter_mut().for_each(Bucket::clear);
    }
}

impl<O: Observer> Ledger<O> {
    /// In how many shards it is; 1: it is undivided.
    pub fn shards(&self) -> usize {
        1 + self.others.len()
    }

    /// Divides it, between two passes, and returns what distributes events to the shards from now on:
    /// [`Ledger::begin_ring`], [`Ledger::set_sampling`] and [`Ledger::event`] are not for a divided one. Nothing is lost or
    /// counted twice. `None`: it is divided already, observed, does not know everything any more, or has too little memory
    /// for so many.
    pub fn divide(&mut self, shards: usize) -> Option<Vec<Router>> {
        let knows_all = self.bound_reached.is_none() && !self.map.is_thinned();
        let max_bytes = self.options.max_bytes.map(|max| max / shards.max(1));
        // For the time of the division all entries are there twice.
        let most = self.options.max_bytes.map_or(usize::MAX, |max| max / 2);
        let has_room =
            max_bytes.is_none_or(|max| max >= LEAST_BYTES) && self.memory_bytes() <= most;
        let is_possible = self.shards() == 1 && (2..=MOST_SHARDS).contains(&shards);
        if !is_possible || !O::IS_NONE || !knows_all || !has_room {
            return None;
        }
        self.apply_batch();
        self.options.max_bytes = max_bytes;
        self.peak_of_shards = self.totals.peak_live_bytes;
        let open = OpenReallocs::new();
        self.others = (1..shards).map(|_| self.empty_shard()).collect();
        let mut others = std::mem::take(&mut self.others);
        let of = |address| shard_of(address, shards);
        self.map.divide(&mut others, self.pass as u16, of);
        self.contests.divide(&mut others, of);
        self.partners.divide(&mut others, of);
        self.reallocs.divide(&mut others, |ring, address| {
            let shard = of(address);
            if let Some(open) = open.0.get(ring) {
                open.store(shard as u8 + 1, Relaxed);
            }
            shard
        });
        others
            .iter_mut()
            .for_each(|other| self.hand_over_sums(other));
        self.others = others;
        let open = Arc::new(open);
        let router = || Router {
            buckets: (0..shards).map(|_| Bucket::default()).collect(),
            open: Arc::clone(&open),
            run: 0,
            ring: 0,
            tid: 0,
            level: 0,
            always_level: u8::from(self.options.all_are_samples),
            time_ns: 0,
            waits: 0,
        };
        Some((0..shards).map(|_| router()).collect())
    }

    /// A shard that knows the sites and threads of this one, so that entries mean the same in it, and has counted
    /// nothing.
    fn empty_shard(&self) -> Ledger {
        Ledger {
            sites: self.sites.without_sums(),
            threads: self.threads.clone(),
            is_sampled: self.is_sampled,
            pass: self.pass,
            now_ns: self.now_ns,
            ..Ledger::new(self.options)
        }
    }

    /// Hands over the sums of events that were counted here and that a shard may take back or release, so that none of
    /// its sums falls below zero.
    fn hand_over_sums(&mut self, other: &mut Ledger) {
        for entry in other.map.iter_live() {
            let size = other.map.size_of(entry);
            let (here, there) = (&mut self.totals, &mut other.totals);
            here.allocations -= 1;
            here.allocated_bytes -= size;
            there.allocations += 1;
            there.allocated_bytes += size;
            self.sites
                .hand_over(&mut other.sites, entry.site(), size, false);
        }
        for undo in other.reallocs.provisional() {
            let (here, there) = (&mut self.totals, &mut other.totals);
            here.releases -= 1;
            there.releases += 1;
            match *undo {
                Undo::Block(entry, size) => {
                    here.allocations -= 1;
                    here.allocated_bytes -= size;
                    here.released_bytes -= size;
                    there.allocations += 1;
                    there.allocated_bytes += size;
                    there.released_bytes += size;
                    self.sites
                        .hand_over(&mut other.sites, entry.site(), size, true);
                }
                // Forgotten since samples were announced.
                Undo::Unknown { is_counted: true } if here.unknown_releases == 0 => {}
                Undo::Unknown { is_counted: true } => {
                    here.unknown_releases -= 1;
                    there.unknown_releases += 1;
                }
                Undo::Unknown { is_counted: false } | Undo::Balance => {}
            }
        }
    }

    /// The other shards, to apply to them on other threads what belongs to them; given back by
    /// [`Ledger::rejoin`] before anything is asked.
    pub fn take_others(&mut self) -> Vec<Ledger> {
        std::mem::take(&mut self.others)
    }

    /// Applies what the routers have for this shard. `shard`: 0 for the ledger itself, then those of
    /// [`Ledger::take_others`] in their order.
    pub fn apply_routed<'r>(
        &mut self,
        routers: impl IntoIterator<Item = &'r Router>,
        shard: usize,
    ) {
        for router in routers {
            if let Some(bucket) = router.buckets.get(shard) {
                self.apply_bucket(bucket);
            }
        }
    }

    fn apply_bucket(&mut self, bucket: &Bucket) {
        let mut events = bucket.events.iter();
        let (mut next, mut time_ns, mut large) = (0, 0, None);
        let end = (bucket.events.len(), None);
        let marks = bucket.marks.iter().map(|&(at, mark)| (at, Some(mark)));
        for (at, mark) in marks.chain([end]) {
            for raw in events.by_ref().take(at - next) {
                // The two frequent kinds first, so that the compiler knows the kind of the event.
                if raw.is(Op::Release) {
                    let event = raw.unpack_as(Op::Release);
                    self.event(event, u64::from(event.size), time_ns);
                } else if raw.is(Op::Allocation) {
                    let event = raw.unpack_as(Op::Allocation);
                    let size = large.take().unwrap_or(u64::from(event.size));
                    self.event(event, size, time_ns);
                } else if let Some(event) = raw.unpack() {
                    self.event(event, u64::from(event.size), time_ns);
                }
            }
            next = at;
            match mark {
                Some(Mark::Begin {
                    ring,
                    tid,
                    level,
                    time_ns: now_ns,
                }) => {
                    self.begin_ring(ring, tid);
                    if level != u8::from(self.options.all_are_samples) {
                        self.set_sampling(level);
                    }
                    time_ns = now_ns;
                }
                Some(Mark::Sampling(level)) => self.set_sampling(level),
                Some(Mark::Time(now_ns)) => time_ns = now_ns,
                Some(Mark::Size(size)) => large = Some(size),
                Some(Mark::Confirm) => {
                    self.apply_batch();
                    self.confirm_realloc();
                }
                None => {}
            }
        }
    }

    /// Gives back what [`Ledger::take_others`] has taken.
    pub fn rejoin(&mut self, others: Vec<Ledger>) {
        self.others = others;
    }

    /// Shares what one shard has learned at the end of a pass and all must know.
    pub(crate) fn agree(&mut self) {
        if self.is_sampled || self.others.iter().any(|other| other.is_sampled) {
            self.learn_of_samples();
            self.others.iter_mut().for_each(Ledger::learn_of_samples);
        }
        self.agree_on_thinning();
        if !self.map.is_thinned() {
            self.peak_of_shards = self.peak_of_shards.max(self.live_bytes());
        }
    }

    /// A block's weight must not depend on its shard.
    fn agree_on_thinning(&mut self) {
        let all = self.others.iter().map(|other| other.map.thinning());
        let most = all.fold(self.map.thinning(), |most, one| most.with(one));
        if most != self.map.thinning() {
            self.thin_to(most);
        }
        for other in &mut self.others {
            if most != other.map.thinning() {
                other.thin_to(most);
            }
        }
    }
}
