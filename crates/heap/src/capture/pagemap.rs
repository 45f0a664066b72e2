//! Pages with contents, on kernels without `PAGEMAP_SCAN`, from the words of /proc/PID/pagemap
//! (Documentation/admin-guide/mm/pagemap.rst).

use crate::ranges::{Runs, add_run};
use memhook_process::proc_path;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const PAGE_BYTES: u64 = 4096;
/// The page is in memory or swapped out. These bits are visible without privileges.
const POPULATED: u64 = RESIDENT | 1 << 62;
/// The page is in memory.
const RESIDENT: u64 = 1 << 63;
/// The page belongs to a file or to shared memory.
const OF_FILE: u64 = 1 << 61;
/// The page is in a guard region (PM_GUARD_REGION, since Linux 6.15).
const GUARD: u64 = 1 << 58;
/// Number of words read at a time.
const WORDS: u64 = 64 * 1024;

/// Returns the pages of [start, end) with contents.
pub fn populated(pid: i32, start: u64, end: u64) -> io::Result<Runs> {
    find(pid, start, end, |word| word & POPULATED != 0)
}

/// Returns the pages of [start, end) in memory. These include the shared zero page, which stands
/// for pages that were only read.
pub fn resident(pid: i32, start: u64, end: u64) -> io::Result<Runs> {
    find(pid, start, end, |word| word & RESIDENT != 0)
}

/// Returns the pages with contents that belong to neither a file nor shared memory.
pub fn own(pid: i32, start: u64, end: u64) -> io::Result<Runs> {
    find(pid, start, end, |word| {
        word & POPULATED != 0 && word & OF_FILE == 0
    })
}

/// Returns the pages that the process has made guard pages with madvise(2). They have no contents,
/// and any access to them faults.
pub fn guards(pid: i32, start: u64, end: u64) -> io::Result<Runs> {
    find(pid, start, end, |word| word & GUARD != 0)
}

fn find(pid: i32, start: u64, end: u64, is_wanted: impl Fn(u64) -> bool) -> io::Result<Runs> {
    let pagemap = File::open(proc_path(pid, "pagemap"))?;
    let mut found = Runs::new();
    let mut at = start;
    while at < end {
        let count = WORDS.min((end - at).div_ceil(PAGE_BYTES));
        let mut words = vec![0; count as usize * 8];
        pagemap.read_exact_at(&mut words, at / PAGE_BYTES * 8)?;
        for word in words.as_chunks::<8>().0 {
            if is_wanted(u64::from_le_bytes(*word)) {
                add_run(&mut found, at..at + PAGE_BYTES);
            }
            at += PAGE_BYTES;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_inject::{PageScan, PageState};

    #[test]
    fn the_same_pages_as_the_scan_call() {
        let pid = std::process::id() as i32;
        // The buffer is large enough to get its own mapping, whose pages were never touched.
        let mut room = vec![0u8; 64 << 20];
        let start = (room.as_ptr().addr() as u64).next_multiple_of(PAGE_BYTES);
        let first = (start - room.as_ptr().addr() as u64) as usize;
        for page in [3, 4, 9000] {
            room[first + page * PAGE_BYTES as usize] = 1;
        }
        let (low, high) = (start + PAGE_BYTES, start + (60 << 20));
        let mut found = populated(pid, low, high).unwrap();
        for page in [3, 4, 9000] {
            let at = start + page * PAGE_BYTES;
            assert!(found.iter().any(|r| r.contains(&at)), "{found:x?}");
        }
        assert!(crate::ranges::run_bytes(&found) < 32 << 20, "{found:x?}");
        let scan = PageScan::open(pid).unwrap();
        for attempt in 1.. {
            let mut scanned = Runs::new();
            let seen = scan.find(low..high, PageState::Populated, &mut scanned);
            // The kernel may turn the pages into huge pages in the meantime.
            if seen.is_err() || found == scanned {
                break;
            }
            assert!(attempt < 10, "{found:x?}, not {scanned:x?}");
            found = populated(pid, low, high).unwrap();
        }
        assert!(populated(i32::MAX, 0, PAGE_BYTES).is_err());
    }
}
