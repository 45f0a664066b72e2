//! The agent's work on one trace: numbers every second, and a profile at the end of each interval.

use crate::black_box::{BlackBox, BlackBoxes};
use crate::board::{Growth, Identity, Link, Numbers};
use crate::config::{Destination, Mode, Rule};
use crate::send::{Made, Outbox};
use crate::sums::{SampledSites, Sums};
use crossbeam_channel::Select;
use memhook_attach::{Consumer, End, Job, Trace, Turn, account_of_session};
use memhook_checkup::SessionStacks;
use memhook_process::{CgroupMemory, TargetRoot, resident_counters};
use memhook_report::{LiveProfiler, Profile, Sampling, Target, UnseenTime};
use memhook_symbols::{SearchPath, SharedReaders, Symbolizer};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time between two readings of the numbers.
const NUMBERS_PERIOD: Duration = Duration::from_secs(1);
/// Longer period for samples, which require a walk over the live blocks, and for quiet targets,
/// whose numbers hardly change.
const SELDOM: Duration = Duration::from_secs(5);
/// Maximum time between two turns of a quiet target.
const QUIET_PACE: Duration = Duration::from_secs(5);
/// Time for which the last profile waits for names.
const LAST_NAMES: Duration = Duration::from_secs(2);
/// How long a profile waits for names if its process may be killed at any moment.
const URGENT_NAMES: Duration = Duration::from_millis(20);
/// How long a module's data for name lookups is kept. It takes much more memory than the names, and
/// after some profiles, new names are rare.
const NAMES_KEPT: Duration = Duration::from_secs(30);
/// Maximum number of sites in a profile. Profile stores refuse more samples.
const MOST_SITES: usize = 8000;

/// The job of one target.
pub struct TargetJob {
    link: Arc<Link>,
    identity: Arc<Identity>,
    rule: Arc<Rule>,
    depth: u32,
    outbox: Outbox,
    profiler: Option<LiveProfiler>,
    black_box: Option<BlackBox>,
    /// Reason for keeping the current profile: a word, and a sentence.
    occasion: Option<(&'static str, String)>,
    next_profile: Duration,
    next_numbers: Duration,
    next_account: Duration,
    /// Time of the last turn since the attach.
    now: Duration,
    /// Time of the last reading of the numbers, and the number of passes over the rings up to then.
    last_numbers: Duration,
    passes: u64,
    began_unix_ms: u64,
    growth: Growth,
    numbers: Numbers,
    memory: CgroupMemory,
    /// Source of names, even after the process has ended.
    _root: TargetRoot,
}

impl TargetJob {
    /// Creates a job. `names` holds the shared readers of the files that contain names, or is
    /// `None` if other programs add names to profiles.
    pub fn new(
        link: Arc<Link>,
        identity: Arc<Identity>,
        rule: Arc<Rule>,
        outbox: Outbox,
        (names, black_boxes): (Option<&SharedReaders>, &BlackBoxes),
    ) -> TargetJob {
        let pid = identity.pid;
        let tracing = rule.tracing(0);
        let root = TargetRoot::of(pid);
        let is_wanted = rule.mode != Mode::Summary && (rule.blackbox || !rule.send.is_empty());
        let symbols = names.map_or_else(Symbolizer::without_files, |names| {
            Symbolizer::new(SearchPath {
                readers: Some(names.clone()),
                ..SearchPath::from(root.search_order())
            })
        });
        let interval = rule.interval.get_ref().0;
        TargetJob {
            profiler: is_wanted.then(|| LiveProfiler::new(symbols, MOST_SITES)),
            black_box: (rule.blackbox).then(|| black_boxes.add(pid, &link)),
            occasion: None,
            link,
            identity,
            depth: tracing.depth,
            outbox,
            next_profile: interval,
            next_numbers: Duration::ZERO,
            next_account: Duration::ZERO,
            now: Duration::ZERO,
            last_numbers: Duration::ZERO,
            passes: 0,
            began_unix_ms: 0,
            growth: Growth::default(),
            numbers: Numbers::default(),
            memory: CgroupMemory::of(pid),
            rule,
            _root: root,
        }
    }

    /// Reads the current numbers.
    fn look(&mut self, trace: &Trace<SampledSites>) {
        let consumer = trace.consumer();
        let now = consumer.elapsed();
        let sums = Sums::of(consumer);
        self.count(trace, now, &sums);
    }

    fn count(&mut self, trace: &Trace<SampledSites>, now: Duration, sums: &Sums) {
        let losses = trace.session().region().losses();
        let (live, allocated) = sums.totals();
        let gaps = trace.consumer().gaps(now);
        let untraced: u64 = gaps
            .iter()
            .map(|gap| gap.to_ns.saturating_sub(gap.from_ns))
            .sum();
        let numbers = &mut self.numbers;
        numbers.live = (live.bytes, live.blocks);
        numbers.allocated = (allocated.bytes, allocated.blocks);
        numbers.errors = sums.errors;
        numbers.sample_bytes = trace.consumer().sample_bytes_now().unwrap_or(0);
        numbers.growth_per_minute = self.growth.next(now, live.bytes);
        numbers.lost = losses.events();
        numbers.unwatched_libraries = losses.unwatched_libraries;
        numbers.gaps = (gaps.len() as u64, untraced as f64 / 1e9);
        // Do not walk the process's pages: the process's own calls of mmap would block during the
        // walk.
        let counters = resident_counters(self.identity.pid);
        numbers.resident = counters.map_or(numbers.resident, |counters| counters.resident());
        let levels = self.memory.now();
        let tightest = levels.iter().filter(|level| !level.is_machine());
        let tightest = tightest.min_by_key(|level| level.free);
        numbers.limit = tightest.map_or((0, 0), |level| (level.limit, level.free));
        if self.rule.resident && now >= self.next_account {
            self.next_account = now + self.rule.interval.get_ref().0;
            let account = account_of_session(trace.session(), trace.consumer(), None);
            let parts = account.map(|account| account.parts.into_iter());
            let parts = parts.map(|parts| parts.map(|(part, bytes)| (part.name(), bytes)));
            numbers.resident_parts = parts.into_iter().flatten().collect();
        }
        self.link.tell(numbers);
    }

    /// Begins the profile of the interval that ends now. A profile that still waits for names is
    /// sent without them.
    fn begin_profile(&mut self, trace: &Trace<SampledSites>) {
        self.finish_profile(None);
        let consumer = trace.consumer();
        let now = consumer.elapsed();
        let sums = Sums::of(consumer);
        self.count(trace, now, &sums);
        let facts = self.facts(consumer, now, &sums);
        let session = trace.session();
        let Some(profiler) = &mut self.profiler else {
            return;
        };
        profiler.begin(
            &SessionStacks(session),
            session.module_files(),
            sums.sites,
            facts,
        );
    }

    /// Returns the profile without sites and names.
    fn facts(&self, consumer: &Consumer<SampledSites>, now: Duration, sums: &Sums) -> Profile {
        Profile {
            target: Target {
                pid: self.identity.pid,
                name: self.identity.process.clone(),
                exe: String::new(),
            },
            began_unix_ms: self.began_unix_ms,
            to_ns: now.as_nanos() as u64,
            gaps: consumer
                .gaps(now)
                .into_iter()
                .map(UnseenTime::from)
                .collect(),
            depth: self.depth,
            // Even if everything is recorded again at the end, the older blocks are known only from
            // samples.
            sampling: sums.errors.map(|(live, _)| Sampling {
                mean_bytes: self.numbers.sample_bytes.max(1),
                live_error_bytes: Some(live),
                ..Sampling::default()
            }),
            ..Profile::default()
        }
    }

    /// Sends the profile if its names have arrived. With `wait`, waits at most this long for them,
    /// and then sends the profile without them.
    fn finish_profile(&mut self, wait: Option<Duration>) {
        let Some(profiler) = &mut self.profiler else {
            return;
        };
        let profile = profiler
            .poll(wait.unwrap_or_default())
            .or_else(|| profiler.give_up_names());
        self.hand_over(profile);
    }

    /// Makes a profile that is kept.
    fn keep(
        &mut self,
        trace: &Trace<SampledSites>,
        reason: &'static str,
        explanation: String,
        names: Duration,
    ) {
        let (pid, program) = (self.identity.pid, &self.identity.process);
        crate::said::warn(&format!("process {pid} ({program}): {explanation}"));
        self.next_profile = self.now + self.rule.interval.get_ref().0;
        self.begin_profile(trace);
        self.occasion = Some((reason, explanation));
        self.finish_profile(Some(names));
        self.occasion = None;
    }

    fn hand_over(&mut self, profile: Option<Profile>) {
        let Some(mut profile) = profile else {
            return;
        };
        self.numbers.profiles += 1;
        let (kept_for, why) = self.occasion.take().unzip();
        profile.occasion = why;
        let to = self.rule.send.iter().map(|to| *to.get_ref());
        self.outbox.put(Made {
            profile,
            identity: Arc::clone(&self.identity),
            to: to.collect::<Vec<Destination>>(),
            kept_for,
        });
    }
}

impl Job<SampledSites> for TargetJob {
    /// Returns the time between turns. Many targets with ten turns a second cost as much as a few
    /// with a hundred.
    fn pace(&self) -> Duration {
        Duration::from_millis(100)
    }

    /// Returns the time until the next numbers or profile.
    fn quiet_pace(&self) -> Duration {
        let names_are_due = self.profiler.as_ref().is_some_and(LiveProfiler::is_busy);
        if names_are_due {
            return self.pace();
        }
        let next = match &self.profiler {
            Some(_) => self.next_numbers.min(self.next_profile),
            None => self.next_numbers,
        };
        let until = next.saturating_sub(self.now);
        until.clamp(self.pace(), QUIET_PACE)
    }

    /// Returns false. Leaving all targets simultaneously would take too many resources, so the
    /// supervisor leaves a few at a time.
    fn ends_by_signal(&self) -> bool {
        false
    }

    fn listen<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(self.link.calls());
    }

    fn begin(&mut self, trace: &Trace<SampledSites>) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        self.began_unix_ms = unix.map_or(0, |time| time.as_millis() as u64);
        let session = trace.session();
        let (attach, held) = (session.attach_time(), session.held_time());
        self.numbers.attach = (attach.as_secs_f64(), held.as_secs_f64());
        self.numbers.sample_bytes = trace.consumer().sample_bytes_now().unwrap_or(0);
        self.link.tell(&self.numbers);
        self.link.tell_attached();
    }

    fn turn(&mut self, trace: &Trace<SampledSites>, turn: &Turn) -> ControlFlow<()> {
        if let Some(drainer) = trace.consumer().drain_thread() {
            self.link.tell_thread(drainer);
        }
        let alarm = self.black_box.as_mut();
        let alarm = alarm.and_then(|black_box| black_box.look(turn.gone));
        if turn.is_last {
            // The last profile has everything.
            return ControlFlow::Continue(());
        }
        let now = trace.consumer().elapsed();
        self.now = now;
        let _ = self.link.calls().try_recv();
        if let Some(alarm) = alarm {
            self.keep(trace, alarm.reason, alarm.explanation, URGENT_NAMES);
        } else if now >= self.next_profile && self.profiler.is_some() {
            self.next_profile = now + self.rule.interval.get_ref().0;
            self.begin_profile(trace);
        } else if now >= self.next_numbers {
            let is_estimated = self.numbers.errors.is_some();
            let period = if is_estimated { SELDOM } else { NUMBERS_PERIOD };
            self.next_numbers = now + period;
            let passes = trace.consumer().passes();
            if passes != self.passes || now >= self.last_numbers + SELDOM {
                (self.passes, self.last_numbers) = (passes, now);
                self.look(trace);
            }
        }
        // Looking up names may take a long time, and a dlopen in the target does not wait for it.
        if let Some(profiler) = &mut self.profiler {
            let profile = profiler.poll(Duration::ZERO);
            profiler.close_unused(NAMES_KEPT);
            self.hand_over(profile);
        }
        if self.link.is_asked_back() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn end(&mut self, trace: &mut Trace<SampledSites>, end: &End) {
        self.link.tell_left();
        let death = self.black_box.as_mut().filter(|_| matches!(end, End::Gone));
        if let Some(explanation) = death.and_then(BlackBox::end) {
            self.keep(trace, "end", explanation, LAST_NAMES);
        } else if self.profiler.is_some() {
            self.begin_profile(trace);
            self.finish_profile(Some(LAST_NAMES));
        } else {
            self.look(trace);
        }
    }

    fn notice(&mut self, text: &str) {
        crate::said::warn(text);
    }
}
