//! A live process, watched within a budget.

use crate::ages::{AgeHistory, AgePoint};
use crate::answer::{Evidence, SiteAnswer, answer, note_known};
use crate::controller::{Controller, Settings};
use crate::error::Error;
use crate::looks::{Look, Looks, kept_ms};
use crate::marked_pages::MarkedPages;
use crate::measure::{Means, measure};
use crate::random::Random;
use crate::sites::{Census, LiveBlock, Site, SiteBlocks};
use crate::switches::{Switches, switch_ns};
use crate::watched_threads::{WatchedThreads, WatchedWord};
use memhook_inject::{Access, Pace, Width, WriteWatch, with_gaps};
use memhook_process::{filter_may_kill, mappings, proc_path};
use memhook_stream::monotonic_ns;
use rustc_hash::{FxHashMap, FxHashSet};
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Between two looks at the pages, or more: they take one in so many of our time at most.
const SECOND_MS: u32 = 1000;
const LOOKING_SHARE: u32 = 5;
/// Between two looks at the threads.
const FOLLOW_MS: u32 = 100;
/// Between two looks at how often the threads were put on processors.
const SWITCHES_MS: u32 = 20;
/// Threads that were left alone are watched again once the budget has room for so many seconds of that, or nearly all of
/// its room is free.
const WORTH_S: f64 = 1.0;
const NEARLY_ALL: f64 = 0.9;
/// Where they are left alone for more than this share of the time, that is said.
const MUCH_REST: f64 = 0.1;
/// A release is seen so much later at most. Until then it is not known whether an access was that of free().
const RELEASE_DELAY_MS: u32 = 500;
/// A larger mapping is a sanitizer's shadow or the like, reserved but never filled.
const MOST_AREA_BYTES: u64 = 256 << 30;

/// A look under way.
struct Active {
    look: Look,
    word: WatchedWord,
}

/// A look that has ended; what it tells depends on whether its block lives.
struct Ended {
    look: Look,
    touched_ms: Option<u32>,
    access: Option<Access>,
    ended_ms: u32,
}

/// The last access that was seen at a site.
#[derive(Clone, Debug)]
pub struct SeenAccess {
    /// When.
    pub at_ms: u32,
    /// The block.
    pub block: LiveBlock,
    /// Offset of the word in it.
    pub offset: u64,
    /// By whom, if the kernel has recorded it.
    pub access: Option<Access>,
}

/// Watches a process.
pub struct Watcher {
    pid: i32,
    controller: Controller,
    began_ms: u32,
    write_watch: Option<WriteWatch>,
    marks: Option<MarkedPages>,
    registered: Vec<Range<u64>>,
    threads: Option<WatchedThreads>,
    slots: usize,
    active: Vec<Active>,
    ended: Vec<Ended>,
    looks: Looks,
    hits: FxHashMap<u64, u32>,
    accesses: FxHashMap<Site, SeenAccess>,
    sites: FxHashMap<Site, SiteBlocks>,
    history: AgeHistory,
    random: Random,
    switches: Switches,
    /// Since when the threads are left alone.
    resting_since_ms: Option<u32>,
    /// For how long they were before.
    rested_ms: u32,
    next_second_ms: u32,
    next_follow_ms: u32,
    next_switches_ms: u32,
    notes: Vec<String>,
}

impl Watcher {
    /// Begins to watch a process. `now_ms` is the time since the attach, as for all methods.
    ///
    /// # Errors
    /// If neither pages nor words can be watched.
    pub fn start(pid: i32, settings: Settings, now_ms: u32) -> Result<Watcher, Error> {
        let means = measure();
        let mut notes = Vec::new();
        let write_watch = pages(pid, &means).map_err(|why| notes.push(why)).ok();
        let controller = Controller::new(settings, means.costs);
        let words = words(pid, &means, &settings)
            .map_err(|why| notes.push(why))
            .ok();
        if write_watch.is_none() && words.is_none() {
            return Err(Error::NoEvidence {
                pid,
                why: notes.join("; "),
            });
        }
        if let (Some(_), Ok(false)) = (&words, &means.watchpoints) {
            notes.push(
                "accesses by system calls on the program's behalf are not seen: that takes \
                 CAP_PERFMON, or kernel.perf_event_paranoid at 1 or less"
                    .into(),
            );
        }
        let (threads, slots) = match words {
            Some((threads, slots)) => (Some(threads), slots),
            None => (None, 0),
        };
        let mut watcher = Watcher {
            pid,
            controller,
            began_ms: now_ms,
            marks: write_watch.is_some().then(|| MarkedPages::of(pid)),
            write_watch,
            registered: Vec::new(),
            threads,
            slots,
            active: Vec::new(),
            ended: Vec::new(),
            looks: Looks::default(),
            hits: FxHashMap::default(),
            accesses: FxHashMap::default(),
            sites: FxHashMap::default(),
            history: AgeHistory::default(),
            random: Random::seeded(monotonic_ns()),
            switches: Switches::default(),
            resting_since_ms: None,
            rested_ms: 0,
            next_second_ms: now_ms,
            next_follow_ms: now_ms,
            next_switches_ms: now_ms,
            notes,
        };
        watcher.look(now_ms);
        Ok(watcher)
    }

    /// What is not seen, and why.
    pub fn notes(&self, now_ms: u32) -> Vec<String> {
        let mut notes = self.notes.clone();
        let rested_ms = self.rested_ms
            + self
                .resting_since_ms
                .map_or(0, |at| now_ms.saturating_sub(at));
        let rested = f64::from(rested_ms) / f64::from(self.watched_ms(now_ms).max(1));
        if rested > MUCH_REST {
            notes.push(format!(
                "words are watched for {:.0} % of the time: threads with watchpoints pay for each time that they are put \
                 on a processor, {:.0} times a second here, and the budget does not allow more",
                (1.0 - rested) * 100.0,
                self.switches.per_second()
            ));
        }
        let marks = self.marks.as_ref().and_then(MarkedPages::given_up);
        notes.extend(marks);
        let (watched, all) = self.threads.as_ref().map_or((0, 0), WatchedThreads::counts);
        if watched < all {
            notes.push(format!(
                "accesses are looked for in {watched} of {all} threads: the budget does not allow more"
            ));
        }
        notes
    }

    /// The controller.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Whether words are watched.
    pub fn has_watchpoints(&self) -> bool {
        self.threads.is_some()
    }

    /// Whether pages are watched.
    pub fn has_pages(&self) -> bool {
        self.write_watch.is_some()
    }

    /// How often the marks of accesses in the page tables were cleared, and how long the longest of these took.
    pub fn clears(&self) -> (u64, Duration) {
        self.marks
            .as_ref()
            .map_or((0, Duration::ZERO), MarkedPages::clears)
    }

    /// How long the process has been watched, in ms.
    pub fn watched_ms(&self, now_ms: u32) -> u32 {
        now_ms.saturating_sub(self.began_ms)
    }

    /// The share of the time that watching has cost the process until now.
    pub fn cost(&self, now_ms: u32) -> f64 {
        let time_ns = f64::from(self.watched_ms(now_ms).max(1)) * 1e6;
        self.controller.spent_ns() / time_ns
    }

    /// To be called every few milliseconds.
    pub fn turn(&mut self, now_ms: u32) {
        self.poll(now_ms);
        if now_ms >= self.next_switches_ms {
            self.next_switches_ms = now_ms + SWITCHES_MS;
            self.pay_for_switches(now_ms);
        }
        if now_ms >= self.next_follow_ms && self.resting_since_ms.is_none() {
            self.next_follow_ms = now_ms + FOLLOW_MS;
            if let Some(threads) = &mut self.threads {
                threads.follow(self.active.iter_mut().map(|active| &mut active.word));
            }
        }
        if now_ms >= self.next_second_ms {
            self.look(now_ms);
        }
        if let (Some(marks), Some(watch)) = (&mut self.marks, &self.write_watch) {
            marks.go_on(watch, &mut self.controller.pages, clock_from(now_ms));
        }
        self.arm(now_ms);
    }

    /// Looks at the pages now: to be called before the last census, so that it is of this moment.
    pub fn look_again(&mut self, now_ms: u32) {
        self.poll(now_ms);
        self.look(now_ms);
        if let Some(marks) = &mut self.marks {
            marks.look_again(clock_from(now_ms));
        }
    }

    /// Ends looks at words that were touched, or whose time is over.
    fn poll(&mut self, now_ms: u32) {
        let Some(threads) = &mut self.threads else {
            return;
        };
        let accesses = threads.take();
        let now_ns = monotonic_ns();
        let mut traps = accesses.len();
        for active in std::mem::take(&mut self.active) {
            let word = active.look.word();
            let mut of_word = accesses.iter().filter(|access| access.address == word);
            // The first one: threads may have trapped together.
            let first = of_word.next();
            let unrecorded = threads.touched_unrecorded(&active.word);
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
            self.ended.push(Ended {
                look: active.look,
                touched_ms,
                access: first.cloned(),
                ended_ms: now_ms,
            });
        }
        self.controller.trapped(traps, now_ms);
    }

    /// Looks at the pages, and protects those whose turn it is.
    fn look(&mut self, now_ms: u32) {
        let Some(watch) = &self.write_watch else {
            return;
        };
        let begin = Instant::now();
        let registered: FxHashSet<Range<u64>> = self.registered.drain(..).collect();
        for (area, is_heap) in watchable_mappings(self.pid) {
            let mut add = || match &mut self.marks {
                Some(marks) => marks.watch(watch, area.clone(), is_heap),
                None => watch.add(area.clone()).is_ok(),
            };
            // A program may watch an area itself.
            if registered.contains(&area) || add() {
                self.registered.push(area);
            }
        }
        let areas = joined(&self.registered);
        self.controller.pages.set_areas(&areas, now_ms);
        let (mut written, mut pace) = (Vec::new(), Pace::default());
        // What is found between the areas is of no page that is known.
        for range in with_gaps(areas) {
            // Fails where the process is gone.
            let _ = pace.in_slices(range, |slice| watch.written_so_far(slice, &mut written));
        }
        self.controller.looked(&written, now_ms);
        let plan = self.controller.plan_pages(now_ms);
        for run in &plan.lift {
            let _ = pace.in_slices(run.clone(), |slice| watch.lift(slice));
        }
        self.controller.pages.lift(&plan.lift, now_ms);
        let mut guarded = Vec::new();
        for run in plan.guard {
            let guard = |slice| watch.written(slice, &mut Vec::new());
            if pace.in_slices(run.clone(), guard).is_ok() {
                guarded.push(run);
            }
        }
        self.controller.pages.guard(&guarded, now_ms);
        if let Some(marks) = &mut self.marks {
            let older_ms = self.controller.settings().older_ms;
            marks.turn(&self.controller.pages, older_ms, clock_from(now_ms));
        }
        let took_ms = begin.elapsed().as_millis() as u32;
        let apart_ms = took_ms.saturating_mul(LOOKING_SHARE).max(SECOND_MS);
        self.next_second_ms = now_ms.saturating_add(apart_ms);
    }

    /// Notes what it has cost that threads with watchpoints were put on processors, and leaves the threads alone if there
    /// is not enough left for as much again.
    fn pay_for_switches(&mut self, now_ms: u32) {
        let Some(threads) = &mut self.threads else {
            return;
        };
        let most_ns = switch_ns(self.slots);
        if let Some(since_ms) = self.resting_since_ms {
            let worth_ns = self.switches.per_second() * WORTH_S * most_ns;
            let wanted_ns = worth_ns.min(self.controller.all_of_words_ns() * NEARLY_ALL);
            if self.controller.words_room_ns(now_ms) >= wanted_ns {
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
        // Looks that have ended since are counted as if they lasted: few do.
        self.controller.switched(taken as f64 * most_ns, now_ms);
        let next_ns = self.switches.per_second() * f64::from(SWITCHES_MS) / 1e3 * most_ns;
        if self.controller.words_room_ns(now_ms) >= next_ns {
            return;
        }
        // They tell that nobody touched the word for as long as they lasted.
        let given_up = std::mem::take(&mut self.active).into_iter();
        self.ended.extend(given_up.map(|active| Ended {
            look: active.look,
            touched_ms: None,
            access: None,
            ended_ms: now_ms,
        }));
        threads.rest();
        self.switches.rest();
        self.resting_since_ms = Some(now_ms);
    }

    /// Watches as many words as there are watchpoints, and as the budget allows.
    fn arm(&mut self, now_ms: u32) {
        if self.resting_since_ms.is_some() {
            return;
        }
        let Some(threads) = &self.threads else {
            return;
        };
        let each = threads.counts().0;
        while self.active.len() < self.slots {
            let armed: usize = self.active.iter().map(|active| active.word.threads()).sum();
            if self.controller.watchpoint_room(armed, now_ms) < each.max(1) {
                return;
            }
            let older_ms = self.controller.settings().older_ms;
            let look = self
                .looks
                .choose(&mut self.sites, older_ms, now_ms, &mut self.random);
            let Some(look) = look else { return };
            if self
                .active
                .iter()
                .any(|active| active.look.word() == look.word())
            {
                return;
            }
            let Some(word) = threads.watch(look.word(), Width::Word) else {
                return;
            };
            self.active.push(Active { look, word });
        }
    }

    /// Takes a census of the live blocks, which `each_block` hands over one by one.
    pub fn census(&mut self, now_ms: u32, each_block: impl FnOnce(&mut dyn FnMut(LiveBlock))) {
        let older_ms = self.controller.settings().older_ms;
        let is_due = |ended: &Ended| now_ms.saturating_sub(ended.ended_ms) >= RELEASE_DELAY_MS;
        let (due, waiting) = std::mem::take(&mut self.ended)
            .into_iter()
            .partition(is_due);
        self.ended = waiting;
        let due: Vec<Ended> = due;
        let mut lives: FxHashMap<LiveKey, bool> = due
            .iter()
            .map(|ended| (key(&ended.look.block), false))
            .collect();
        let random = Random::seeded(self.random.number());
        let mut census = Census::new(older_ms, now_ms, &self.hits, random);
        let pages = &self.controller.pages;
        each_block(&mut |block| {
            if !lives.is_empty()
                && let Some(lives) = lives.get_mut(&key(&block))
            {
                *lives = true;
            }
            let range = block.address..block.address.saturating_add(block.bytes);
            let written_ms = pages.may_be_written(range.clone());
            let idle = self.marks.as_ref();
            let idle = idle.and_then(|marks| marks.idle_since(range.clone(), older_ms));
            census.add(&block, pages.writes(range, older_ms), written_ms, idle);
        });
        self.history.add(AgePoint {
            at_ms: now_ms,
            bytes: census.ages,
            pages: pages.thresholds(),
        });
        self.sites = census.sites;
        for ended in due {
            if lives.get(&key(&ended.look.block)) == Some(&true) {
                self.believe(ended);
            }
        }
        let kept_ms = kept_ms(older_ms);
        self.looks.forget_before(now_ms.saturating_sub(kept_ms));
        let evidence = Evidence {
            has_watchpoints: self.has_watchpoints(),
            is_too_early: false,
        };
        note_known(&mut self.sites, &mut self.looks, older_ms, evidence);
        self.hits
            .retain(|_, at| now_ms.saturating_sub(*at) < older_ms);
    }

    /// A look has ended whose block still lives.
    fn believe(&mut self, ended: Ended) {
        let Ended {
            look,
            touched_ms,
            access,
            ended_ms,
        } = ended;
        self.looks.ended(&look, touched_ms, ended_ms);
        if let Some(at_ms) = touched_ms {
            self.hits.insert(look.block.address, at_ms);
            let seen = SeenAccess {
                at_ms,
                block: look.block,
                offset: look.offset,
                access,
            };
            self.accesses.insert(look.block.site, seen);
        }
    }

    /// What is stale, by site, as of the last census: the most bytes for the longest time first, as far as is known.
    pub fn answers(&self, now_ms: u32) -> Vec<SiteAnswer> {
        let older_ms = self.controller.settings().older_ms;
        let evidence = Evidence {
            has_watchpoints: self.has_watchpoints(),
            is_too_early: self.watched_ms(now_ms) < older_ms,
        };
        // Looks under way count as far as they have come. Those that last are mostly at what is not touched.
        let mut looks = self.looks.clone();
        for active in &self.active {
            looks.ended(&active.look, None, now_ms);
        }
        let sites = self.sites.iter();
        let mut answers: Vec<SiteAnswer> = sites
            .map(|(site, blocks)| {
                let mut answer = answer(*site, blocks, &looks, older_ms, evidence);
                let seen = self.accesses.get(site).map(|seen| seen.at_ms);
                answer.last_access_ms = answer.last_access_ms.max(seen);
                answer
            })
            .collect();
        answers.sort_by(|a, b| {
            let by_time = b.stale_byte_seconds.total_cmp(&a.stale_byte_seconds);
            let by_size = b.live_bytes.cmp(&a.live_bytes);
            by_time.then(by_size).then(a.site.cmp(&b.site))
        });
        answers
    }

    /// For how long the live bytes were not touched, over time. Empty if writes are not seen.
    pub fn history(&self) -> &[AgePoint] {
        if self.has_pages() {
            self.history.points()
        } else {
            &[]
        }
    }

    /// The last access that was seen at a site.
    pub fn last_access(&self, site: Site) -> Option<&SeenAccess> {
        self.accesses.get(&site)
    }
}

/// Gives back what is watched part by part: when a userfaultfd is closed, the kernel does so at one go, and threads of
/// the process that map or unmap memory wait for that.
impl Drop for Watcher {
    fn drop(&mut self) {
        let Some(watch) = &self.write_watch else {
            return;
        };
        let other = self.marks.as_ref().and_then(MarkedPages::other);
        let mut pace = Pace::default();
        for (area, _) in watchable_mappings(self.pid) {
            // Fails where it is not watched, or the other one watches it.
            let _ = pace.in_slices(area, |slice| {
                let removed = watch.remove(slice.clone());
                let _ = removed.or_else(|error| match other {
                    Some(other) => other.remove(slice),
                    None => Err(error),
                });
                Ok::<(), ()>(())
            });
        }
    }
}

type LiveKey = (u64, Option<u32>);

fn key(block: &LiveBlock) -> LiveKey {
    (block.address, block.allocated_ms)
}

/// Page evidence for a process, or why there is none.
fn pages(pid: i32, means: &Means) -> Result<WriteWatch, String> {
    let none = |why: &dyn std::fmt::Display| format!("writes to pages are not seen: {why}");
    if let Some(error) = &means.no_pages {
        return Err(none(&format_args!(
            "{error} (it takes Linux 6.7 and userfaultfd(2))"
        )));
    }
    if filter_may_kill(pid) {
        return Err(none(
            &"a seccomp filter may end the process for a system call of ours",
        ));
    }
    // Of two, the second one that asks for an area is refused, and that must not be the program.
    if uses_userfaultfd(pid) {
        return Err(none(&"the program uses userfaultfd itself"));
    }
    WriteWatch::start(pid).map_err(|error| none(&error))
}

fn uses_userfaultfd(pid: i32) -> bool {
    let entries = std::fs::read_dir(proc_path(pid, "fd"));
    let links = entries.into_iter().flatten().flatten();
    links
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .any(|link| link.to_str() == Some("anon_inode:[userfaultfd]"))
}

/// Watchpoints for a process and how many, or why there are none.
pub(crate) fn words(
    pid: i32,
    means: &Means,
    settings: &Settings,
) -> Result<(WatchedThreads, usize), String> {
    let none = |error: &io::Error| {
        let what_to_do = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "; set kernel.perf_event_paranoid to 2 or less, or run with CAP_PERFMON"
            }
            _ => "",
        };
        format!(
            "reads are not seen, and stale means not written: no hardware watchpoints ({error}{what_to_do})"
        )
    };
    let with_kernel = *means.watchpoints.as_ref().map_err(none)?;
    // Armed for all threads, the watchpoints must not cost more than half of their share of five seconds.
    let most = 5e9 * settings.budget / 2.0 / 2.0 / (4.0 * means.costs.trap_ns);
    let mut threads = WatchedThreads::of(pid, with_kernel, (most as usize).max(1));
    let slots = threads.slots().map_err(|error| none(&error))?;
    threads.follow(std::iter::empty());
    Ok((threads, slots))
}

/// Mappings that heap blocks may be in: private memory without a file.
pub(crate) fn watchable(pid: i32) -> Vec<Range<u64>> {
    let all = watchable_mappings(pid).into_iter();
    all.map(|(mapping, _)| mapping).collect()
}

/// The same, and whether each is the heap that brk(2) makes.
fn watchable_mappings(pid: i32) -> Vec<(Range<u64>, bool)> {
    let all = mappings(pid).unwrap_or_default().into_iter();
    let may_have_blocks = |m: &memhook_process::Mapping| {
        let is_memory = m.path.is_empty() || m.path == "[heap]" || m.path.starts_with("[anon");
        m.read && m.write && !m.shared && m.file_id.2 == 0 && is_memory
    };
    all.filter(|m| may_have_blocks(m) && m.end - m.start <= MOST_AREA_BYTES)
        .map(|m| (m.start..m.end, m.path == "[heap]"))
        .collect()
}

/// Ranges in order, with neighbours made one.
fn joined(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match found.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => found.push(range.clone()),
        }
    }
    found
}

/// A clock that shows this time now.
fn clock_from(now_ms: u32) -> impl Fn() -> u32 {
    let begin = Instant::now();
    move || now_ms.saturating_add(begin.elapsed().as_millis() as u32)
}

/// How long a process should be watched, if nobody says: what becomes stale meanwhile is seen, too.
pub fn usual_duration(older: Duration) -> Duration {
    older * 2 + Duration::from_secs(5)
}
