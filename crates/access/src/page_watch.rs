//! The pages of a process: protected and marked as the controller plans it, so that writes are seen.

use crate::controller::Controller;
use crate::marked_pages::MarkedPages;
use crate::measure::Means;
use memhook_inject::{Pace, WriteWatch, with_gaps};
use memhook_process::{Mapping, filter_may_kill, mappings, proc_path};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// A larger mapping is a sanitizer's shadow or the like, reserved but never filled.
const MOST_AREA_BYTES: u64 = 256 << 30;

/// The page at the edge of a mapping that has not grown for a part of the age that is asked for is watched, too: for this
/// part, and within these times.
const REST_SHARE: u32 = 4;
const REST_MS: std::ops::RangeInclusive<u32> = 1_000..=30_000;
/// So many edges at most are ever watched: a mapping that grows after that is one mapping more, until its process ends.
const MOST_WATCHED_EDGES: usize = 2048;

/// What sees writes to pages of a process.
pub(crate) struct PageWatch {
    pid: i32,
    watch: WriteWatch,
    pub marks: MarkedPages,
    /// In order, and apart from each other.
    registered: Vec<Range<u64>>,
    /// Pages at the edges of mappings that are not watched, and since when they are there.
    open_edges: FxHashMap<u64, u32>,
    /// How many were watched after all.
    watched_edges: usize,
}

impl PageWatch {
    /// Of this process, or why there is none.
    pub fn start(pid: i32, means: &Means) -> Result<PageWatch, String> {
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
        Ok(PageWatch {
            pid,
            watch: WriteWatch::start(pid).map_err(|error| none(&error))?,
            marks: MarkedPages::of(pid),
            registered: Vec::new(),
            open_edges: FxHashMap::default(),
            watched_edges: 0,
        })
    }

    /// Looks at the pages, and protects those whose turn it is. Returns how long that took.
    pub fn look(&mut self, controller: &mut Controller, now_ms: u32) -> Duration {
        let begin = Instant::now();
        self.register(controller.settings().older_ms, now_ms);
        let areas = self.registered.clone();
        controller.pages.set_areas(&areas, now_ms);
        let (mut written, mut pace) = (Vec::new(), Pace::default());
        // What is found between the areas is of no page that is known.
        for range in with_gaps(areas) {
            // Fails where the process is gone.
            let _ = pace.in_slices(range, |slice| {
                self.watch.written_so_far(slice, &mut written)
            });
        }
        controller.looked(&written, now_ms);
        let plan = controller.plan_pages(now_ms);
        for run in &plan.lift {
            let _ = pace.in_slices(run.clone(), |slice| self.watch.lift(slice));
        }
        controller.pages.lift(&plan.lift, now_ms);
        let mut guarded = Vec::new();
        for run in plan.guard {
            let guard = |slice| self.watch.written(slice, &mut Vec::new());
            if pace.in_slices(run.clone(), guard).is_ok() {
                guarded.push(run);
            }
        }
        controller.pages.guard(&guarded, now_ms);
        let older_ms = controller.settings().older_ms;
        self.marks
            .turn(&controller.pages, older_ms, clock_from(now_ms));
        begin.elapsed()
    }

    /// Watches what is new, where mappings do not grow.
    fn register(&mut self, older_ms: u32, now_ms: u32) {
        let maps = mappings(self.pid).unwrap_or_default();
        let before = std::mem::take(&mut self.registered);
        let edges_before = std::mem::take(&mut self.open_edges);
        let rest_ms = (older_ms / REST_SHARE).clamp(*REST_MS.start(), *REST_MS.end());
        let mut now = Vec::new();
        for found in self.watch.watchable(&maps, &may_have_blocks) {
            let mapping = &maps[found.mapping];
            let is_heap = mapping.path == "[heap]";
            let mut add = |range: Range<u64>| {
                let mut new = uncovered(range.clone(), &before).into_iter();
                // A program may watch an area itself.
                let is_watched = new.all(|part| self.marks.watch(&self.watch, part, is_heap));
                if is_watched {
                    now.push(range);
                }
                is_watched
            };
            if !add(found.part.clone()) {
                continue;
            }
            for edge in found.edges(mapping) {
                let is_new = !uncovered(edge.clone(), &before).is_empty();
                let since = edges_before.get(&edge.start).copied().unwrap_or(now_ms);
                let is_at_rest = now_ms.saturating_sub(since) >= rest_ms;
                if is_new && !(is_at_rest && self.watched_edges < MOST_WATCHED_EDGES) {
                    self.open_edges.insert(edge.start, since);
                } else if add(edge) {
                    self.watched_edges += usize::from(is_new);
                }
            }
        }
        now.sort_by_key(|range| range.start);
        self.registered = joined(&now);
    }

    /// Looks at the marks now.
    pub fn look_again(&mut self, now_ms: u32) {
        self.marks.look_again(clock_from(now_ms));
    }

    /// Goes on with marks that are being cleared.
    pub fn go_on(&mut self, controller: &mut Controller, now_ms: u32) {
        self.marks
            .go_on(&self.watch, &mut controller.pages, clock_from(now_ms));
    }
}

/// Gives back what is watched part by part: when a userfaultfd is closed, the kernel does so at one go, and threads of
/// the process that map or unmap memory wait for that.
impl Drop for PageWatch {
    fn drop(&mut self) {
        let other = self.marks.other();
        let mut pace = Pace::default();
        for area in watchable(self.pid) {
            // Fails where it is not watched, or the other one watches it.
            let _ = pace.in_slices(area, |slice| {
                let removed = self.watch.remove(slice.clone());
                let _ = removed.or_else(|error| match other {
                    Some(other) => other.remove(slice),
                    None => Err(error),
                });
                Ok::<(), ()>(())
            });
        }
    }
}

fn uses_userfaultfd(pid: i32) -> bool {
    let entries = std::fs::read_dir(proc_path(pid, "fd"));
    let links = entries.into_iter().flatten().flatten();
    links
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .any(|link| link.to_str() == Some("anon_inode:[userfaultfd]"))
}

/// Mappings that heap blocks may be in: private memory without a file.
pub(crate) fn watchable(pid: i32) -> Vec<Range<u64>> {
    let all = mappings(pid).unwrap_or_default().into_iter();
    let all = all.filter(may_have_blocks);
    all.map(|m| m.start..m.end).collect()
}

/// Whether heap blocks may be in a mapping.
fn may_have_blocks(m: &Mapping) -> bool {
    let is_memory = m.path.is_empty() || m.path == "[heap]" || m.path.starts_with("[anon");
    let is_own = m.read && m.write && !m.shared && m.file_id.2 == 0 && is_memory;
    is_own && m.end - m.start <= MOST_AREA_BYTES
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

/// What of a range is in none of these, which are in order and apart.
fn uncovered(range: Range<u64>, covered: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut at, mut found) = (range.start, Vec::new());
    let first = covered.partition_point(|one| one.end <= range.start);
    for one in covered[first..]
        .iter()
        .take_while(|one| one.start < range.end)
    {
        found.push(at..one.start.max(at));
        at = one.end;
    }
    found.push(at..range.end.max(at));
    found.retain(|part| !part.is_empty());
    found
}

/// A clock that shows this time now.
fn clock_from(now_ms: u32) -> impl Fn() -> u32 {
    let begin = Instant::now();
    move || now_ms.saturating_add(begin.elapsed().as_millis() as u32)
}
