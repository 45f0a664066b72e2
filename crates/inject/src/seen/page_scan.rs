//! Populated and written pages of a target: `PAGEMAP_SCAN` of `/proc/PID/pagemap` (Linux 6.7,
//! Documentation/admin-guide/mm/pagemap.rst). The request needs unsafe code, so it is in this crate.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::Error;
use memhook_process::open_pagemap;

/// `struct pm_scan_arg` of `<linux/fs.h>`.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of `<linux/fs.h>`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const IS_WRITTEN: u64 = 1 << 1;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
/// The zero page that all processes share: memory that was read but never written.
const IS_ZERO: u64 = 1 << 5;
/// Flags that write-protect the found pages, and refuse mappings without an asynchronous watch.
const WP_MATCHING_ASYNC: u64 = 1 | 2;
const REGIONS_AT_ONCE: u64 = 1024;
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Size of a request. While the kernel walks a range, threads of the target that map or unmap memory wait. Requests are
/// larger if there is less to walk.
const BYTES_AT_ONCE: u64 = 64 << 20;
const MOST_AT_ONCE: u64 = 1 << 30;
const QUICK: Duration = Duration::from_micros(100);
/// `PAGE_IS_HUGE`.
const IS_HUGE: u64 = 1 << 6;

/// Kind of pages to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Pages with contents, in memory or swapped out, except those that were only read and are still zeros.
    Populated,
    /// Like [`PageState::Populated`], but without pages of files and of shared memory. In a private mapping of a file,
    /// only pages that were written are left.
    Own,
    /// Pages in memory, including pages of files and of shared memory, except pages that were only read and are still
    /// zeros. These are the pages that the kernel counts as resident (`smaps_pte_entry` of fs/proc/task_mmu.c). The
    /// result also contains pages of hugetlbfs, and of devices.
    Resident,
    /// Like [`PageState::Resident`], but only pages in huge pages.
    Huge,
    /// Pages that were written since the last request, in mappings that a [`WriteWatch`](crate::WriteWatch) watches;
    /// the first time, all pages with contents. The request starts the next round. Pages that the target has freed
    /// meanwhile are not reported. Nor are huge pages: the first write to a protected huge page splits it
    /// (`do_huge_pmd_wp_page` of mm/huge_memory.c), so huge pages are never protected.
    Written,
    /// Unprotected pages, including huge pages. This request does not start the next round: all pages keep their state,
    /// at no cost for the target.
    WrittenSoFar,
}

/// Page tables of a process.
pub struct PageScan {
    pagemap: File,
}

impl PageScan {
    /// Opens the page map of `pid`.
    pub fn open(pid: i32) -> Result<PageScan, Error> {
        let pagemap = open_pagemap(pid).map_err(|error| Error::of_process(pid, error))?;
        Ok(PageScan { pagemap })
    }

    /// Appends to `found` the pages of an address range that are in this state, as ascending address ranges. After an
    /// error, the kernel has walked a part of the range, and `found` has the pages of that part.
    pub fn find(
        &self,
        range: Range<u64>,
        state: PageState,
        found: &mut Vec<Range<u64>>,
    ) -> io::Result<()> {
        self.each_region(range, state, |region| append(found, region))
    }

    /// Returns true if a range of a private mapping contains a private page ([`PageState::Own`]).
    pub fn has_own(&self, range: Range<u64>) -> io::Result<bool> {
        let mut region = PageRegion::default();
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.saturating_add(MOST_AT_ONCE));
            let mut argument = ScanArgument {
                size: size_of::<ScanArgument>() as u64,
                start: at,
                end,
                vec: (&raw mut region) as u64,
                vec_len: 1,
                // One page is enough.
                max_pages: 1,
                ..ScanArgument::default()
            };
            argument.ask_for(PageState::Own);
            // SAFETY: the kernel reads and writes one pm_scan_arg and at most one region, both live for the call.
            let count = unsafe {
                let argument = &raw mut argument;
                libc::ioctl(self.pagemap.as_raw_fd(), PAGEMAP_SCAN as _, argument)
            };
            match count {
                0 => at = end,
                1.. => return Ok(true),
                _ => return Err(io::Error::last_os_error()),
            }
        }
        Ok(false)
    }

    /// Appends the [`PageState::Resident`] pages of an address range to `found`, and the pages that are part of huge
    /// pages to `huge`. Returns the size of both in bytes.
    pub fn find_resident(
        &self,
        range: Range<u64>,
        found: &mut Vec<Range<u64>>,
        huge: &mut Vec<Range<u64>>,
    ) -> io::Result<(u64, u64)> {
        let (mut all_bytes, mut huge_bytes) = (0, 0);
        self.each_region(range, PageState::Resident, |region| {
            let bytes = region.end - region.start;
            all_bytes += bytes;
            if region.categories & IS_HUGE != 0 {
                huge_bytes += bytes;
                append(huge, region);
            }
            append(found, region);
        })?;
        Ok((all_bytes, huge_bytes))
    }

    /// Calls `each` for every region, in address order. Each page is in at most one region.
    fn each_region(
        &self,
        range: Range<u64>,
        state: PageState,
        mut each: impl FnMut(&PageRegion),
    ) -> io::Result<()> {
        // If there are many ranges, most are short.
        let room = (range.end.saturating_sub(range.start) / PAGE_BYTES + 1).min(REGIONS_AT_ONCE);
        let mut regions = vec![PageRegion::default(); room as usize];
        let mut at = range.start;
        let mut bytes_at_once = BYTES_AT_ONCE;
        while at < range.end {
            let end = range.end.min(at.saturating_add(bytes_at_once));
            let mut argument = ScanArgument {
                size: size_of::<ScanArgument>() as u64,
                start: at,
                end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: room,
                ..ScanArgument::default()
            };
            argument.ask_for(state);
            regions.fill(PageRegion::default());
            let begin = Instant::now();
            // SAFETY: the kernel reads and writes one pm_scan_arg and at most `vec_len` regions,
            // both live for the call.
            let count = unsafe {
                libc::ioctl(
                    self.pagemap.as_raw_fd(),
                    PAGEMAP_SCAN as _,
                    &raw mut argument,
                )
            };
            let Ok(count) = usize::try_from(count) else {
                let error = io::Error::last_os_error();
                // If the request reaches a mapping without a watch in the middle of a range, it fails. By then, it has
                // begun the next round for the pages before that mapping, and will not report them again. It has stored
                // these pages, but not their number (do_pagemap_scan of fs/proc/task_mmu.c).
                let stored = regions.iter().take_while(|region| region.end > at);
                stored.for_each(&mut each);
                return Err(error);
            };
            bytes_at_once = if begin.elapsed() < QUICK {
                (2 * bytes_at_once).min(MOST_AT_ONCE)
            } else {
                BYTES_AT_ONCE
            };
            let found = &regions[..count.min(regions.len())];
            found.iter().for_each(&mut each);
            // The kernel returns regions in several batches of at most 512. If the walk stops for lack of space in one
            // batch and ends in a later one, `walk_end` still has the position of the stop (do_pagemap_scan of
            // fs/proc/task_mmu.c). Continuing there would report the same pages twice.
            let next = match found.last() {
                Some(last) if count >= regions.len() => argument.walk_end.max(last.end),
                _ => end,
            };
            if next <= at {
                break;
            }
            at = next;
        }
        Ok(())
    }
}

impl ScanArgument {
    fn ask_for(&mut self, state: PageState) {
        match state {
            PageState::Populated | PageState::Own => {
                let without = if state == PageState::Own {
                    IS_ZERO | IS_FILE
                } else {
                    IS_ZERO
                };
                self.category_mask = without;
                self.category_inverted = without;
                self.category_anyof_mask = IS_PRESENT | IS_SWAPPED;
                self.return_mask = IS_PRESENT;
            }
            PageState::Resident | PageState::Huge => {
                let huge = if state == PageState::Huge { IS_HUGE } else { 0 };
                self.category_mask = IS_PRESENT | IS_ZERO | huge;
                self.category_inverted = IS_ZERO;
                self.return_mask = IS_PRESENT | IS_HUGE;
            }
            PageState::Written | PageState::WrittenSoFar => {
                // Only existing pages are requested. Protecting holes too would fill the target's page tables with
                // markers, even for a large area that is only reserved.
                let without = if state == PageState::Written {
                    self.flags = WP_MATCHING_ASYNC;
                    IS_ZERO | IS_HUGE
                } else {
                    IS_ZERO
                };
                self.category_mask = IS_WRITTEN | without;
                self.category_inverted = without;
                self.category_anyof_mask = IS_PRESENT | IS_SWAPPED;
                self.return_mask = IS_WRITTEN;
            }
        }
    }
}

/// Appends a region to the previous ones.
fn append(found: &mut Vec<Range<u64>>, region: &PageRegion) {
    match found.last_mut() {
        // The kernel splits regions of one kind where other categories differ.
        Some(last) if last.end == region.start => last.end = region.end,
        _ => found.push(region.start..region.end),
    }
}
