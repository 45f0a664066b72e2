//! Repeated scans of one process. Each scan returns the blocks that are now safe to release.

use super::choose::{reclaimable, refusal};
use super::refusal::Refusal;
use super::release::{
    HoldAtSafePoint, RELEASED, Released, allocator_of, find_free_of, foreign_callback, owners,
};
use super::verdict::Verdict;
use crate::capture::{Captured, Request, capture};
use crate::{Error, Fingerprints, MarkOptions, Scan};
use memhook_inject::kernel_places;
use memhook_process::{has_ended, proc_path};
use std::fs::File;
use std::io::{Read, Seek};
use std::time::Duration;

/// Releases blocks of a process that two scans find leaked, with the same contents.
pub struct Reclaimer {
    pid: i32,
    request: Request,
    /// The process's /proc/PID/stat. The open file refers to this process even if its id is reused.
    stat: File,
    /// Blocks that were leaked at the last scan.
    before: Option<Fingerprints>,
    /// The verdict that `before` was taken from. If there is one, only its blocks are released,
    /// regardless of how often the process is scanned.
    verdict: Option<Verdict>,
}

/// A scan, and the blocks that it allows to release.
pub struct Candidates {
    /// The snapshot.
    pub captured: Captured,
    /// The process's memory, opened before the copy. An execve invalidates it.
    pub(super) memory: File,
    /// Longest time for which a thread was held to determine the memory that the kernel uses on its
    /// behalf.
    pub asked: Duration,
    /// Scan of the snapshot.
    pub scan: Scan,
    /// Blocks that may be released.
    pub chosen: Vec<u32>,
    /// Reason why no block was chosen.
    pub refused: Option<Refusal>,
    /// Number of blocks in the verdict, if there is one.
    pub verdict_blocks: Option<usize>,
}

impl Reclaimer {
    /// Prepares for a process that no other program reclaims or traces. Two reclaimers would
    /// release some blocks twice, and a tracer would not see the releases.
    pub fn new(pid: i32, request: Request) -> Result<Reclaimer, Error> {
        let path = format!("/proc/{pid}/stat");
        let stat = File::open(&path);
        Ok(Reclaimer {
            pid,
            request,
            stat: stat.map_err(|error| Error::Unread { path, error })?,
            before: None,
            verdict: None,
        })
    }

    /// Prepares with a verdict in place of the first scan.
    pub fn with_verdict(pid: i32, request: Request, verdict: Verdict) -> Result<Reclaimer, Error> {
        // The file is opened before anything else, because it then stays bound to this process.
        let reclaimer = Reclaimer::new(pid, request)?;
        if let Some(reason) = verdict.foreign_to(pid) {
            return Err(Error::OtherVerdict { pid, reason });
        }
        Ok(Reclaimer {
            before: Some(verdict.fingerprints()),
            verdict: Some(verdict),
            ..reclaimer
        })
    }

    /// Returns true if the process is alive.
    pub fn is_alive(&mut self) -> bool {
        let mut bytes = Vec::new();
        let read = self.stat.rewind();
        let read = read.and_then(|()| self.stat.read_to_end(&mut bytes));
        // The process name in the file need not be valid text.
        let text = String::from_utf8_lossy(&bytes);
        let state = text.rsplit(')').next().unwrap_or("").trim_start();
        // A process whose initial thread has ended lives on while it has other threads.
        read.is_ok() && (!state.starts_with(['Z', 'X']) || !has_ended(self.pid))
    }

    /// Scans the process. Chooses the leaked blocks that the previous scan also found leaked, with
    /// equal contents. The first scan chooses none.
    pub fn scan(&mut self) -> Result<Candidates, Error> {
        let path = proc_path(self.pid, "mem");
        let memory = File::open(&path).map_err(|error| Error::Unread { path, error })?;
        let captured = capture(self.pid, self.request)?;
        let snapshot = &captured.snapshot;
        if let Some(verdict) = &self.verdict
            && !verdict.is_of_program(&snapshot.meta)
        {
            return Err(Error::OtherVerdict {
                pid: self.pid,
                reason: "it has executed another program since the verdict".into(),
            });
        }
        let options = MarkOptions::to_reclaim();
        let scan = Scan::of(snapshot, options)?;
        let refused = refusal(snapshot, &scan.heap);
        let mut asked = Duration::ZERO;
        let mut chosen = Vec::new();
        if let (Some(before), None) = (&self.before, &refused)
            && !scan.leaks.is_empty()
            // The kernel is asked after the scan. Memory that the program passed to the kernel
            // after the scan was reachable during the scan, because the program had its address. If
            // the kernel's memory is unknown, no block is chosen.
            && let Ok((places, longest)) = kernel_places(self.pid)
        {
            asked = longest;
            let (heap, leaks) = (&scan.heap, &scan.leaks);
            chosen = reclaimable(snapshot, heap, options, leaks, before, &places);
        }
        let mut refused = refused;
        // A process may have several allocators.
        for name in owners(&scan.heap, &chosen).into_iter().flatten() {
            let others = scan.heap.others.iter();
            let mut heaps = others.filter(|other| other.allocator == name);
            let is_shown = heaps.all(|heap| heap.live_check.is_some());
            if is_shown && find_free_of(&captured.images, name).is_some() {
                continue;
            }
            chosen.retain(|&block| allocator_of(&scan.heap, block) != Some(name));
            if chosen.is_empty() {
                refused = Some(if !is_shown {
                    Refusal::NotShown(name.to_owned())
                } else if RELEASED.contains(&name) {
                    Refusal::LinkedIn(name.to_owned())
                } else {
                    Refusal::OtherAllocator(name.to_owned())
                });
            }
        }
        for owner in owners(&scan.heap, &chosen) {
            if let Some(why) = foreign_callback(self.pid, &captured.images, owner) {
                chosen.retain(|&block| allocator_of(&scan.heap, block) != owner);
                if chosen.is_empty() {
                    refused = Some(Refusal::CallsBack(why));
                }
            }
        }
        if self.verdict.is_none() {
            self.before = Some(scan.fingerprints(snapshot));
        }
        Ok(Candidates {
            captured,
            memory,
            asked,
            scan,
            chosen,
            refused,
            verdict_blocks: self.verdict.as_ref().map(Verdict::blocks),
        })
    }

    /// Releases the chosen blocks of the last scan.
    pub fn release(&mut self, candidates: &Candidates, hold: &mut HoldAtSafePoint) -> Released {
        let done = candidates.release(hold);
        // The program may allocate these addresses, and leak them again, before the next scan.
        for address in done.released.iter().map(|&b| candidates.address(b)) {
            self.before.iter_mut().for_each(|b| b.remove(address));
        }
        done
    }
}

impl Candidates {
    fn address(&self, block: u32) -> u64 {
        self.scan.heap.blocks.get(block).address
    }

    /// Returns the usable bytes of some of the blocks.
    pub fn bytes(&self, blocks: &[u32]) -> u64 {
        let blocks = blocks.iter().map(|&b| self.scan.heap.blocks.get(b));
        blocks.map(|block| block.bytes).sum()
    }
}
