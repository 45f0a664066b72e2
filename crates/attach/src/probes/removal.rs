//! Removes probes from a process. They may have been placed by this run, by a killed attacher, or by the attacher of a
//! process that forked this one.
//!
//! If we die during the removal, nothing is lost. The journal stays as long as the pads, and both are unmapped only
//! after no function leads to them and no thread is in them.

use crate::claim::claim;
use crate::error::Error;
use crate::hold::code_exchanges::pause_after;
use crate::hook::presence::any_point;
use crate::leave::probe_areas::{AREA_PATH, CODE_PATH, Found, areas, is_of_probes};
use memhook_inject::{CodeExchange, Exchanged, exchange_code, hold, memory_of_code};
use memhook_probe::CountsLayout;
use memhook_process::{Mapping, mappings, process_ids};
use std::ops::Range;
use std::time::Duration;

/// Number of attempts if threads are executing the code.
const TRIES: u32 = 20;

/// Removes all probes from a process that the caller has claimed. Returns the number of functions that still have a
/// jump, or `None` if there were no probes or the process is gone.
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
    if !maps.iter().any(is_of_probes) {
        return Ok(None);
    }
    let called = maps.iter().filter(|m| m.path == CODE_PATH);
    let called = called.map(|m| m.start..m.end);
    let ranges: Vec<Range<u64>> = found.iter().map(Found::range).chain(called).collect();
    let own: u64 = found.iter().map(|found| found.own_jumps(pid, &maps)).sum();
    let mut is_unused = found.iter().all(|found| found.header.is_none());
    let (mut left, mut held) = (0, Duration::ZERO);
    for attempt in 0..TRIES {
        let maps = mappings(pid)?;
        let of = |f| Found::exchanges(f, pid, &maps);
        let exchanges: Vec<CodeExchange> = found.iter().flat_map(of).collect();
        if exchanges.is_empty() && is_unused {
            break;
        }
        if attempt > 0 {
            std::thread::sleep(pause_after(held));
        }
        let memory = memory_of_code(pid)?;
        let result = exchange_code(pid, &memory, &exchanges, &ranges, false)?;
        held = result.held;
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
    if is_unused && own == 0 {
        unmap(pid, &found)?;
    }
    Ok(Some(left + own))
}

/// Unmaps the memory. Running threads can no longer reach it.
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
        // An area that has changed since it was read is left to the next run.
        if is_area || is_table || (m.path != AREA_PATH && is_of_probes(m)) {
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

/// Removes the probes from the processes that were forked from `pid` since they were placed.
pub(crate) fn remove_from_forked(pid: i32, areas: &[Mapping]) {
    for other in process_ids().into_iter().filter(|&other| other != pid) {
        let is_forked = mappings(other).is_ok_and(|maps| {
            maps.iter()
                .any(|m| m.path == AREA_PATH && areas.iter().any(|a| a.is_same_file(m)))
        });
        // If another memhook-rs is working on a process, the process is left to it.
        if is_forked && let Ok(_claim) = claim(other) {
            let _ = remove(other);
        }
    }
}
