//! A ledger in shards, so that several threads can apply the events of one pass at the same time.
//!
//! All that is known about an address is in one shard: its entry, its contest, its partners, and its open `realloc`.
//! The rule of `order` concerns one address at a time, so a shard decides like the whole ledger if it gets the events
//! of its addresses in the same passes, and the events of one ring in order. Each shard keeps its own sums, and queries
//! add them. Only two things concern several addresses:
//!
//! - An announced `realloc` ends with the next event of its ring, which may belong to another shard. [`Router`] knows
//!   which shard waits for that event, and notifies that shard.
//! - The maximum of live bytes within a pass is known only if one ledger gets all events of the pass in order. A ledger
//!   in shards counts the live bytes at the end of its passes, as an undivided ledger does if several rings had events.

use crate::Observer;
use crate::bound::LEAST_BYTES;
use crate::order::Ledger;
use crate::reallocs::Undo;
use memhook_abi::{Event, MAX_RINGS, Op, RawEvent};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Maximum number of shards of a ledger.
pub const MOST_SHARDS: usize = 16;
/// Size (the base-two logarithm of the bytes) of the windows by which addresses are distributed: a page. Even a heap of
/// a few hundred kilobytes has enough windows for shards of about equal size.
const WINDOW_BITS: u32 = 12;
/// Factor by which a bucket's memory must exceed its last contents before the bucket returns memory.
const MUCH_TOO_LARGE: usize = 8;
/// Number of events for which a bucket always keeps memory.
const USUAL_EVENTS: usize = 1 << 14;

/// Returns the shard of an address. The table of the shard uses other bits of the address to choose segments;
/// otherwise, most segments would be empty.
#[inline(always)]
pub(crate) fn shard_of(address: u64, shards: usize) -> usize {
    let window = (address >> WINDOW_BITS) as u32;
    let hash = u64::from((window ^ window >> 17).wrapping_mul(0x85eb_ca6b));
    ((hash * shards as u64) >> 32) as usize
}

/// Message between the events of a bucket.
#[derive(Clone, Copy, Debug)]
enum Mark {
    /// The following events are from this ring, sampled at this level, at this time.
    Begin {
        ring: usize,
        tid: u32,
        level: u8,
        time_ns: u64,
    },
    Sampling(u8),
    Time(u64),
    /// Requested size of the next event.
    Size(u64),
    /// The `realloc` that this ring announced has succeeded.
    Confirm,
}

/// Events that one thread has taken from its rings for one shard.
#[derive(Default)]
struct Bucket {
    events: Vec<RawEvent>,
    /// Marks, each with the number of events before it.
    marks: Vec<(usize, Mark)>,
    /// The run of a ring to which the last mark belongs.
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
        // There are usually only a few marks, but a target can cause one mark per event.
        if self.marks.capacity() > USUAL_EVENTS {
            self.marks = Vec::new();
        }
        self.marks.clear();
        self.run = 0;
    }
}

/// For each ring, the number plus one of the shard that waits for the end of a `realloc` announced in that ring; 0 if
/// no shard waits. One thread reads a ring in a pass, and another thread may read it in the next.
#[derive(Debug)]
pub struct OpenReallocs(Vec<AtomicU8>);

impl OpenReallocs {
    fn new() -> Self {
        Self((0..MAX_RINGS).map(|_| AtomicU8::new(0)).collect())
    }
}

/// Distributes the events of some rings to the shards of their addresses. Each thread that reads rings has a router.
pub struct Router {
    buckets: Vec<Bucket>,
    open: Arc<OpenReallocs>,
    /// Counts the calls of [`Router::begin_ring`], to show which buckets have been notified.
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
    /// Begins a series of events that thread `tid` published in ring `ring`.
    pub fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.keep_waiting();
        self.run += 1;
        (self.ring, self.tid, self.level) = (ring, tid, self.always_level);
        self.waits = self.open.0.get(ring).map_or(0, |open| open.load(Relaxed));
        if let Some(shard) = self.waits.checked_sub(1) {
            // Another thread's announcement is complete.
            self.tell_of_ring(usize::from(shard));
        }
    }

    /// Like [`Ledger::set_sampling`].
    pub fn set_sampling(&mut self, level: u8) {
        self.level = level;
    }

    /// Takes an event, like [`Ledger::event`].
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

    /// Handles the event after an announced `realloc`.
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

    /// Ends the reading of rings in this pass.
    pub fn end_reading(&mut self) {
        self.keep_waiting();
        self.run = 0;
    }

    /// Empties the buckets, once everything has been applied.
    pub fn clear(&mut self) {
        self.buckets.iter_mut().for_each(Bucket::clear);
    }
}

impl<O: Observer> Ledger<O> {
    /// Returns the number of shards; 1 if the ledger is undivided.
    pub fn shards(&self) -> usize {
        1 + self.others.len()
    }

    /// Divides the ledger between two passes. Returns the routers that distribute events to the shards from now on:
    /// [`Ledger::begin_ring`], [`Ledger::set_sampling`] and [`Ledger::event`] must not be called on a divided ledger.
    /// Nothing is lost or counted twice. `None` if the ledger is already divided, observed, or bounded, or has too
    /// little memory for this number of shards.
    pub fn divide(&mut self, shards: usize) -> Option<Vec<Router>> {
        let knows_all = self.bound_reached.is_none() && !self.map.is_thinned();
        let max_bytes = self.options.max_bytes.map(|max| max / shards.max(1));
        // During the division, memory contains all entries twice.
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

    /// Creates a shard with the sites and threads of this ledger, so that entries have the same meaning in it, but
    /// without counts.
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

    /// Moves the sums of blocks and events that a shard may later release or undo, so that none of the shard's sums
    /// falls below zero.
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
                // No longer counted since samples were announced.
                Undo::Unknown { is_counted: true } if here.unknown_releases == 0 => {}
                Undo::Unknown { is_counted: true } => {
                    here.unknown_releases -= 1;
                    there.unknown_releases += 1;
                }
                Undo::Unknown { is_counted: false } | Undo::Balance => {}
            }
        }
    }

    /// Takes the other shards, so that other threads can apply events to them; [`Ledger::rejoin`] puts them back before
    /// any query.
    pub fn take_others(&mut self) -> Vec<Ledger> {
        std::mem::take(&mut self.others)
    }

    /// Applies the routers' events for this shard. `shard`: 0 for the ledger itself, then the shards of
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
                // The two most frequent kinds are handled first, so that the compiler knows the event's kind in these
                // branches.
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

    /// Puts back the shards that [`Ledger::take_others`] returned.
    pub fn rejoin(&mut self, others: Vec<Ledger>) {
        self.others = others;
    }

    /// At the end of a pass, passes the facts that one shard has learned to all shards, which need them.
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

    /// A block's weight must not depend on the shard.
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
