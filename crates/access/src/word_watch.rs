//! Watches words of blocks with watchpoints in all threads, within the controller's budget.

use crate::controller::Controller;
use crate::looks::{Look, Looks};
use crate::measure::Means;
use crate::random::Random;
use crate::sites::{Site, SiteBlocks};
use crate::switches::{Switches, switch_ns};
use crate::watched_threads::{WatchedThreads, WatchedWord};
use memhook_inject::{Access, Width};
use memhook_stream::monotonic_ns;
use rustc_hash::FxHashMap;

/// Time between two updates of the list of threads.
const FOLLOW_MS: u32 = 100;
/// Interval between two readings of how often the threads were scheduled.
const SWITCHES_MS: u32 = 20;
/// Scheduling cost in seconds. Threads are watched again only if the budget has room for this cost,
/// or if nearly all of the budget is free.
const WORTH_S: f64 = 1.0;
const NEARLY_ALL: f64 = 0.9;
/// If the threads were left alone for at least this share of the time, that time is reported.
const MUCH_REST: f64 = 0.1;

/// An active look.
struct Active {
    look: Look,
    word: WatchedWord,
}

/// A finished look. The meaning of its result depends on whether the block is still live.
pub(crate) struct Ended {
    pub look: Look,
    pub touched_ms: Option<u32>,
    pub access: Option<Access>,
    pub ended_ms: u32,
}

/// The watched words of a process.
pub(crate) struct WordWatch {
    pid: i32,
    threads: WatchedThreads,
    slots: usize,
    active: Vec<Active>,
    switches: Switches,
    /// Time since which the threads are left alone.
    resting_since_ms: Option<u32>,
    /// Time for which the threads were left alone before.
    rested_ms: u32,
    next_follow_ms: u32,
    next_switches_ms: u32,
}

impl WordWatch {
    /// Starts to watch words of this process. The error says why this is impossible. Limitations
    /// are added to `notes`.
    pub fn start(
        pid: i32,
        means: &Means,
        budget: f64,
        now_ms: u32,
        notes: &mut Vec<String>,
    ) -> Result<WordWatch, String> {
        let (threads, slots) = WatchedThreads::within(pid, means, budget, notes)?;
        Ok(WordWatch {
            pid,
            threads,
            slots,
            active: Vec::new(),
            switches: Switches::default(),
            resting_since_ms: None,
            rested_ms: 0,
            next_follow_ms: now_ms,
            next_switches_ms: now_ms,
        })
    }

    /// Returns the note that words were not watched all the time, for a watch that lasted
    /// `watched_ms`.
    pub fn rest_note(&self, watched_ms: u32, now_ms: u32) -> Option<String> {
        let since = self.resting_since_ms;
        let rested_ms = self.rested_ms + since.map_or(0, |at| now_ms.saturating_sub(at));
        let rested = f64::from(rested_ms) / f64::from(watched_ms.max(1));
        (rested > MUCH_REST).then(|| {
            format!(
                "words are watched for {:.0} % of the time: each context switch of a thread with watchpoints costs \
                 time, there are {:.0} in a second here, and the budget does not allow more",
                (1.0 - rested) * 100.0,
                self.switches.per_second()
            )
        })
    }

    /// Returns the note that not all threads are watched.
    pub fn threads_note(&self) -> Option<String> {
        let (watched, all) = self.threads.counts();
        (watched < all).then(|| {
            format!(
                "accesses are looked for in {watched} of {all} threads: the budget does not allow more"
            )
        })
    }

    /// Iterates over the active looks.
    pub fn active(&self) -> impl Iterator<Item = &Look> {
        self.active.iter().map(|active| &active.look)
    }

    /// Updates the threads, and charges the cost of watching them. Looks that are abandoned because
    /// of this cost are added to `ended`.
    pub fn turn(&mut self, controller: &mut Controller, ended: &mut Vec<Ended>, now_ms: u32) {
        if now_ms >= self.next_switches_ms {
            self.next_switches_ms = now_ms + SWITCHES_MS;
            self.pay_for_switches(controller, ended, now_ms);
        }
        if now_ms >= self.next_follow_ms && self.resting_since_ms.is_none() {
            self.next_follow_ms = now_ms + FOLLOW_MS;
            self.threads
                .follow(self.active.iter_mut().map(|active| &mut active.word));
        }
    }

    /// Ends looks at words that were touched, or whose time has expired.
    pub fn poll(&mut self, controller: &mut Controller, ended: &mut Vec<Ended>, now_ms: u32) {
        let accesses = self.threads.take();
        let now_ns = monotonic_ns();
        let mut traps = accesses.len();
        for active in std::mem::take(&mut self.active) {
            let word = active.look.word();
            let mut of_word = accesses.iter().filter(|access| access.address == word);
            // Only the first access counts, because several threads may have trapped at the same
            // time.
            let first = of_word.next();
            let unrecorded = self.threads.touched_unrecorded(&active.word);
            traps += unrecorded;
            let touched_ms = match first {
                Some(access) => {
                    let ago_ms = now_ns.saturating_sub(access.time_ns) / 1_000_000;
                    let at = now_ms.saturating_sub(ago_ms as u32);
                    Some(at.max(active.look.began_ms))
                }
                None => (unrecorded > 0).then_some(now_ms),
            };
            if touched_ms.is_none() && now_ms < active.look.until_ms {
                self.active.push(active);
                continue;
            }
            ended.push(Ended {
                look: active.look,
                touched_ms,
                access: first.cloned(),
                ended_ms: now_ms,
            });
        }
        controller.trapped(traps, now_ms);
    }

    /// Charges the cost of scheduling threads with watchpoints. Stops watching the threads if the
    /// budget could not pay the same cost again.
    fn pay_for_switches(
        &mut self,
        controller: &mut Controller,
        ended: &mut Vec<Ended>,
        now_ms: u32,
    ) {
        let threads = &mut self.threads;
        let most_ns = switch_ns(self.slots);
        if let Some(since_ms) = self.resting_since_ms {
            let worth_ns = self.switches.per_second() * WORTH_S * most_ns;
            let wanted_ns = worth_ns.min(controller.all_of_words_ns() * NEARLY_ALL);
            if controller.words_room_ns(now_ms) >= wanted_ns {
                self.rested_ms += now_ms.saturating_sub(since_ms);
                self.resting_since_ms = None;
                threads.follow(std::iter::empty());
                self.switches
                    .take(self.pid, &threads.tids(), monotonic_ns());
            }
            return;
        }
        let taken = self
            .switches
            .take(self.pid, &threads.tids(), monotonic_ns());
        // Looks that have ended since the last count are treated as active, because there are few
        // of them.
        controller.switched(taken as f64 * most_ns, now_ms);
        let next_ns = self.switches.per_second() * f64::from(SWITCHES_MS) / 1e3 * most_ns;
        if controller.words_room_ns(now_ms) >= next_ns {
            return;
        }
        // These looks show that the word was untouched for their whole duration.
        let given_up = std::mem::take(&mut self.active).into_iter();
        ended.extend(given_up.map(|active| Ended {
            look: active.look,
            touched_ms: None,
            access: None,
            ended_ms: now_ms,
        }));
        threads.rest();
        self.switches.rest();
        self.resting_since_ms = Some(now_ms);
    }

    /// Watches as many words as the watchpoints and the budget allow.
    pub fn arm(
        &mut self,
        controller: &mut Controller,
        looks: &Looks,
        sites: &mut FxHashMap<Site, SiteBlocks>,
        random: &mut Random,
        now_ms: u32,
    ) {
        if self.resting_since_ms.is_some() {
            return;
        }
        let each = self.threads.counts().0;
        while self.active.len() < self.slots {
            let armed: usize = self.active.iter().map(|active| active.word.threads()).sum();
            if controller.watchpoint_room(armed, now_ms) < each.max(1) {
                return;
            }
            let older_ms = controller.settings().older_ms;
            let Some(look) = looks.choose(sites, older_ms, now_ms, random) else {
                return;
            };
            if self.active().any(|active| active.word() == look.word()) {
                return;
            }
            let Some(word) = self.threads.watch(look.word(), Width::Word) else {
                return;
            };
            self.active.push(Active { look, word });
        }
    }
}
