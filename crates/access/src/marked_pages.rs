//! Asks the kernel which mappings of a process have no page that was accessed, by the marks in its page tables.
//!
//! The kernel adds these up by mapping, and the heap that brk(2) makes is one. Memory that belongs to different
//! userfaultfds makes different mappings, so the heap is cut into pieces by giving them to two in turn. (Nothing else is
//! cut: mremap(2) refuses ranges of several mappings, and a program may call it on memory of its own.) When
//! the descriptors are closed, the kernel joins the pieces again.
//!
//! To clear the marks does not flush what processors have cached of the page tables (`clear_refs_write` of
//! fs/proc/task_mmu.c), and a page whose translation is cached gets no new mark. To write-protect a page does flush, and
//! where the range is longer than 33 pages, everything of the process (`tlb_single_page_flush_ceiling` of
//! arch/x86/mm/tlb.c).

use crate::page_accesses::{PageAccesses, pieces};
use crate::pages::{PAGE_BYTES, Pages};
use memhook_inject::{PageScan, PageState, WriteWatch, clear_access_marks};
use memhook_process::{MappingUse, mappings, reclaim_scans, resident_counters, smaps};
use std::ops::Range;
use std::time::{Duration, Instant};

/// In a larger process, other threads would wait too long for the kernel to get through the page tables.
const MOST_RESIDENT_BYTES: u64 = 4 << 30;
/// The same by how long it takes to read the marks, which is about as long: at the best of some times, because we may
/// have had to wait for a processor.
const LONGEST_READING: Duration = Duration::from_millis(30);
const MOST_SLOW_READINGS: u32 = 5;
/// Pieces of a heap at most; a process may have 65,530 mappings by default (vm.max_map_count).
const MOST_PIECES: u64 = 512;
const MOST_MAPPINGS: usize = 20_000;
/// The least size of a piece: long enough for its protection to flush everything.
const LEAST_PIECE_BYTES: u64 = 64 * PAGE_BYTES;
/// Longer than what the processor flushes page by page.
const FLUSHED_BYTES: u64 = 34 * PAGE_BYTES;
/// So much of a mapping is searched for pages that are in memory.
const MOST_LOOKED_AT_BYTES: u64 = 64 << 20;
/// Pieces must not cut huge pages.
const HUGE_BYTES: u64 = 2 << 20;
/// Our own time for reading the marks is one in so many at most.
const READING_SHARE: u32 = 50;
const LEAST_APART_MS: u32 = 2000;

/// The marks of a process.
pub struct MarkedPages {
    pid: i32,
    /// Every second piece of the heap belongs to it.
    other: Option<WriteWatch>,
    piece_bytes: u64,
    accesses: PageAccesses,
    scans: Option<u64>,
    next_look_ms: u32,
    next_clear_ms: u32,
    clears: u64,
    longest: Duration,
    slow_readings: u32,
    /// Why the marks were not cleared, and whether they never will be.
    problem: Option<String>,
    is_over: bool,
}

impl MarkedPages {
    /// Prepares it; nothing has changed for the process but that its heap is about to be cut into pieces.
    pub fn of(pid: i32) -> MarkedPages {
        let mut marks = MarkedPages {
            pid,
            other: None,
            piece_bytes: u64::MAX,
            accesses: PageAccesses::default(),
            scans: None,
            next_look_ms: 0,
            next_clear_ms: 0,
            clears: 0,
            longest: Duration::ZERO,
            slow_readings: 0,
            problem: None,
            is_over: false,
        };
        let anonymous = resident_counters(pid).map_or(0, |counters| counters.anonymous);
        let count = mappings(pid).map_or(usize::MAX, |all| all.len());
        if anonymous > MOST_RESIDENT_BYTES {
            marks.give_up("the process is so large that to look would make it wait");
        } else if reclaim_scans().is_none() {
            marks.give_up("the kernel does not tell when it reclaims memory");
        } else if count <= MOST_MAPPINGS
            && let Some(bytes) = piece_bytes(&smaps(pid).unwrap_or_default())
            && let Ok(other) = WriteWatch::start(pid)
        {
            (marks.other, marks.piece_bytes) = (Some(other), bytes);
        }
        marks
    }

    fn give_up(&mut self, why: &str) {
        self.accesses.forget();
        self.is_over = true;
        self.problem = Some(why.to_owned());
    }

    /// Why there is no such evidence, if there is none.
    pub fn given_up(&self) -> Option<String> {
        let why = self.problem.as_ref();
        let why = why.filter(|_| self.is_over || self.clears == 0)?;
        Some(format!(
            "what was not even read is not seen by pages: {why}"
        ))
    }

    /// How often the marks were cleared, and how long the longest of these took.
    pub fn clears(&self) -> (u64, Duration) {
        (self.clears, self.longest)
    }

    /// Since when nothing of this range was accessed, if that is long enough.
    pub fn idle_since(&self, range: Range<u64>, older_ms: u32) -> Option<u32> {
        self.accesses.idle_since(range, older_ms)
    }

    /// Watches writes to a mapping, in pieces if it is the heap.
    pub fn watch(&self, watch: &WriteWatch, mapping: Range<u64>, is_heap: bool) -> bool {
        let (Some(other), true) = (&self.other, is_heap) else {
            return watch.add(mapping).is_ok();
        };
        let mut all = pieces(mapping, self.piece_bytes);
        all.all(|(piece, is_odd)| if is_odd { other } else { watch }.add(piece).is_ok())
    }

    /// To be called each second, after the pages were looked at for writes. `clock`: the time since the attach.
    pub fn turn(
        &mut self,
        watch: &WriteWatch,
        pages: &mut Pages,
        older_ms: u32,
        clock: impl Fn() -> u32,
    ) {
        let now_ms = clock();
        let is_clear_due = now_ms >= self.next_clear_ms;
        if self.is_over || !is_clear_due && now_ms < self.next_look_ms {
            return;
        }
        let Some(mappings) = self.look(&clock) else {
            return;
        };
        if is_clear_due {
            self.next_clear_ms = now_ms
                .saturating_add(older_ms)
                .saturating_add(LEAST_APART_MS);
            self.clear(watch, pages, &mappings, &clock);
        }
    }

    /// Reads the marks now.
    pub fn look_again(&mut self, clock: impl Fn() -> u32) {
        if !self.is_over && self.accesses.cleared_ms().is_some() {
            self.look(&clock);
        }
    }

    fn look(&mut self, clock: &impl Fn() -> u32) -> Option<Vec<MappingUse>> {
        let (begin, now_ms) = (Instant::now(), clock());
        let mappings = smaps(self.pid).ok()?;
        let took = begin.elapsed();
        let apart_ms = took.as_millis() as u32 * READING_SHARE;
        self.next_look_ms = now_ms.saturating_add(apart_ms.max(LEAST_APART_MS));
        if took > LONGEST_READING && self.clears == 0 {
            self.slow_readings += 1;
            if self.slow_readings >= MOST_SLOW_READINGS {
                self.give_up("the process is so large that to look would make it wait");
            }
            return None;
        }
        // The kernel clears marks, too, when it looks for what it may swap out.
        let scans = reclaim_scans();
        if scans != self.scans {
            self.accesses.forget();
        }
        let unmarked = mappings.iter().filter(|one| {
            let m = &one.mapping;
            m.read && m.write && !m.shared && m.file_id.2 == 0 && one.memory.referenced == 0
        });
        let unmarked: Vec<Range<u64>> = unmarked
            .map(|one| one.mapping.start..one.mapping.end)
            .collect();
        self.accesses.looked(&unmarked, now_ms);
        Some(mappings)
    }

    /// Clears the marks, and makes processors forget what they have cached of the page tables.
    fn clear(
        &mut self,
        watch: &WriteWatch,
        pages: &mut Pages,
        mappings: &[MappingUse],
        clock: &impl Fn() -> u32,
    ) {
        let Some(flushed) = flushed(self.pid, mappings, pages) else {
            self.problem = Some("no memory that is watched is as large as it takes".into());
            self.next_clear_ms = clock().saturating_add(LEAST_APART_MS);
            return;
        };
        self.scans = reclaim_scans();
        let begin = Instant::now();
        if let Err(error) = clear_access_marks(self.pid) {
            self.give_up(&error.to_string());
            return;
        }
        self.longest = self.longest.max(begin.elapsed());
        self.clears += 1;
        // What was protected is opened, so that there is something to protect.
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

/// How large the pieces of the heap are; `None` if it is too small to be cut, or if there is none.
fn piece_bytes(mappings: &[MappingUse]) -> Option<u64> {
    let heap = mappings.iter().filter(|one| one.mapping.path == "[heap]");
    let (mut bytes, mut huge) = (0, 0);
    for one in heap {
        bytes += one.mapping.end - one.mapping.start;
        huge += one.memory.huge_pages;
    }
    let may_be_huge = huge > 0 || always_huge();
    let least = if may_be_huge {
        HUGE_BYTES
    } else {
        LEAST_PIECE_BYTES
    };
    let piece = (bytes / MOST_PIECES).next_power_of_two().max(least);
    (bytes > 0).then_some(piece)
}

/// Whether the kernel makes huge pages of memory that did not ask for them.
fn always_huge() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|text| text.contains("[always]"))
}

/// A range whose protection flushes everything: of pages that are all in memory, inside one page table, and watched.
fn flushed(pid: i32, mappings: &[MappingUse], pages: &Pages) -> Option<Range<u64>> {
    let scan = PageScan::open(pid).ok()?;
    // What was not accessed is not written soon.
    let mut candidates: Vec<&MappingUse> = mappings
        .iter()
        .filter(|one| one.memory.rss >= LEAST_PIECE_BYTES)
        .collect();
    candidates.sort_by_key(|one| one.memory.referenced);
    candidates.into_iter().find_map(|one| {
        let bytes = if one.memory.huge_pages > 0 {
            HUGE_BYTES
        } else {
            LEAST_PIECE_BYTES
        };
        let mapping = one.mapping.start..one.mapping.end;
        let is_watched = |area: Range<u64>| area.start <= mapping.start && mapping.end <= area.end;
        if !pages.areas().any(is_watched) {
            return None;
        }
        let looked_at = mapping.start..mapping.end.min(mapping.start + MOST_LOOKED_AT_BYTES);
        let mut resident = Vec::new();
        scan.find(looked_at, PageState::Resident, &mut resident)
            .ok()?;
        resident.into_iter().find_map(|run| {
            let start = run.start.next_multiple_of(bytes);
            (start + bytes <= run.end).then_some(start..start + bytes)
        })
    })
}
