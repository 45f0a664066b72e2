//! Watches a running target's writes without stopping it: userfaultfd write protection in asynchronous mode (Linux
//! 6.7). The kernel resolves the faults itself, so no thread waits for us.
//!
//! A userfaultfd belongs to the address space of its creator. So the target creates it in a remote system call, and we
//! duplicate it. If we are killed before that, the target's thread closes it. When the last descriptor is closed, for
//! example because we were killed, the kernel lifts all protection.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use memhook_process::{Mapping, has_userfaultfd};

use crate::audit::{Act, note};
use crate::descriptor::duplicate_opened;
use crate::watchable::{Neighbours, Watchable, watchable};
use crate::{Error, Held, HoldOptions, PageScan, PageState, hold};

/// Flag that makes privileges unnecessary. Asynchronous write protection never calls a handler, so the kernel's own
/// writes to user memory are tracked all the same.
const UFFD_USER_MODE_ONLY: u64 = 1;
/// `_IOWR(0xAA, 0x3F, struct uffdio_api)`.
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
/// `_IOWR(0xAA, 0x00, struct uffdio_register)`.
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
/// `_IOWR(0xAA, 0x06, struct uffdio_writeprotect)`.
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
/// `_IOR(0xAA, 0x01, struct uffdio_range)`.
const UFFDIO_UNREGISTER: libc::c_ulong = 0x8010_aa01;
const UFFD_API: u64 = 0xaa;
/// `UFFD_FEATURE_PAGEFAULT_FLAG_WP | WP_HUGETLBFS_SHMEM | WP_UNPOPULATED | WP_ASYNC`.
const FEATURES: u64 = 1 | 1 << 12 | 1 << 13 | 1 << 15;
const MODE_WRITE_PROTECT: u64 = 2;
/// Size of a request. As in `page_scan.rs`, the size is limited because threads of the target wait during a request.
const BYTES_AT_ONCE: u64 = 64 << 20;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct WriteProtect {
    start: u64,
    length: u64,
    mode: u64,
}

/// Watches writes to some mappings of a process, until this value is dropped.
pub struct WriteWatch {
    userfault: OwnedFd,
    pages: PageScan,
    held: Duration,
    /// Process that is watched.
    pid: i32,
}

impl WriteWatch {
    /// Takes a userfaultfd from the target, and holds one thread to create it. Nothing is watched yet.
    ///
    /// A program that has its own userfaultfd is left alone: the kernel refuses a second registration of the same area,
    /// and the refused one must not be the program's.
    pub fn start(pid: i32) -> Result<WriteWatch, Error> {
        if has_userfaultfd(pid) {
            return Err(Error::OwnUserfaultfd { pid });
        }
        let pages = PageScan::open(pid)?;
        let mut held = hold(pid, &HoldOptions::anywhere(Duration::from_secs(2)))?;
        let userfault = take_userfault(&mut held);
        let held = held.release()?;
        WriteWatch::agreed(pid, userfault?, pages, held).map_err(failed(pid))
    }

    /// Watches writes of this process, to measure their cost on this machine.
    pub fn of_ourselves() -> io::Result<WriteWatch> {
        let pid = std::process::id() as i32;
        let pages = PageScan::open(pid).map_err(io::Error::other)?;
        let flags = UFFD_USER_MODE_ONLY as libc::c_int | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: no pointers.
        let number = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us; no other code owns it.
        let userfault = unsafe { OwnedFd::from_raw_fd(number as i32) };
        WriteWatch::agreed(pid, userfault, pages, Duration::ZERO)
    }

    /// Negotiates the features of the descriptor with the kernel.
    fn agreed(
        pid: i32,
        userfault: OwnedFd,
        pages: PageScan,
        held: Duration,
    ) -> io::Result<WriteWatch> {
        let mut api = Api {
            api: UFFD_API,
            features: FEATURES,
            ioctls: 0,
        };
        // SAFETY: the kernel reads and writes one uffdio_api, live for the call.
        let result = unsafe { libc::ioctl(userfault.as_raw_fd(), UFFDIO_API as _, &raw mut api) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(WriteWatch {
            userfault,
            pages,
            held,
            pid,
        })
    }

    /// Returns the time for which a thread was held for this.
    pub fn held_for(&self) -> Duration {
        self.held
    }

    /// Returns the watchable parts of the wanted mappings of the process, chosen so that adjacent mappings keep growing
    /// as one.
    pub fn watchable(
        &self,
        maps: &[Mapping],
        is_wanted: &dyn Fn(&Mapping) -> bool,
    ) -> Vec<Neighbours> {
        watchable(&self.pages, maps, is_wanted)
    }

    /// Begins to watch an address range, which must be mapped without holes. At first, [`WriteWatch::written`] returns
    /// all its pages.
    pub fn add(&self, range: Range<u64>) -> io::Result<()> {
        note(self.pid, Act::Protect(range.clone()));
        let mut register = Register {
            start: range.start,
            length: range.end - range.start,
            mode: MODE_WRITE_PROTECT,
            ioctls: 0,
        };
        // SAFETY: the kernel reads and writes one uffdio_register, live for the call.
        let result = unsafe {
            libc::ioctl(
                self.userfault.as_raw_fd(),
                UFFDIO_REGISTER as _,
                &raw mut register,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Starts to watch mappings that [`WriteWatch::watchable`] returned. Returns the parts that the kernel agreed to
    /// watch, and the ranges that were registered for them, in order and disjoint.
    pub fn add_all(&self, found: Neighbours) -> (Vec<Watchable>, Vec<Range<u64>>) {
        let (mut members, mut wholes) = (Vec::new(), Vec::new());
        let mut left = vec![found];
        while let Some(found) = left.pop() {
            if self.add(found.whole.clone()).is_ok() {
                members.extend(found.members.iter().cloned());
                wholes.push(found.whole.clone());
            } else if let Some(halves) = found.clone().halves() {
                left.extend(halves.into_iter().rev());
            } else {
                // Other memory may have been mapped into the gaps between these mappings.
                let alone = found.members.into_iter();
                for member in alone.filter(|member| self.add(member.part.clone()).is_ok()) {
                    wholes.push(member.part.clone());
                    members.push(member);
                }
            }
        }
        (members, wholes)
    }

    /// Ends the watch of an address range. If all watches were closed in one step, threads that map or unmap memory
    /// would wait until the kernel has walked all of the memory.
    pub fn remove(&self, range: Range<u64>) -> io::Result<()> {
        let mut argument = [range.start, range.end - range.start];
        // SAFETY: the kernel reads one uffdio_range, two 64-bit numbers, live for the call.
        let result = unsafe {
            libc::ioctl(
                self.userfault.as_raw_fd(),
                UFFDIO_UNREGISTER as _,
                argument.as_mut_ptr(),
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Appends the pages of an address range that were written since the last call to `found`. Huge pages are not
    /// watched, so that they are not split; [`WriteWatch::huge`] returns them. If the range has a mapping that the
    /// target has created since and that is not watched, the call fails there. `found` then contains the pages before
    /// that mapping, and the pages after it have to be requested again.
    pub fn written(&self, range: Range<u64>, found: &mut Vec<Range<u64>>) -> io::Result<()> {
        self.pages.find(range, PageState::Written, found)
    }

    /// Appends the unprotected pages of an address range to `found`: pages that were written, or have never been
    /// protected. Nothing changes for the target.
    pub fn written_so_far(&self, range: Range<u64>, found: &mut Vec<Range<u64>>) -> io::Result<()> {
        self.pages.find(range, PageState::WrittenSoFar, found)
    }

    /// Appends the huge pages of an address range to `found`. A caller that needs all written pages must read all of
    /// them.
    pub fn huge(&self, range: Range<u64>, found: &mut Vec<Range<u64>>) -> io::Result<()> {
        self.pages.find(range, PageState::Huge, found)
    }

    /// Lifts the protection of a range of watched pages.
    pub fn lift(&self, range: Range<u64>) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.saturating_add(BYTES_AT_ONCE));
            self.lift_slice(at..end)?;
            at = end;
        }
        Ok(())
    }

    fn lift_slice(&self, range: Range<u64>) -> io::Result<()> {
        let mut argument = WriteProtect {
            start: range.start,
            length: range.end - range.start,
            mode: 0,
        };
        // SAFETY: the kernel reads one uffdio_writeprotect, live for the call.
        let result = unsafe {
            libc::ioctl(
                self.userfault.as_raw_fd(),
                UFFDIO_WRITEPROTECT as _,
                &raw mut argument,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

fn failed(pid: i32) -> impl Fn(io::Error) -> Error {
    move |cause| Error::RemoteSyscall {
        name: "userfaultfd",
        pid,
        cause,
    }
}

/// Returns a userfaultfd that the target has created, and whose descriptor the target no longer has.
pub(crate) fn take_userfault(held: &mut Held) -> Result<OwnedFd, Error> {
    let flags = UFFD_USER_MODE_ONLY | (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
    let number = held.open_descriptor("userfaultfd", libc::SYS_userfaultfd, &[flags])?;
    let taken = duplicate_opened(held, number);
    held.close_opened()?;
    taken.map_err(failed(held.pid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapMut;

    const PAGE: usize = 4096;
    const PAGES: usize = 8;

    fn written(watch: &WriteWatch, range: &Range<u64>) -> (bool, Vec<u64>) {
        let mut found = Vec::new();
        let is_whole = watch.written(range.clone(), &mut found).is_ok();
        let pages = found.into_iter().flat_map(|run| run.step_by(PAGE));
        (
            is_whole,
            pages.map(|at| (at - range.start) / PAGE as u64).collect(),
        )
    }

    /// The kernel call fails at an unwatched mapping, and reports no page twice.
    #[test]
    fn pages_before_an_unwatched_mapping_are_reported() {
        let watch = match WriteWatch::of_ourselves() {
            Ok(watch) => watch,
            Err(error) => return memhook_tests::not_run_here(&error.to_string()),
        };
        let mut map = MmapMut::map_anon(PAGES * PAGE).unwrap();
        map.fill(1);
        let start = map.as_ptr().addr() as u64;
        let range = start..start + (PAGES * PAGE) as u64;
        watch.add(range.clone()).unwrap();
        let (is_whole, all) = written(&watch, &range);
        assert!(
            is_whole && all == Vec::from_iter(0..PAGES as u64),
            "{all:?}"
        );
        for page in [0, 2, 7] {
            map[page * PAGE] = 2;
        }
        let middle = map.as_mut_ptr().wrapping_add(4 * PAGE);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the page is in the mapping, no part of which is borrowed, and it stays readable and writable.
        let mapped = unsafe { libc::mmap(middle.cast(), PAGE, protection, flags, -1, 0) };
        assert_eq!(mapped, middle.cast());
        map[4 * PAGE] = 3;
        assert_eq!(written(&watch, &range), (false, vec![0, 2]));
        let behind = range.start + 5 * PAGE as u64..range.end;
        assert_eq!(written(&watch, &behind), (true, vec![2]));
    }
}
