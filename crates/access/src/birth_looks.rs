//! Words of single blocks, watched from before the program gets the block until it is released.
//!
//! The hook selects an allocation at random, and its thread waits while the words get their
//! watchpoints. So the first access is always seen. A watchpoint fires once, and is set again when
//! the block is one fiftieth older. A word in constant use therefore costs at most a few hundred
//! traps in the block's life, and its last access is known to one fiftieth of the lifetime. A
//! watched thread also costs time whenever it is scheduled. If this cost has used up the budget,
//! all looks are abandoned, and no thread is watched for some time.
//!
//! Half of the looks watch whole words, which detects every access to them. The other looks watch
//! one random byte in each word, or in each quarter of a larger block. They show how much of the
//! first and of the last of these parts is used.

use crate::error::Error;
use crate::measure::measure;
use crate::random::Random;
use crate::spending::Spending;
use crate::switches::{Switches, events_ns, switch_ns};
use crate::watched_threads::{WatchedThreads, WatchedWord};
use memhook_inject::Width;
use memhook_stream::{NewBlock, Region, monotonic_ns};
use std::time::Duration;

/// Time between two updates of the list of threads.
const FOLLOW_NS: u64 = 100_000_000;
/// Time between two counts of how often the threads were scheduled.
const SWITCHES_NS: u64 = 20_000_000;
/// Approximate minimum length of a look. The budget must allow it.
const LASTS_SECONDS: f64 = 0.05;
/// Time between two checks for blocks that are no longer live.
const LIVES_NS: u64 = 2_000_000;
/// Delay after which the ledger usually knows an allocation.
const KNOWN_NS: u64 = 10_000_000;
/// Minimum time for which a watchpoint stays silent after it has fired.
const SILENT_NS: u64 = 300_000;
/// Fraction (1/n) of the block's age for which a watchpoint stays silent beyond that.
const SILENT_PART: u64 = 50;
/// Age at which a look is abandoned so that other blocks get their turn, if the look has also taken
/// more than a certain part (1/n) of the run.
const LONGEST_NS: u64 = 1_000_000_000;
const LONGEST_PART: u64 = 4;
/// Approximate wait of a thread in addition to the time for arming: it waits for our next turn, and
/// then to be scheduled.
const WAIT_NS: f64 = 250_000.0;
/// Maximum wait of a thread (`longest_look_wait_ns` in `hook-cxx/looks.hpp`).
const LONGEST_WAIT_NS: f64 = 2_000_000.0;
/// Pauses before the next turn: while a thread may wait for it, while words are watched, and while
/// there is no work until the budget has room. More frequent turns would take time from a program
/// on the same processor.
const PAUSE_ASKED: Duration = Duration::from_micros(100);
const PAUSE_WATCHED: Duration = Duration::from_micros(300);
const PAUSE_IDLE: Duration = Duration::from_millis(5);
/// Factor by which the hook's threads check less often while no block is requested.
const UNASKED_DISTANCES: u32 = 16;
/// Maximum number of watched words of a block.
const MOST_WORDS: u64 = 4;
/// Maximum number of touches stored for a word: the first one, and the latest.
const MOST_TOUCHES: usize = 64;
/// Maximum number of looks of a run.
const MOST_LOOKS: usize = 50_000;
const WORD_BYTES: u64 = 8;
/// Bounds on the distance between selected blocks, in events.
const DISTANCES: std::ops::RangeInclusive<u32> = 8..=8192;

/// A watched word of a block. Times are those of CLOCK_MONOTONIC.
#[derive(Clone, Debug, Default)]
pub struct SeenWord {
    /// Offset of the word in the block.
    pub offset: u64,
    /// Times of the word's accesses, each with the time at which watching resumed (`u64::MAX` if it
    /// never did).
    pub touches: Vec<(u64, u64)>,
}

/// A look at a block.
#[derive(Clone, Debug, Default)]
pub struct SeenLook {
    /// Address of the block.
    pub address: u64,
    /// Time at which the program got the block.
    pub at_ns: u64,
    /// End of the watch; `None` if it lasted until the detach.
    pub until_ns: Option<u64>,
    /// True if more than one thread accessed the block.
    pub by_several: bool,
    /// True if bytes were watched instead of words.
    pub of_bytes: bool,
    /// Watched words of the block.
    pub words: Vec<SeenWord>,
}

struct ActiveWord {
    seen: SeenWord,
    watched: Option<WatchedWord>,
    again_ns: u64,
}

struct Active {
    look: SeenLook,
    words: Vec<ActiveWord>,
    tid: Option<i32>,
}

impl SeenLook {
    fn width(&self) -> Width {
        if self.of_bytes {
            Width::Byte
        } else {
            Width::Word
        }
    }
}

/// Result of looks.
#[derive(Clone, Debug, Default)]
pub struct SeenLooks {
    /// All looks.
    pub looks: Vec<SeenLook>,
    /// Share of the process's time that the looks have cost.
    pub cost: f64,
    /// Limitations of the looks.
    pub notes: Vec<String>,
}

/// Looks at blocks of a process.
pub struct BirthLooks {
    pid: i32,
    threads: WatchedThreads,
    slots: usize,
    trap_ns: f64,
    spending: Spending,
    active: Vec<Active>,
    done: Vec<SeenLook>,
    random: Random,
    began_ns: u64,
    processors: usize,
    switches: Switches,
    /// Maximum number of watchpoints of a thread since the last count.
    most_words: usize,
    is_resting: bool,
    next_follow_ns: u64,
    next_lives_ns: u64,
    next_switches_ns: u64,
    /// True if a block was requested and the hook has not named one yet.
    is_asked: bool,
    asked_ns: u64,
    turned_ns: u64,
    distance: u32,
    notes: Vec<String>,
}

impl BirthLooks {
    /// Starts the looks. `budget` is the share of the process's time that they may cost.
    ///
    /// # Errors
    /// Fails if no words can be watched.
    pub fn start(pid: i32, budget: f64) -> Result<BirthLooks, Error> {
        let means = measure();
        let mut notes = Vec::new();
        let (threads, slots) = WatchedThreads::within(pid, &means, budget, &mut notes)
            .map_err(|why| Error::NoEvidence { pid, why })?;
        let now = monotonic_ns();
        Ok(BirthLooks {
            pid,
            threads,
            slots: slots.min(MOST_WORDS as usize),
            trap_ns: means.costs.trap_ns,
            spending: Spending::within(budget),
            active: Vec::new(),
            done: Vec::new(),
            random: Random::seeded(now),
            began_ns: now,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            switches: Switches::default(),
            most_words: 0,
            is_resting: false,
            next_follow_ns: now,
            next_lives_ns: now,
            next_switches_ns: now,
            is_asked: false,
            asked_ns: 0,
            turned_ns: now,
            distance: 64,
            notes,
        })
    }

    fn now_ms(&self, now: u64) -> u32 {
        (now.saturating_sub(self.began_ns) / 1_000_000) as u32
    }

    /// Takes a turn. Call this again after the time that it returns. `alive_since` returns the
    /// allocation time of the block that lives at an address, on the same clock.
    pub fn turn(&mut self, region: &Region, alive_since: &dyn Fn(u64) -> Option<u64>) -> Duration {
        let now = monotonic_ns();
        self.take_touches(now);
        match region.new_block() {
            // The hook was about to name a block when the threads were left alone.
            Some(_) if self.is_resting => {
                region.hand_over_block();
            }
            Some(block) => self.meet(block, region),
            None => {}
        }
        self.watch_again(now);
        if now >= self.next_lives_ns {
            self.next_lives_ns = now + LIVES_NS;
            self.end_looks(now, alive_since);
        }
        if now >= self.next_switches_ns {
            self.next_switches_ns = now + SWITCHES_NS;
            self.pay_for_switches(now, region);
        }
        if now >= self.next_follow_ns && !self.is_resting {
            self.next_follow_ns = now + FOLLOW_NS;
            let words = self.active.iter_mut().flat_map(|active| &mut active.words);
            let added = self
                .threads
                .follow(words.filter_map(|word| word.watched.as_mut()));
            self.spend_on(now, added);
        }
        self.ask(now, region);
        self.turned_ns = monotonic_ns();
        if !region.is_no_block_asked() {
            PAUSE_ASKED
        } else if !self.active.is_empty() {
            PAUSE_WATCHED
        } else {
            PAUSE_IDLE
        }
    }

    /// Charges the threads' cost of newly opened events.
    fn spend_on(&mut self, now: u64, events: usize) {
        self.spending
            .spend(self.now_ms(now), events_ns(events, self.processors));
    }

    /// Charges the cost of scheduling watched threads. If that has used up the budget, no longer
    /// watches the threads.
    fn pay_for_switches(&mut self, now: u64, region: &Region) {
        if self.is_resting {
            return;
        }
        let taken = self.switches.take(self.pid, &self.threads.tids(), now);
        let words = std::mem::take(&mut self.most_words).max(self.words());
        let now_ms = self.now_ms(now);
        self.spending.spend(now_ms, taken as f64 * switch_ns(words));
        if self.spending.room_ns(now_ms, 0.0) > 0.0 {
            return;
        }
        self.rest(now, region);
    }

    /// Abandons all looks and leaves the threads alone.
    fn rest(&mut self, now: u64, region: &Region) {
        region.stop_asking_for_blocks();
        self.is_asked = false;
        self.take_touches(now);
        for mut active in std::mem::take(&mut self.active) {
            active.look.until_ns = Some(now);
            self.done.push(ended(active));
        }
        self.threads.rest();
        self.switches.rest();
        self.is_resting = true;
    }

    /// Returns the scheduling cost of the threads for a short watch, judged by their recent
    /// activity.
    fn switches_ns(&self) -> f64 {
        self.switches.per_second() * LASTS_SECONDS * switch_ns(self.slots)
    }

    /// Requests a block, if there is room for its words and budget for their possible cost.
    fn ask(&mut self, now: u64, region: &Region) {
        if !region.is_no_block_asked() {
            if self.asked_ns + 20_000_000 < now {
                // Few blocks are selected, because the program allocates little.
                self.asked_ns = now;
                self.distance = (self.distance / 2).max(*DISTANCES.start());
                region.ask_for_block(self.distance);
            }
            return;
        }
        if std::mem::take(&mut self.is_asked) {
            // This turn came too late, so a thread waited in vain.
            self.spending.spend(self.now_ms(now), LONGEST_WAIT_NS);
        }
        let free = self.slots.saturating_sub(self.words());
        let threads = self.threads.counts().0.max(1) as f64;
        let next_ns = WAIT_NS + MOST_WORDS as f64 * threads * self.trap_ns + self.switches_ns();
        let outstanding = self.outstanding_ns();
        let now_ms = self.now_ms(now);
        let has_room = self.spending.room_ns(now_ms, outstanding) >= next_ns;
        if free * 2 >= self.slots && has_room && self.done.len() < MOST_LOOKS {
            if std::mem::take(&mut self.is_resting) {
                self.next_follow_ns = now + FOLLOW_NS;
                let added = self.threads.follow(std::iter::empty());
                self.spend_on(now, added);
                // From here on, the watch costs the threads time.
                self.switches.take(self.pid, &self.threads.tids(), now);
            }
            self.asked_ns = now;
            self.is_asked = true;
            region.ask_for_block(self.distance);
            return;
        }
        region.draw_blocks_at(self.distance.saturating_mul(UNASKED_DISTANCES));
        // Threads also cost time while they are prepared for watchpoints.
        if self.active.is_empty() && !self.is_resting {
            self.rest(now, region);
        }
    }

    fn words(&self) -> usize {
        self.active.iter().map(|active| active.words.len()).sum()
    }

    fn outstanding_ns(&self) -> f64 {
        let words = self.active.iter().flat_map(|active| &active.words);
        let armed = words.filter_map(|word| word.watched.as_ref());
        armed.map(WatchedWord::threads).sum::<usize>() as f64 * self.trap_ns
    }

    /// Handles a thread that waits with a new block.
    fn meet(&mut self, block: NewBlock, region: &Region) {
        let begun = monotonic_ns();
        self.is_asked = false;
        // The thread may have named its block directly after our last turn. If our processor is
        // busy, that turn was long ago.
        let unseen_ns = (begun.saturating_sub(self.turned_ns) as f64).min(LONGEST_WAIT_NS);
        // The distance between selected blocks is reduced if a block takes long to arrive, and
        // increased if one arrives immediately. So the hook's threads check no more often than
        // needed.
        if begun.saturating_sub(self.asked_ns) < 2_000_000 {
            self.distance = (self.distance * 2).min(*DISTANCES.end());
        }
        let free = self.slots.saturating_sub(self.words()) as u64;
        let words = block.size.div_ceil(WORD_BYTES);
        let wanted = words.min(MOST_WORDS).min(self.slots as u64);
        let mut look = None;
        if wanted > 0 && wanted <= free && block.address.is_multiple_of(WORD_BYTES) {
            let tid = self.threads.outer_tid(block.tid);
            let look_of_kind = SeenLook {
                address: block.address,
                of_bytes: self.random.below(2) == 0,
                ..SeenLook::default()
            };
            let offsets = (0..wanted).map(|part| {
                let (from, to) = (part * words / wanted, (part + 1) * words / wanted);
                if look_of_kind.of_bytes {
                    let (from, to) = (from * WORD_BYTES, block.size.min(to * WORD_BYTES));
                    from + self.random.below(to - from)
                } else {
                    (from + self.random.below(to - from)) * WORD_BYTES
                }
            });
            let offsets: Vec<u64> = offsets.collect();
            let words = offsets.iter().map(|offset| {
                let address = block.address.wrapping_add(*offset);
                Some(ActiveWord {
                    seen: SeenWord {
                        offset: *offset,
                        touches: Vec::new(),
                    },
                    watched: Some(
                        self.threads
                            .watch_first(tid, address, look_of_kind.width())?,
                    ),
                    again_ns: 0,
                })
            });
            let words: Option<Vec<ActiveWord>> = words.collect();
            look = words.map(|words| Active {
                look: look_of_kind.clone(),
                words,
                tid: None,
            });
        }
        let at_ns = monotonic_ns();
        let has_waited = region.hand_over_block();
        let waited_ns = (monotonic_ns() - begun) as f64 + unseen_ns.max(WAIT_NS);
        self.spending.spend(self.now_ms(at_ns), waited_ns);
        if let Some(mut active) = look.filter(|_| has_waited) {
            active.look.at_ns = at_ns;
            let mut added = 0;
            for word in &mut active.words {
                if let Some(watched) = &mut word.watched {
                    added += self.threads.extend(watched);
                }
            }
            self.spend_on(at_ns, added);
            self.active.push(active);
            self.most_words = self.most_words.max(self.words());
        }
    }

    fn take_touches(&mut self, now: u64) {
        let found = self.threads.take();
        let now_ms = self.now_ms(now);
        self.spending
            .spend(now_ms, found.len() as f64 * self.trap_ns);
        for access in found {
            for active in &mut self.active {
                let Active { look, words, tid } = active;
                let offset = access.address.wrapping_sub(look.address);
                let Some(word) = words.iter_mut().find(|word| word.seen.offset == offset) else {
                    continue;
                };
                look.by_several |= tid.is_some_and(|tid| tid != access.tid);
                *tid = tid.or(Some(access.tid));
                let at_ns = access.time_ns.max(look.at_ns);
                let age = at_ns - look.at_ns;
                let touches = &mut word.seen.touches;
                if touches.len() >= MOST_TOUCHES {
                    touches.remove(1);
                }
                touches.push((at_ns, u64::MAX));
                // Watchpoints in other threads would fire too, and add no information.
                word.watched = None;
                word.again_ns = at_ns + SILENT_NS.max(age / SILENT_PART);
            }
        }
    }

    /// Sets watchpoints again that have been silent for long enough.
    fn watch_again(&mut self, now: u64) {
        let now_ms = self.now_ms(now);
        let outstanding = self.outstanding_ns();
        let mut room = self.spending.room_ns(now_ms, outstanding);
        let threads = self.threads.counts().0.max(1);
        let opening_ns = events_ns(threads, self.processors);
        let each = threads as f64 * self.trap_ns + opening_ns;
        // For a byte, it is enough to know that it is used.
        let of_words = self.active.iter_mut();
        for active in of_words.filter(|active| !active.look.of_bytes) {
            let address = active.look.address;
            let is_due = |word: &&mut ActiveWord| word.watched.is_none() && word.again_ns <= now;
            for word in active.words.iter_mut().filter(is_due) {
                if room < each {
                    return;
                }
                room -= each;
                word.watched = self.threads.watch(address + word.seen.offset, Width::Word);
                if word.watched.is_some() {
                    self.spending.spend(now_ms, opening_ns);
                    let again_ns = monotonic_ns();
                    let touches = word.seen.touches.iter_mut().rev();
                    for touch in touches.take_while(|touch| touch.1 == u64::MAX) {
                        touch.1 = again_ns;
                    }
                }
            }
        }
    }

    /// Ends looks at blocks that are no longer live, and abandons looks that last too long.
    fn end_looks(&mut self, now: u64, alive_since: &dyn Fn(u64) -> Option<u64>) {
        let longest = LONGEST_NS.max((now - self.began_ns) / LONGEST_PART);
        for mut active in std::mem::take(&mut self.active) {
            let look = &mut active.look;
            let age = now.saturating_sub(look.at_ns);
            let is_alive = match alive_since(look.address) {
                Some(since) => since <= look.at_ns,
                None => age < KNOWN_NS,
            };
            if is_alive && age < longest {
                self.active.push(active);
                continue;
            }
            // The look ends even if the block seems to be gone, because the recording decides
            // whether it is.
            look.until_ns = Some(now);
            self.done.push(ended(active));
        }
    }

    /// Ends all looks.
    pub fn finish(mut self, region: &Region) -> SeenLooks {
        region.stop_asking_for_blocks();
        let now = monotonic_ns();
        self.take_touches(now);
        self.done
            .extend(std::mem::take(&mut self.active).into_iter().map(ended));
        let (watched, all) = self.threads.counts();
        if watched < all {
            self.notes.push(format!(
                "accesses were looked for in {watched} of {all} threads of process {}: the budget does not allow more",
                self.pid
            ));
        }
        SeenLooks {
            cost: self.spending.total_ns() / (now - self.began_ns).max(1) as f64,
            looks: self.done,
            notes: self.notes,
        }
    }
}

fn ended(active: Active) -> SeenLook {
    let words = active.words.into_iter().map(|word| word.seen);
    SeenLook {
        words: words.collect(),
        ..active.look
    }
}
