//! Makes a running process call malloc_trim(3).
//!
//! One of the process's threads makes the call at a safe point, in the same way as it calls `free`
//! for `scan --reclaim`. During the call, threads that need the arena that is being trimmed wait.
//! The call cannot be interrupted. So its duration is estimated beforehand, by doing the same work
//! in memhook-rs itself, and the call is not made if the estimate is too long. If the call waits
//! too long for an arena's lock, it is abandoned, because malloc_trim holds no other lock then. If
//! memhook-rs is killed meanwhile, the thread finishes the call and resumes its work.

use crate::capture::limits::Limits;
use crate::capture::{Captured, Request, capture};
use crate::glibc::walk::{ChunkKind, each_chunk};
use crate::reclaim::{HoldAtSafePoint, exported, foreign_callback};
use crate::resident::account::Account;
use crate::resident::look::account_of;
use crate::resident::pages::PAGE_BYTES;
use crate::resident::trim;
use crate::{Error, Heap, dissect};
use memhook_process::{ModuleImage, RemoteAddress, is_executed_still, memory_use, proc_path};
use memmap2::MmapMut;
use std::fs::File;
use std::time::{Duration, Instant};

/// Number of times that the heap is copied again if a part could not be parsed because threads were
/// changing it.
const TRIES: usize = 3;
/// Number of pages of our own that are returned to the kernel to measure the time.
const SAMPLE_PAGES: u32 = 512;
/// Factor by which the call may take longer than the same work in our process, because of another
/// processor and cold caches.
const CAUTION: u32 = 2;

/// A process whose heap may be trimmed.
pub struct Trimmer {
    captured: Captured,
    /// The process's memory, opened before the copy. An execve invalidates it.
    memory: File,
    /// Account of resident memory, with the bytes that a trim would return.
    pub account: Account,
    /// Estimated time of the call on an otherwise idle processor. The call takes longer if threads
    /// compete for processors or for locks.
    pub estimate: Duration,
}

/// Result of a trim.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trimmed {
    /// Resident bytes just before and just after the call.
    pub rss: (u64, u64),
    /// Time for which the thread was held.
    pub held: Duration,
    /// Time that the call took.
    pub call: Duration,
}

impl Trimmer {
    /// Examines a process.
    ///
    /// # Errors
    /// Fails if the heap cannot be copied, is not glibc's, or is damaged.
    pub fn new(pid: i32, limits: Limits) -> Result<Trimmer, Error> {
        let path = proc_path(pid, "mem");
        let memory = File::open(&path).map_err(|error| Error::Unread { path, error })?;
        let request = Request {
            limits,
            with_residency: true,
            ..Request::default()
        };
        let mut tries = 0;
        let (captured, heap) = loop {
            let captured = capture(pid, request)?;
            let heap = dissect(&captured.snapshot)?;
            tries += 1;
            if heap.findings.is_empty() {
                break (captured, heap);
            }
            if tries == TRIES {
                let what = heap.findings.first().map_or("", |finding| &finding.what);
                return Err(Error::NoHeap {
                    pid,
                    reason: format!(
                        "its heap is damaged, and malloc_trim could end it ({what}): nothing is trimmed"
                    ),
                });
            }
        };
        let account = account_of(&captured, Some(&heap), false)?;
        let estimate = estimate(&captured, &heap, account.trim_bytes);
        Ok(Trimmer {
            captured,
            memory,
            account,
            estimate,
        })
    }

    /// Returns the modules of the process.
    pub fn images(&self) -> &[ModuleImage] {
        &self.captured.images
    }

    /// Returns how the memory was copied.
    pub fn meta(&self) -> &crate::Meta {
        &self.captured.snapshot.meta
    }

    /// Fails if a trim would exceed this time.
    ///
    /// # Errors
    /// [`Error::LongCall`]
    pub fn check(&self, most: Duration) -> Result<(), Error> {
        check_call(self.meta().pid, "malloc_trim", self.estimate, most)
    }

    /// Trims the heap with a thread that `hold` holds. The call is abandoned if it waits for a lock
    /// longer than `patience`.
    pub fn trim(&self, hold: &mut HoldAtSafePoint, patience: Duration) -> Result<Trimmed, Error> {
        let pid = self.meta().pid;
        let libc = self.captured.snapshot.libc();
        let image = self
            .images()
            .iter()
            .find(|image| libc.is_some_and(|libc| libc.start == image.start));
        let function = image.and_then(|image| exported(image, "malloc_trim"));
        let function = function.ok_or_else(|| Error::NoHeap {
            pid,
            reason: "its C library exports no malloc_trim()".into(),
        })?;
        if let Some(why) = foreign_callback(pid, self.images(), None) {
            return Err(Error::NoHeap {
                pid,
                reason: format!(
                    "malloc_trim() could call the program's own code, which could wait for a lock: {why}"
                ),
            });
        }
        let before = memory_use(pid)?.rss;
        let mut held = hold()?;
        if !is_executed_still(&self.memory) {
            return Err(Error::OtherProgram { pid });
        }
        let begin = Instant::now();
        let called = held.call_unless_locked(RemoteAddress(function), &[0], patience);
        let call = begin.elapsed();
        let held = held.release();
        called?;
        Ok(Trimmed {
            rss: (before, memory_use(pid)?.rss),
            held: held?,
            call,
        })
    }
}

/// Fails if the estimate of a call exceeds its limit.
///
/// # Errors
/// [`Error::LongCall`]
pub fn check_call(
    pid: i32,
    call: &'static str,
    estimate: Duration,
    most: Duration,
) -> Result<(), Error> {
    if estimate <= most {
        return Ok(());
    }
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    Err(Error::LongCall {
        pid,
        call,
        needed_ms: milliseconds(estimate),
        allowed_ms: milliseconds(most),
    })
}

/// Estimates the time of the call: it visits all chunks in bins, makes a system call for each chunk
/// that has a page to return, and returns the pages.
fn estimate(captured: &Captured, heap: &Heap, bytes: u64) -> Duration {
    let snapshot = &captured.snapshot;
    let begin = Instant::now();
    let mut calls = 0u32;
    for piece in &heap.pieces {
        each_chunk(snapshot, *piece, &heap.kept, |at, size, kind| {
            let is_free = matches!(kind, ChunkKind::Free | ChunkKind::Kept(_));
            calls += u32::from(is_free && !trim::of_chunk(&(at..at + size)).is_empty());
        });
    }
    // All chunks were visited here, in address order. malloc_trim visits only the free chunks, in
    // any order.
    let looking = begin.elapsed();
    let (page, call) = (
        time_to_discard(SAMPLE_PAGES) / SAMPLE_PAGES,
        time_to_discard(1),
    );
    let pages = u32::try_from(bytes / PAGE_BYTES).unwrap_or(u32::MAX);
    let work = looking + page.saturating_mul(pages) + call.saturating_mul(calls);
    work.saturating_mul(CAUTION)
}

/// Estimates the time to return the given number of bytes. Each system call returns only a few
/// pages, because the free pages are scattered.
pub fn time_to_give_back(bytes: u64) -> Duration {
    const PAGES_A_CALL: u32 = 4;
    let pages = u32::try_from(bytes / PAGE_BYTES).unwrap_or(u32::MAX);
    let (page, call) = (
        time_to_discard(SAMPLE_PAGES) / SAMPLE_PAGES,
        time_to_discard(1),
    );
    let work = page.saturating_mul(pages) + call.saturating_mul(pages / PAGES_A_CALL + 1);
    work.saturating_mul(CAUTION)
}

/// Measures the time that one call takes to return `pages` pages in this process.
fn time_to_discard(pages: u32) -> Duration {
    let bytes = pages as usize * PAGE_BYTES as usize;
    let Ok(mut memory) = MmapMut::map_anon(bytes) else {
        return Duration::from_millis(1);
    };
    memory
        .chunks_mut(PAGE_BYTES as usize)
        .for_each(|page| page[0] = 1);
    let begin = Instant::now();
    drop(memory);
    begin.elapsed()
}
