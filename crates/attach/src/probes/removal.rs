//! Taking probes out of a process: whoever placed them, this run, one that was killed, or one that probed the process
//! that this one was forked from.
//!
//! If we die on the way, nothing is lost: the journal is there until the pads are, and both go only when no function
//! leads to them any more and no thread is in them.

use crate::claim::claim;
use crate::error::Error;
use crate::hook_presence::any_point;
use crate::residue::is_attacher;
use memhook_inject::{CodeExchange, Exchanged, exchange_code, hold};
use memhook_probe::{AreaHeader, CountsLayout, JournalEntry};
use memhook_process::{Mapping, RemoteAddress, mappings, process_ids, read_memory};
use std::ops::Range;
use std::time::Duration;

const AREA_PATH: &str = "/memfd:memhook-probe";
const COUNTS_PATH: &str = "/memfd:memhook-probe-counts";
/// How often is tried what threads prevent.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// One area of a process.
struct Found {
    mapping: Mapping,
    header: Option<AreaHeader>,
    journal: Vec<JournalEntry>,
}

impl Found {
    fn new(pid: i32, mapping: &Mapping) -> Found {
        let mut bytes = [0; AreaHeader::BYTES];
        let at = RemoteAddress(mapping.start);
        let read = read_memory(pid, at, &mut bytes).is_ok();
        let header = read.then(|| AreaHeader::read(&bytes)).flatten();
        let inside = |h: &AreaHeader| {
            h.bytes == mapping.end - mapping.start
                && (AreaHeader::BYTES + h.journal_bytes()) as u64 <= h.bytes
        };
        let header = header.filter(inside);
        let mut journal = vec![0; header.map_or(0, |h| h.journal_bytes())];
        let read = read_memory(pid, at + AreaHeader::BYTES as u64, &mut journal).is_ok();
        Found {
            mapping: mapping.clone(),
            header,
            journal: if read {
                AreaHeader::journal(&journal)
            } else {
                Vec::new()
            },
        }
    }

    fn range(&self) -> Range<u64> {
        self.mapping.start..self.mapping.end
    }

    /// What still leads here.
    fn exchanges(&self, pid: i32) -> impl Iterator<Item = CodeExchange> {
        self.journal
            .iter()
            .filter(move |entry| {
                let mut now = [0; memhook_probe::JUMP_BYTES];
                let is_there = read_memory(pid, RemoteAddress(entry.at), &mut now).is_ok();
                is_there && now == entry.jump && self.is_reached_by(entry)
            })
            .map(|entry| CodeExchange {
                at: RemoteAddress(entry.at),
                from: entry.jump.to_vec(),
                to: entry.original.to_vec(),
            })
    }

    fn is_reached_by(&self, entry: &JournalEntry) -> bool {
        let [0xe9, distance @ ..] = entry.jump else {
            return false;
        };
        let behind = entry.at.wrapping_add(memhook_probe::JUMP_BYTES as u64);
        let to = behind.wrapping_add_signed(i64::from(i32::from_le_bytes(distance)));
        self.mapping.contains(to)
    }
}

fn areas(pid: i32, maps: &[Mapping]) -> Vec<Found> {
    let is_area = |m: &&Mapping| m.path == AREA_PATH && !m.shared;
    maps.iter()
        .filter(is_area)
        .map(|m| Found::new(pid, m))
        .collect()
}

/// Whether a process has pads.
pub(crate) fn is_probed(pid: i32) -> bool {
    mappings(pid).is_ok_and(|maps| maps.iter().any(|m| m.path == AREA_PATH))
}

/// The running memhook-rs that probes a process.
pub(crate) fn attacher(pid: i32, maps: &[Mapping]) -> Option<u32> {
    let headers = areas(pid, maps)
        .into_iter()
        .filter_map(|found| found.header);
    headers
        .map(|header| header.attacher)
        .find(|&pid| is_attacher(pid))
}

/// Takes all probes out of a process; the caller has claimed it. Returns how many functions still have a jump, or
/// `None` if there was nothing. A process that is gone has none.
pub(crate) fn remove(pid: i32) -> Result<Option<u64>, Error> {
    match try_remove(pid) {
        Err(Error::Inject(memhook_inject::Error::TargetGone { .. })) => Ok(Some(0)),
        Err(_) if !std::path::Path::new(&format!("/proc/{pid}")).exists() => Ok(Some(0)),
        other => other,
    }
}

fn try_remove(pid: i32) -> Result<Option<u64>, Error> {
    let maps = mappings(pid)?;
    let found = areas(pid, &maps);
    let is_ours = |m: &Mapping| m.path == AREA_PATH || m.path == COUNTS_PATH;
    if !maps.iter().any(is_ours) {
        return Ok(None);
    }
    let ranges: Vec<Range<u64>> = found.iter().map(Found::range).collect();
    let mut is_unused = found.iter().all(|found| found.header.is_none());
    let mut left = 0;
    for attempt in 0..TRIES {
        let exchanges: Vec<CodeExchange> = found.iter().flat_map(|f| f.exchanges(pid)).collect();
        if exchanges.is_empty() && is_unused {
            break;
        }
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        let result = exchange_code(pid, &exchanges, &ranges, false)?;
        left = result
            .done
            .iter()
            .filter(|done| **done == Exchanged::InUse)
            .count() as u64;
        is_unused = left == 0 && result.unused.iter().all(|unused| *unused);
        if is_unused {
            break;
        }
    }
    if is_unused {
        unmap(pid, &found)?;
    }
    Ok(Some(left))
}

/// Gives the memory back. A thread that runs now cannot get to it any more.
fn unmap(pid: i32, found: &[Found]) -> Result<(), Error> {
    let mut held = hold(pid, &any_point())?;
    let maps = mappings(pid)?;
    let mut gone: Vec<Range<u64>> = Vec::new();
    for m in &maps {
        let is_area = m.path == AREA_PATH && found.iter().any(|f| f.range() == (m.start..m.end));
        let is_table = m.file_id.2 == 0
            && m.path.is_empty()
            && m.end - m.start == CountsLayout::TABLE_BYTES
            && found.iter().any(|f| f.mapping.end == m.start);
        if is_area || is_table || m.path == COUNTS_PATH {
            gone.push(m.start..m.end);
        }
    }
    for range in gone {
        held.syscall(
            libc::SYS_munmap,
            [range.start, range.end - range.start, 0, 0, 0, 0],
        )?;
    }
    held.release()?;
    Ok(())
}

/// Takes the probes out of the processes that have been forked from `pid` since they were placed.
pub(crate) fn remove_from_forked(pid: i32, areas: &[Mapping]) {
    for other in process_ids().into_iter().filter(|&other| other != pid) {
        let is_forked = mappings(other).is_ok_and(|maps| {
            maps.iter()
                .any(|m| m.path == AREA_PATH && areas.iter().any(|a| a.is_same_file(m)))
        });
        // One that another memhook-rs is at work in is left to that.
        if is_forked && let Ok(_claim) = claim(other) {
            let _ = remove(other);
        }
    }
}

/// Where the pads of a process are.
pub(crate) fn area_mappings(pid: i32) -> Vec<Mapping> {
    let mut maps = mappings(pid).unwrap_or_default();
    maps.retain(|m| m.path == AREA_PATH);
    maps
}
