//! Finds mappings in which a process has accessed no page, by the accessed marks in its page
//! tables.
//!
//! The kernel reports only the sum of a mapping's marks, and the brk(2) heap is a single mapping.
//! Memory that is registered with different userfaultfds is in different mappings, so the heap is
//! split into pieces that are registered with two userfaultfds alternately. (Nothing else is split,
//! because mremap(2) refuses ranges of several mappings, and a program may call it on its own
//! memory.) When the descriptors are closed, the kernel merges the pieces again.
//!
//! Clearing the marks does not flush the processors' caches of the page tables (`clear_refs_write`
//! of fs/proc/task_mmu.c), and a page whose translation is cached gets no new mark.
//! Write-protecting a page does flush its translation and, for ranges of more than 33 pages,
//! flushes the translations of the whole process (`tlb_single_page_flush_ceiling` of
//! arch/x86/mm/tlb.c).

use crate::clearing::{Clearing, Progress};
use crate::page_accesses::{PageAccesses, pieces};
use crate::pages::{PAGE_BYTES, Pages};
use memhook_inject::{PageScan, PageState, WriteWatch};
use memhook_process::{
    Mapping, MappingUse, SmapsHold, mappings, reclaim_scans, resident_counters, smaps_by_mapping,
};
use std::ops::Range;
use std::time::Duration;

/// Maximum resident size of a process that is examined by its marks.
const MOST_RESIDENT_BYTES: u64 = 4 << 30;
/// Maximum time to read one mapping's marks, during which threads that map or unmap memory wait.
const LONGEST_READING: Duration = Duration::from_millis(5);
/// Number of consecutive slow readings that waiting for a processor cannot explain.
const MOST_SLOW_READINGS: u32 = 5;
/// Assumed time to read a page before the first reading. The real time is some 50 to 100 ns.
const FIRST_PAGE_NS: f64 = 150.0;
/// Number of pages after which the mean is trusted.
const MANY_PAGES: u64 = 4096;
/// Initial number of pieces of a heap. By default, a process may have 65,530 mappings
/// (vm.max_map_count).
const MOST_PIECES: u64 = 512;
/// Maximum number of pieces of a heap that has grown. The rest is not split.
const MOST_PIECES_EVER: usize = 2048;
const MOST_MAPPINGS: usize = 20_000;
/// Minimum size of a piece. It is large enough that protecting the piece flushes the cached
/// translations of the whole process.
const LEAST_PIECE_BYTES: u64 = 64 * PAGE_BYTES;
/// Length beyond which the processor does not flush page by page.
const FLUSHED_BYTES: u64 = 34 * PAGE_BYTES;
/// Maximum number of bytes of a mapping that are searched for resident pages.
const MOST_LOOKED_AT_BYTES: u64 = 64 << 20;
/// Size of huge pages, which pieces must not split.
const HUGE_BYTES: u64 = 2 << 20;
/// Inverse of the maximum share of our own time that is spent on reading the marks.
const READING_SHARE: u32 = 50;
const LEAST_APART_MS: u32 = 2000;

/// The marks of a process.
pub struct MarkedPages {
    pid: i32,
    /// Second watch, to which every other piece of the heap belongs.
    other: Option<WriteWatch>,
    piece_bytes: u64,
    /// Number of pieces.
    piece_count: usize,
    accesses: PageAccesses,
    clearing: Clearing,
    /// Range to protect when the current clearing of marks ends.
    to_flush: Option<Range<u64>>,
    scans: Option<u64>,
    next_look_ms: u32,
    next_clear_ms: u32,
    clears: u64,
    slow_readings: u32,
    page_ns: f64,
    /// Reason why the marks were not cleared, and whether they will never be cleared.
    problem: Option<String>,
    is_over: bool,
}

const TOO_LARGE: &str = "the process is so large that looking at its pages would make it wait";

impl MarkedPages {
    /// Prepares to collect evidence. Until the heap is split into pieces, nothing changes for the
    /// process.
    pub fn of(pid: i32) -> MarkedPages {
        let mut marks = MarkedPages {
            pid,
            other: None,
            piece_bytes: u64::MAX,
            piece_count: 0,
            accesses: PageAccesses::default(),
            clearing: Clearing::of(pid),
            to_flush: None,
            scans: None,
            next_look_ms: 0,
            next_clear_ms: 0,
            clears: 0,
            slow_readings: 0,
            page_ns: FIRST_PAGE_NS,
            problem: None,
            is_over: false,
        };
        let anonymous = resident_counters(pid).map_or(0, |counters| counters.anonymous);
        let mappings = mappings(pid).unwrap_or_default();
        if anonymous > MOST_RESIDENT_BYTES {
            marks.give_up(TOO_LARGE);
        } else if reclaim_scans().is_none() {
            marks.give_up("the kernel does not report when it reclaims memory");
        } else if mappings.len() <= MOST_MAPPINGS
            && let Some(bytes) = piece_bytes(pid, &mappings)
            && let Ok(other) = WriteWatch::start(pid)
        {
            (marks.other, marks.piece_bytes) = (Some(other), bytes);
        }
        marks
    }

    fn give_up(&mut self, why: &str) {
        self.accesses.forget();
        self.clearing.stop();
        self.is_over = true;
        self.problem = Some(why.to_owned());
    }

    /// Returns the reason why there is no such evidence.
    pub fn given_up(&self) -> Option<String> {
        let why = self.problem.as_ref();
        let why = why.filter(|_| self.is_over || self.clears == 0)?;
        Some(format!(
            "pages do not show which blocks were not even read: {why}"
        ))
    }

    /// Returns how often the marks were cleared, and the longest time for which a clearing made the
    /// process wait.
    pub fn clears(&self) -> (u64, Duration) {
        (self.clears, self.clearing.longest())
    }

    /// Returns the time since which no part of this range was accessed, if that time is long enough
    /// ago.
    pub fn idle_since(&self, range: Range<u64>, older_ms: u32) -> Option<u32> {
        self.accesses.idle_since(range, older_ms)
    }

    /// Returns the watch to which every other piece of the heap belongs.
    pub fn other(&self) -> Option<&WriteWatch> {
        self.other.as_ref()
    }

    /// Watches writes to a part of the heap, in pieces.
    pub fn watch(&mut self, watch: &WriteWatch, mapping: Range<u64>) -> bool {
        let is_full = self.piece_count >= MOST_PIECES_EVER;
        let (Some(other), false) = (&self.other, is_full) else {
            return watch.add(mapping).is_ok();
        };
        let left = MOST_PIECES_EVER - self.piece_count;
        let end = mapping.end;
        for (count, (piece, is_odd)) in pieces(mapping, self.piece_bytes).enumerate() {
            self.piece_count += 1;
            // The rest is one piece, which bounds the number of pieces.
            let is_last = count + 1 >= left;
            let piece = if is_last { piece.start..end } else { piece };
            if if is_odd { other } else { watch }.add(piece).is_err() {
                return false;
            }
            if is_last {
                break;
            }
        }
        true
    }

    /// Performs the periodic work. Call this once a second, after the pages have been checked for
    /// writes. `clock` returns the time since the attach.
    pub fn turn(&mut self, pages: &Pages, older_ms: u32, clock: impl Fn() -> u32) {
        let now_ms = clock();
        let is_clear_due = now_ms >= self.next_clear_ms;
        // Between two parts of a clearing, marks mean nothing.
        let is_clearing = self.to_flush.is_some();
        if self.is_over || is_clearing || !is_clear_due && now_ms < self.next_look_ms {
            return;
        }
        let Some((mappings, hold)) = self.look(&clock) else {
            return;
        };
        if is_clear_due {
            self.next_clear_ms = now_ms
                .saturating_add(older_ms)
                .saturating_add(LEAST_APART_MS);
            self.begin_clearing(pages, &mappings, hold, &clock);
        }
    }

    /// Reads the marks now.
    pub fn look_again(&mut self, clock: impl Fn() -> u32) {
        let is_clearing = self.to_flush.is_some();
        if !self.is_over && !is_clearing && self.accesses.cleared_ms().is_some() {
            self.look(&clock);
        }
    }

    fn look(&mut self, clock: &impl Fn() -> u32) -> Option<(Vec<MappingUse>, SmapsHold)> {
        let now_ms = clock();
        self.next_look_ms = now_ms.saturating_add(LEAST_APART_MS);
        if self.has_larger_mapping() {
            self.was_slow();
            return None;
        }
        let (mappings, hold) = smaps_by_mapping(self.pid).ok()?;
        let apart_ms = hold.all.as_millis() as u32 * READING_SHARE;
        self.next_look_ms = now_ms.saturating_add(apart_ms.max(LEAST_APART_MS));
        let pages = mappings.iter().map(|one| one.memory.rss).sum::<u64>() / PAGE_BYTES;
        if pages >= MANY_PAGES {
            self.page_ns = hold.all.as_nanos() as f64 / pages as f64;
        }
        if hold.longest > LONGEST_READING {
            self.was_slow();
        } else {
            self.slow_readings = 0;
        }
        // The kernel also clears marks when it looks for memory to swap out.
        let scans = reclaim_scans();
        if scans != self.scans {
            self.accesses.forget();
        }
        let unmarked: Vec<Range<u64>> = mappings
            .iter()
            .filter(|one| is_private(&one.mapping) && one.memory.referenced == 0)
            .map(|one| one.mapping.start..one.mapping.end)
            .collect();
        self.accesses.looked(&unmarked, now_ms);
        (!self.is_over).then_some((mappings, hold))
    }

    fn was_slow(&mut self) {
        self.problem = Some(TOO_LARGE.to_owned());
        self.slow_readings += 1;
        if self.slow_readings >= MOST_SLOW_READINGS {
            self.give_up(TOO_LARGE);
        }
    }

    /// Returns true if a mapping has so many resident pages that reading its marks would take too
    /// long. Counting the resident pages is several times faster than reading the marks, and is
    /// done in slices.
    fn has_larger_mapping(&self) -> bool {
        // Half of the time limit is used, because the mean covers many mappings, and some pages
        // take longer than others.
        let pages = LONGEST_READING.as_nanos() as f64 / (2.0 * self.page_ns.clamp(20.0, 1e4));
        let most = pages as u64 * PAGE_BYTES;
        let Ok(scan) = PageScan::open(self.pid) else {
            return true;
        };
        let all = mappings(self.pid).unwrap_or_default().into_iter();
        let mut large = all.filter(|m| m.end - m.start > most);
        large.any(|m| {
            let mut found = Vec::new();
            let counted = scan.find(m.start..m.end, PageState::Resident, &mut found);
            let bytes = found.iter().map(|run| run.end - run.start).sum::<u64>();
            counted.is_ok() && bytes > most
        })
    }

    /// Begins to clear the marks of accessed memory. Memory that was not accessed has no marks, and
    /// must not lose a mark that is set in the meantime.
    fn begin_clearing(
        &mut self,
        pages: &Pages,
        mappings: &[MappingUse],
        hold: SmapsHold,
        clock: &impl Fn() -> u32,
    ) {
        let Some(flushed) = flushed(self.pid, mappings, pages) else {
            self.problem = Some("no watched memory is large enough for that".into());
            self.next_clear_ms = clock().saturating_add(LEAST_APART_MS);
            return;
        };
        let is_first = self.accesses.cleared_ms().is_none();
        let marked = mappings.iter().filter(|one| {
            is_private(&one.mapping)
                && one.memory.rss > 0
                && (is_first || one.memory.referenced > 0)
        });
        let marked = marked.map(|one| one.mapping.start..one.mapping.end);
        self.scans = reclaim_scans();
        self.clearing.begin(marked.collect(), hold.all);
        self.to_flush = Some(flushed);
    }

    /// Continues the current clearing; call it every few milliseconds.
    pub fn go_on(&mut self, watch: &WriteWatch, pages: &mut Pages, clock: impl Fn() -> u32) {
        let Some(flushed) = self.to_flush.clone() else {
            return;
        };
        match self.clearing.go_on(self.pid) {
            Ok(Progress::UnderWay) => {}
            Ok(Progress::Done) => {
                self.to_flush = None;
                self.clears += 1;
                self.flush(flushed, watch, pages, &clock);
            }
            Ok(Progress::TooLong) => {
                self.to_flush = None;
                self.was_slow();
            }
            Err(error) => {
                self.to_flush = None;
                self.give_up(&error.to_string());
            }
        }
    }

    /// Makes processors drop their cached page tables.
    fn flush(
        &mut self,
        flushed: Range<u64>,
        watch: &WriteWatch,
        pages: &mut Pages,
        clock: &impl Fn() -> u32,
    ) {
        // The protection is lifted first; otherwise, protecting would have no effect.
        let mut protected = Vec::new();
        let runs = std::slice::from_ref(&flushed);
        let _ = watch.lift(flushed.clone());
        pages.lift(runs, clock());
        let result = watch.written(flushed.clone(), &mut protected);
        pages.guard(runs, clock());
        let is_flushed = |first: &Range<u64>| first.start + FLUSHED_BYTES <= flushed.end;
        if result.is_ok() && protected.first().is_some_and(is_flushed) {
            self.accesses.cleared(clock());
        } else {
            self.accesses.forget();
        }
    }
}

/// Returns true if the memory is private, writable and anonymous, so that its accessed marks are
/// its own.
fn is_private(m: &Mapping) -> bool {
    m.read && m.write && !m.shared && m.file_id.2 == 0
}

/// Returns the size of the heap's pieces; `None` if it is too small to split, or if there is no
/// heap.
fn piece_bytes(pid: i32, mappings: &[Mapping]) -> Option<u64> {
    let heap = mappings.iter().filter(|m| m.path == "[heap]");
    let scan = PageScan::open(pid).ok()?;
    let (mut bytes, mut huge) = (0, Vec::new());
    for m in heap {
        bytes += m.end - m.start;
        scan.find(m.start..m.end, PageState::Huge, &mut huge).ok()?;
    }
    let may_be_huge = !huge.is_empty() || always_huge();
    let least = if may_be_huge {
        HUGE_BYTES
    } else {
        LEAST_PIECE_BYTES
    };
    let piece = (bytes / MOST_PIECES).next_power_of_two().max(least);
    (bytes > 0).then_some(piece)
}

/// Returns true if the kernel uses huge pages for memory that did not request them.
fn always_huge() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|text| text.contains("[always]"))
}

/// Returns a range whose protection flushes the cached translations of the whole process. All of
/// its pages are in memory, in one page table, and watched.
fn flushed(pid: i32, mappings: &[MappingUse], pages: &Pages) -> Option<Range<u64>> {
    let scan = PageScan::open(pid).ok()?;
    // Memory that was not accessed will not be written soon.
    let mut candidates: Vec<&MappingUse> = mappings
        .iter()
        .filter(|one| one.memory.rss >= LEAST_PIECE_BYTES)
        .collect();
    candidates.sort_by_key(|one| one.memory.referenced);
    candidates.into_iter().find_map(|one| {
        let bytes = LEAST_PIECE_BYTES;
        let mapping = one.mapping.start..one.mapping.end;
        let looked_at = mapping.start..mapping.end.min(mapping.start + MOST_LOOKED_AT_BYTES);
        let mut resident = Vec::new();
        scan.find(looked_at, PageState::Resident, &mut resident)
            .ok()?;
        resident.into_iter().find_map(|run| {
            let start = run.start.next_multiple_of(bytes);
            let part = start..start + bytes;
            // Huge pages are not watched.
            let is_watched = |area: Range<u64>| area.start <= part.start && part.end <= area.end;
            (part.end <= run.end && pages.areas().any(is_watched)).then_some(part)
        })
    })
}
