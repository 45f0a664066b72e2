//! The pages of a process, protected and marked according to the controller's plan, to detect writes.

use crate::controller::Controller;
use crate::marked_pages::MarkedPages;
use crate::measure::Means;
use memhook_inject::{Pace, Watchable, WriteWatch, to_let_go, with_gaps};
use memhook_process::{Mapping, filter_may_kill, has_userfaultfd, mappings};
use rustc_hash::FxHashSet;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Maximum size of a watched mapping. A larger mapping is a sanitizer's shadow memory or similar, reserved but never
/// filled.
const MOST_AREA_BYTES: u64 = 256 << 30;

/// Maximum number of watched mappings that stay separate until the process ends. These are new mappings next to watched
/// ones, which the kernel would otherwise have merged, and the last page of a heap, which may grow again.
const MOST_APART: usize = 2048;
/// The last page of a heap is watched once the heap has not grown for the requested age divided by this number, clamped
/// to [`REST_MS`].
const REST_SHARE: u32 = 4;
const REST_MS: std::ops::RangeInclusive<u32> = 1_000..=30_000;

/// Watch of writes to pages of a process.
pub(crate) struct PageWatch {
    pid: i32,
    watch: WriteWatch,
    pub marks: MarkedPages,
    /// Watched ranges, sorted and disjoint.
    registered: Vec<Range<u64>>,
    /// Last page of the heap, and the time at which the heap last grew.
    open_edge: Option<(u64, u32)>,
    /// Number of mappings that are separate and would otherwise be merged.
    apart: usize,
}

impl PageWatch {
    /// Starts watching this process. The error is the reason why this is impossible.
    pub fn start(pid: i32, means: &Means) -> Result<PageWatch, String> {
        let none = |why: &dyn std::fmt::Display| format!("writes to pages are not seen: {why}");
        if let Some(error) = &means.no_pages {
            return Err(none(&format_args!(
                "{error} (it takes Linux 6.7 and userfaultfd(2))"
            )));
        }
        if filter_may_kill(pid) {
            return Err(none(
                &"a seccomp filter may kill the process for a system call of ours",
            ));
        }
        Ok(PageWatch {
            pid,
            watch: WriteWatch::start(pid).map_err(|error| none(&error))?,
            marks: MarkedPages::of(pid),
            registered: Vec::new(),
            open_edge: None,
            apart: 0,
        })
    }

    /// Checks the pages, and protects the pages that are due. Returns the time that this took. Fails if the program has
    /// begun to use userfaultfd(2) itself, because then no page may be watched any more.
    pub fn look(&mut self, controller: &mut Controller, now_ms: u32) -> Result<Duration, String> {
        let begin = Instant::now();
        if has_userfaultfd(self.pid) {
            let error = memhook_inject::Error::OwnUserfaultfd { pid: self.pid };
            return Err(format!("writes to pages are no longer seen: {error}"));
        }
        self.register(controller.settings().older_ms, now_ms);
        let areas = self.without_huge_pages();
        controller.pages.set_areas(&areas, now_ms);
        let (mut written, mut pace) = (Vec::new(), Pace::default());
        // Gaps between the areas belong to no known page.
        for range in with_gaps(areas) {
            // Fails if the process is gone.
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
        Ok(begin.elapsed())
    }

    /// Returns the watched ranges without huge pages. The first write to a protected huge page would split it, so huge
    /// pages are never protected, and writes to them remain unknown.
    fn without_huge_pages(&self) -> Vec<Range<u64>> {
        let (mut huge, mut pace) = (Vec::new(), Pace::default());
        for range in with_gaps(self.registered.iter().cloned()) {
            // Fails if the process is gone.
            let _ = pace.in_slices(range, |slice| self.watch.huge(slice, &mut huge));
        }
        let huge = joined(&huge);
        let parts = self.registered.iter().cloned();
        parts.flat_map(|part| uncovered(part, &huge)).collect()
    }

    /// Watches new memory.
    fn register(&mut self, older_ms: u32, now_ms: u32) {
        let maps = mappings(self.pid).unwrap_or_default();
        let before = std::mem::take(&mut self.registered);
        let apart = apart(&maps, &before);
        let room = MOST_APART.saturating_sub(self.apart).min(apart.len());
        let left_out: FxHashSet<u64> = apart[room..].iter().copied().collect();
        let is_wanted = |m: &Mapping| may_have_blocks(m) && !left_out.contains(&m.start);
        let mut now = Vec::new();
        let mut pace = Pace::default();
        for found in self.watch.watchable(&maps, &is_wanted) {
            let mapping = found.members.first().map(|first| &maps[first.mapping]);
            let heap = mapping.filter(|mapping| mapping.path == "[heap]");
            let is_new = |member: &Watchable| !uncovered(member.part.clone(), &before).is_empty();
            if let Some(heap) = heap {
                for Watchable { part, .. } in found.members {
                    let mut new = uncovered(part.clone(), &before).into_iter();
                    if !new.all(|new| self.marks.watch(&self.watch, new)) {
                        continue;
                    }
                    let edge = part.end..heap.end;
                    now.push(part);
                    if !edge.is_empty()
                        && self.watches_edge(edge.clone(), &before, older_ms, now_ms)
                    {
                        now.push(edge);
                    }
                }
            } else {
                // A program may watch an area itself.
                let members = match found.members.iter().any(is_new) {
                    true => pace.ask(|| self.watch.add_all(found)).0,
                    false => found.members,
                };
                let is_apart = |m: &&Watchable| apart.binary_search(&m.part.start).is_ok();
                self.apart += members.iter().filter(is_apart).count();
                now.extend(members.into_iter().map(|member| member.part));
            }
        }
        self.registered = joined(&now);
    }

    /// Watches the last page of the heap if the heap has not grown for some time. Returns true if
    /// the page is watched.
    fn watches_edge(
        &mut self,
        edge: Range<u64>,
        before: &[Range<u64>],
        older_ms: u32,
        now_ms: u32,
    ) -> bool {
        if uncovered(edge.clone(), before).is_empty() {
            return true;
        }
        let rest_ms = (older_ms / REST_SHARE).clamp(*REST_MS.start(), *REST_MS.end());
        let open = self.open_edge.filter(|(at, _)| *at == edge.start);
        let (_, since) = *self.open_edge.insert(open.unwrap_or((edge.start, now_ms)));
        let is_at_rest = now_ms.saturating_sub(since) >= rest_ms;
        let is_watched =
            is_at_rest && self.apart < MOST_APART && self.marks.watch(&self.watch, edge);
        self.apart += usize::from(is_watched);
        is_watched
    }

    /// Reads the marks now.
    pub fn look_again(&mut self, now_ms: u32) {
        self.marks.look_again(clock_from(now_ms));
    }

    /// Continues a clearing of marks.
    pub fn go_on(&mut self, controller: &mut Controller, now_ms: u32) {
        self.marks
            .go_on(&self.watch, &mut controller.pages, clock_from(now_ms));
    }
}

/// Unregisters watched memory slice by slice. When a userfaultfd is closed, the kernel unregisters all of its memory in
/// one step, and threads of the process that map or unmap memory have to wait.
impl Drop for PageWatch {
    fn drop(&mut self) {
        // Older kernels let one process remove the registrations of another. Closing the descriptors removes only ours.
        if has_userfaultfd(self.pid) {
            return;
        }
        let other = self.marks.other();
        let mut pace = Pace::default();
        let maps = mappings(self.pid).unwrap_or_default();
        for area in to_let_go(&maps, &may_have_blocks) {
            // Fails if the area is not watched, or is watched by another program.
            let _ = pace.let_go(area, |slice| {
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

/// Returns the mappings that may hold heap blocks: private memory without a file.
pub(crate) fn watchable(pid: i32) -> Vec<Range<u64>> {
    let all = mappings(pid).unwrap_or_default().into_iter();
    let all = all.filter(may_have_blocks);
    all.map(|m| m.start..m.end).collect()
}

/// Returns the start of each new mapping that would stay separate from adjacent watched mappings, sorted.
fn apart(maps: &[Mapping], before: &[Range<u64>]) -> Vec<u64> {
    let may = maps
        .iter()
        .filter(|m| may_have_blocks(m) && m.path != "[heap]");
    let is_apart = |m: &&Mapping| {
        let range = m.start..m.end;
        uncovered(range.clone(), before).first() == Some(&range) && touches(&range, before)
    };
    may.filter(is_apart).map(|m| m.start).collect()
}

/// Returns true if a mapping may hold heap blocks.
fn may_have_blocks(m: &Mapping) -> bool {
    let is_memory = m.path.is_empty() || m.path == "[heap]" || m.path.starts_with("[anon");
    let is_own = m.read && m.write && !m.shared && m.file_id.2 == 0 && is_memory;
    is_own && m.end - m.start <= MOST_AREA_BYTES
}

/// Merges adjacent ranges of a sorted list.
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

/// Returns true if one of these sorted, disjoint ranges is adjacent to a range.
fn touches(range: &Range<u64>, others: &[Range<u64>]) -> bool {
    let first = others.partition_point(|one| one.end < range.start);
    let near = others[first..].iter().take(2);
    near.into_iter()
        .any(|one| one.end == range.start || one.start == range.end)
}

/// Returns the parts of a range outside these sorted, disjoint ranges.
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

/// Returns a clock that shows this time now.
fn clock_from(now_ms: u32) -> impl Fn() -> u32 {
    let begin = Instant::now();
    move || now_ms.saturating_add(begin.elapsed().as_millis() as u32)
}
