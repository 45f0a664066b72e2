//! Untraced targets, whose memory is periodically copied and searched for unreachable blocks.

use crate::advising::Advising;
use crate::board::{Growth, Identity, Link, Numbers, Pin};
use crate::config::{Destination, Files, Reclaim, Rule};
use crate::facts::executable_of;
use crate::haste::hastened;
use crate::kept_advice::KeptAdvice;
use crate::reclaiming::Reclaims;
use crate::said::chain;
use crate::waits::Waits;
use crate::worker::{Ended, Shared};
use memhook_attach::SharedFiles;
use memhook_heap::{Captured, Limits, MarkOptions, Request, Scan, account_of, capture};
use memhook_inject::{has_late_threads, let_late_threads_go};
use memhook_process::{has_ended, resident_counters, thread_start_time};
use memhook_symbols::SharedReaders;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Number of classes of blocks that are reported with the memory that they pin. Each class becomes
/// two series.
const MOST_PINS: usize = 10;
/// Interval for checking whether another scan has ended, or a late thread has stopped.
const TURN: Duration = Duration::from_millis(100);
/// Time between two checks that the process has not been replaced.
const LOOK: Duration = Duration::from_secs(1);
/// Time for which the scheduling delays of a process are measured before it is touched.
const WAITS_FOR: Duration = Duration::from_secs(1);
/// Maximum time over which simultaneous advice is spread.
const LONGEST_SPREAD: Duration = Duration::from_secs(3600);

/// Resource that only one process may use at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// A copy of the process's memory.
    Copies,
    /// An examination for advice.
    Advice,
}

/// Resources of the agent for searches and advice.
#[derive(Clone, Debug, Default)]
pub struct Means {
    /// Maximum bytes of a copy.
    pub memory: u64,
    /// Directory for unnamed recordings, which vanish when they are closed.
    pub directory: PathBuf,
    /// True if the agent looks up names.
    pub has_names: bool,
    /// Directory of files, if there is one.
    pub files: Option<Files>,
    /// Advice that outlives the agent, if it can be stored.
    pub kept_advice: Option<Arc<KeptAdvice>>,
}

/// The searches of one process.
pub struct Searches {
    identity: Arc<Identity>,
    rule: Arc<Rule>,
    means: Means,
    link: Arc<Link>,
    shared: Arc<Shared>,
    executable: Option<String>,
}

impl Searches {
    /// Prepares the searches of a process. None has run yet.
    pub fn new(
        identity: Arc<Identity>,
        rule: Arc<Rule>,
        means: Means,
        link: Arc<Link>,
        shared: Arc<Shared>,
    ) -> Searches {
        Searches {
            executable: executable_of(identity.pid),
            identity,
            rule,
            means,
            link,
            shared,
        }
    }

    /// Returns the identity of the process.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the link to the thread of the process.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Searches until the process ends, the agent has to leave it, or a search fails.
    pub fn run(&self, reclaim: Option<Reclaim>) -> Ended {
        let ended = self.run_until_then(reclaim);
        if let (Ended::Gone, Some(kept)) = (&ended, self.kept_advice()) {
            kept.forget(self.identity.pid);
        }
        ended
    }

    fn run_until_then(&self, reclaim: Option<Reclaim>) -> Ended {
        let _chosen = match self.identity.chosen().keep() {
            Ok(kept) => kept,
            Err(replaced) => return Ended::Refused(replaced.to_string()),
        };
        let (begin, mut growth) = (Instant::now(), Growth::default());
        let mut numbers = Numbers::default();
        let interval = hastened(self.rule.interval.get_ref().0);
        let mut reclaims = reclaim.map(Reclaims::new);
        let advise = self.rule.advise.as_ref();
        let mut advising = advise.map(|every| Advising::new(every.get_ref().0));
        let first_pause = |interval| Reclaims::first_pause(&self.identity, interval);
        let mut next_search = match reclaims {
            Some(_) => begin + first_pause(interval),
            None => begin,
        };
        let mut next_advice = advising.as_ref().map(|advising| {
            let first = first_pause(advising.every().min(hastened(LONGEST_SPREAD)));
            begin + first.max(advising.resume(self, &mut numbers))
        });
        if numbers.advised.is_some() {
            self.link.tell(&numbers);
        }
        self.link.tell_attached();
        loop {
            let next = next_advice.map_or(next_search, |advice| advice.min(next_search));
            if let Err(ended) = self.rest_until(next) {
                return ended;
            }
            let round = Instant::now();
            let is_advice = next_advice == Some(next);
            let done = match (&mut advising, &mut reclaims) {
                (Some(advising), _) if is_advice => {
                    next_advice = Some(round + advising.every());
                    advising.round(self, &mut numbers)
                }
                (_, Some(reclaims)) => reclaims.round(self, &mut numbers),
                _ => self.search(&mut numbers),
            };
            if let Err(Ended::NotRestored(why)) = done {
                return Ended::NotRestored(why);
            }
            if self.has_gone() {
                return Ended::Gone;
            }
            if let Err(ended) = done {
                return ended;
            }
            if !is_advice {
                numbers.growth_per_minute = growth.next(begin.elapsed(), numbers.live.0);
                let pause = match (&reclaims, &self.rule.overhead) {
                    (Some(reclaims), Some(share)) => {
                        interval.max(reclaims.pause_within(share.get_ref().0))
                    }
                    _ => interval,
                };
                next_search = round + pause;
            }
            self.link.tell(&numbers);
        }
    }

    /// Waits until a time. Fails if there is no longer a reason to wait.
    pub fn rest_until(&self, next: Instant) -> Result<(), Ended> {
        while Instant::now() < next {
            if self.link.is_asked_back() {
                return Err(Ended::Left);
            }
            if self.has_gone() {
                return Err(Ended::Gone);
            }
            let_late_threads_go();
            let most = if has_late_threads() { TURN } else { LOOK };
            let rest = next.saturating_duration_since(Instant::now());
            let _ = self.link.calls().recv_timeout(rest.min(most));
        }
        Ok(())
    }

    /// Waits until no other process is being searched, because all copies together would take too
    /// much memory.
    pub fn turn(&self) -> Result<MutexGuard<'_, ()>, Ended> {
        self.turn_in(Queue::Copies)
    }

    /// Like [`Self::turn`], without waiting.
    pub fn try_turn(&self) -> Option<MutexGuard<'_, ()>> {
        taken(&self.shared.one_scan)
    }

    fn turn_in(&self, queue: Queue) -> Result<MutexGuard<'_, ()>, Ended> {
        let one = match queue {
            Queue::Copies => &self.shared.one_scan,
            Queue::Advice => &self.shared.one_examination,
        };
        loop {
            if self.link.is_asked_back() {
                return Err(Ended::Left);
            }
            if let Some(turn) = taken(one) {
                return Ok(turn);
            }
            let_late_threads_go();
            std::thread::sleep(TURN);
        }
    }

    /// Waits for the turn of this process in a queue, and until the agent is within its budget.
    /// Returns `None` if that takes longer than `patience`.
    pub fn turn_within_budget(
        &self,
        queue: Queue,
        patience: Duration,
    ) -> Result<Option<MutexGuard<'_, ()>>, Ended> {
        let until = Instant::now() + patience;
        loop {
            let turn = self.turn_in(queue)?;
            if !self.shared.is_held_back.load(Relaxed) {
                return Ok(Some(turn));
            }
            drop(turn);
            if Instant::now() >= until {
                return Ok(None);
            }
            self.rest_until(Instant::now() + LOOK)?;
        }
    }

    /// Returns true if the process's threads hardly get any processor time now. Takes a second.
    pub fn is_starved(&self) -> Result<bool, Ended> {
        let pid = self.identity.pid;
        let before = Waits::of(pid);
        self.rest_until(Instant::now() + WAITS_FOR)?;
        Ok(Waits::of(pid).show_starvation_since(&before))
    }

    /// Returns the limits of each of two simultaneous copies.
    pub fn halved_limits(&self) -> Limits {
        let limits = self.request().limits;
        Limits {
            memory: limits.memory.map(|bytes| bytes / 2),
            ..limits
        }
    }

    /// Returns the share of the process's time that tracing may take, if the rule sets one.
    pub fn overhead(&self) -> Option<f64> {
        Some(self.rule.overhead.as_ref()?.get_ref().0)
    }

    /// Returns the shared files of targets.
    pub fn files(&self) -> &SharedFiles {
        &self.shared.files
    }

    /// Returns the directory for unnamed recordings, which vanish when they are closed.
    pub fn directory(&self) -> &std::path::Path {
        &self.means.directory
    }

    /// Returns the directory for advice, if the rule asks for it.
    pub fn files_of_advice(&self) -> Option<&Files> {
        let mut sent = self.rule.send.iter();
        let is_wanted = sent.any(|to| *to.get_ref() == Destination::Files);
        self.means.files.as_ref().filter(|_| is_wanted)
    }

    /// Returns the advice that is kept beyond the life of the agent, if it can be stored.
    pub fn kept_advice(&self) -> Option<&KeptAdvice> {
        self.means.kept_advice.as_deref()
    }

    /// Returns the executable of the process.
    pub fn executable(&self) -> Option<&str> {
        self.executable.as_deref()
    }

    /// Returns the shared file readers for symbol names, if the agent resolves them.
    pub fn names(&self) -> Option<&SharedReaders> {
        self.means.has_names.then_some(&self.shared.names)
    }

    /// Returns true if the process has ended, or executes another program, which may match another
    /// rule.
    pub fn has_gone(&self) -> bool {
        let pid = self.identity.pid;
        let is_the_same = thread_start_time(pid, pid) == Some(self.identity.started);
        has_ended(pid) || !is_the_same || executable_of(pid) != self.executable
    }

    /// Returns the rule's request for a copy.
    pub fn request(&self) -> Request {
        let rule = &self.rule;
        let limits = Limits {
            hold: rule
                .max_hold
                .map_or(Limits::default().hold, |hold| Some(hold.0)),
            memory: Some(self.means.memory),
            only_looks: false,
        };
        Request {
            limits,
            with_residency: rule.resident || rule.pins,
            ..Request::to_search()
        }
    }

    /// Searches once, without further action.
    fn search(&self, numbers: &mut Numbers) -> Result<(), Ended> {
        let _turn = self.turn()?;
        self.try_search(numbers).map_err(Ended::Refused)
    }

    fn try_search(&self, numbers: &mut Numbers) -> Result<(), String> {
        let captured = capture(self.identity.pid, self.request()).map_err(|error| chain(&error))?;
        self.count_hold(&captured, numbers);
        let options = MarkOptions {
            ignore_round: true,
            ..MarkOptions::default()
        };
        let scan = Scan::of(&captured.snapshot, options).map_err(|error| chain(&error))?;
        if !scan.heap.is_whole() {
            return Err(
                "its heap could not be read completely, so its unreachable blocks are not known"
                    .into(),
            );
        }
        self.count(&captured, &scan, numbers)
    }

    /// Records the numbers of a search that read the whole heap.
    pub fn count(
        &self,
        captured: &Captured,
        scan: &Scan,
        numbers: &mut Numbers,
    ) -> Result<(), String> {
        let blocks = &scan.heap.blocks;
        let live = blocks.iter().map(|(_, block)| block.bytes).sum();
        let lost = scan.leaks.iter();
        let lost_bytes = lost.map(|leak| blocks.get(leak.block).bytes).sum();
        numbers.live = (live, u64::from(blocks.len()));
        numbers.unreachable = Some((lost_bytes, scan.leaks.len() as u64));
        let counters = resident_counters(self.identity.pid);
        numbers.resident = counters.map_or(numbers.resident, |counters| counters.resident());
        self.account(captured, scan, numbers)
    }

    /// Records the time for which all threads were held.
    pub fn count_hold(&self, captured: &Captured, numbers: &mut Numbers) {
        numbers.scans += 1;
        numbers.scan_held += captured.snapshot.meta.held_ms / 1e3;
    }

    /// Returns the resident memory of a copied process, and the blocks that pin it if the rule
    /// requests them.
    fn account(
        &self,
        captured: &Captured,
        scan: &Scan,
        numbers: &mut Numbers,
    ) -> Result<(), String> {
        let rule = &self.rule;
        if !rule.resident && !rule.pins {
            return Ok(());
        }
        let account =
            account_of(captured, Some(&scan.heap), rule.pins).map_err(|error| chain(&error))?;
        if rule.resident {
            numbers.resident = account.memory.rss;
            let parts = account.parts.into_iter();
            numbers.resident_parts = parts.map(|(part, bytes)| (part.name(), bytes)).collect();
        }
        let pins = account.pins.into_iter().take(MOST_PINS);
        let pins = pins.map(|(class, pinned)| Pin {
            name: class.name,
            own_blocks: pinned.blocks,
            own_bytes: pinned.own_bytes,
            pinned_bytes: pinned.pinned_bytes,
        });
        numbers.pins = pins.collect();
        Ok(())
    }
}

/// Takes a lock if it is free.
fn taken(one: &Mutex<()>) -> Option<MutexGuard<'_, ()>> {
    match one.try_lock() {
        Ok(turn) => Some(turn),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::black_box::BlackBoxes;
    use memhook_attach::{Lookout, SharedFiles};
    use memhook_symbols::SharedReaders;
    use std::sync::atomic::AtomicBool;

    fn of_this_process(shared: &Arc<Shared>) -> Searches {
        let text = "[[rule]]\nname = \"x\"\nprocess = \"x\"\nmode = \"scan\"\n";
        let file: crate::config::File = toml::from_str(text).expect("right");
        let pid = std::process::id() as i32;
        let identity = Identity {
            pid,
            started: thread_start_time(pid, pid).expect("it lives"),
            ..Identity::default()
        };
        let rule = Arc::new(file.rule[0].get_ref().clone());
        let link = Arc::new(Link::default());
        Searches::new(
            Arc::new(identity),
            rule,
            Means::default(),
            link,
            Arc::clone(shared),
        )
    }

    #[test]
    fn one_is_searched_at_a_time_and_only_within_the_budget() {
        let shared = Arc::new(Shared {
            lookout: Lookout::start().expect("a thread"),
            files: SharedFiles::default(),
            names: SharedReaders::within(0),
            black_boxes: BlackBoxes::start().expect("a thread"),
            one_scan: Mutex::default(),
            one_examination: Mutex::default(),
            is_held_back: AtomicBool::new(true),
        });
        let [first, second] = [(); 2].map(|()| of_this_process(&shared));
        let patience = Duration::ZERO;
        assert!(matches!(
            first.turn_within_budget(Queue::Copies, patience),
            Ok(None)
        ));
        shared.is_held_back.store(false, Relaxed);
        let turn = first.turn_within_budget(Queue::Copies, patience);
        assert!(matches!(turn, Ok(Some(_))));
        // The search waits for its turn until the agent has to leave the process.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| second.turn().map(drop));
            // A search that does not wait would end within this time.
            std::thread::sleep(2 * TURN);
            assert!(!waiting.is_finished());
            second.link.ask_back();
            assert!(matches!(waiting.join(), Ok(Err(Ended::Left))));
        });
        // A search that could be postponed does not wait while another process is being copied.
        assert!(second.try_turn().is_none());
        drop(turn);
        assert!(first.turn().is_ok() && second.try_turn().is_some());
    }
}
