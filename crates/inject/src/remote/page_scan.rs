//! Which pages of a target are there, and which were written: `PAGEMAP_SCAN` of
//! `/proc/PID/pagemap` (Linux 6.7, Documentation/admin-guide/mm/pagemap.rst). The request is unsafe code, so it is
//! made in this crate.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

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
/// The page of zeros that all processes share: read and never written.
const IS_ZERO: u64 = 1 << 5;
/// Write-protect what is found, and refuse mappings that are not watched asynchronously.
const WP_MATCHING_ASYNC: u64 = 1 | 2;
const REGIONS_AT_ONCE: usize = 1024;

/// Which pages to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Pages with contents, in memory or swapped out, except those that were only read and are still zeros.
    Populated,
    /// The same, without those of files and of shared memory: in a private mapping of a file, the pages that
    /// were written.
    Own,
    /// Pages in memory, of files and of shared memory too, except those that were only read and are still zeros: what
    /// the kernel counts as resident (`smaps_pte_entry` of fs/proc/task_mmu.c).
    Resident,
    /// Pages that were written since they were last asked for, in mappings that a
    /// [`WriteWatch`](crate::WriteWatch) watches; the first time, all pages with contents. Asking starts
    /// the next round. Pages that the target has given back meanwhile are not reported.
    Written,
    /// The same pages, without starting the next round: they stay as they are, and the target pays nothing.
    WrittenSoFar,
}

/// The page tables of a process.
pub struct PageScan {
    pagemap: File,
}

impl PageScan {
    /// Opens the page map of `pid`.
    pub fn open(pid: i32) -> Result<PageScan, Error> {
        let pagemap = open_pagemap(pid).map_err(|error| Error::of_process(pid, error))?;
        Ok(PageScan { pagemap })
    }

    /// Appends the pages of an address range that are in that state to `found`, as ascending address ranges.
    pub fn find(
        &self,
        range: Range<u64>,
        state: PageState,
        found: &mut Vec<Range<u64>>,
    ) -> io::Result<()> {
        let mut regions = [PageRegion::default(); REGIONS_AT_ONCE];
        let mut at = range.start;
        while at < range.end {
            let mut argument = ScanArgument {
                size: size_of::<ScanArgument>() as u64,
                start: at,
                end: range.end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS_AT_ONCE as u64,
                ..ScanArgument::default()
            };
            match state {
                PageState::Populated | PageState::Own => {
                    let without = if state == PageState::Own {
                        IS_ZERO | IS_FILE
                    } else {
                        IS_ZERO
                    };
                    argument.category_mask = without;
                    argument.category_inverted = without;
                    argument.category_anyof_mask = IS_PRESENT | IS_SWAPPED;
                    argument.return_mask = IS_PRESENT;
                }
                PageState::Resident => {
                    argument.category_mask = IS_PRESENT | IS_ZERO;
                    argument.category_inverted = IS_ZERO;
                    argument.return_mask = IS_PRESENT;
                }
                PageState::Written | PageState::WrittenSoFar => {
                    // Only pages that exist are asked for: protecting holes as well would fill the target's page
                    // tables with markers, even for a large area that it has only reserved.
                    if state == PageState::Written {
                        argument.flags = WP_MATCHING_ASYNC;
                    }
                    argument.category_mask = IS_WRITTEN | IS_ZERO;
                    argument.category_inverted = IS_ZERO;
                    argument.category_anyof_mask = IS_PRESENT | IS_SWAPPED;
                    argument.return_mask = IS_WRITTEN;
                }
            }
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
                return Err(io::Error::last_os_error());
            };
            for region in &regions[..count.min(REGIONS_AT_ONCE)] {
                match found.last_mut() {
                    // Regions of one kind are split where other categories differ.
                    Some(last) if last.end == region.start => last.end = region.end,
                    _ => found.push(region.start..region.end),
                }
            }
            if argument.walk_end <= at {
                break;
            }
            at = argument.walk_end;
        }
        Ok(())
    }
}
