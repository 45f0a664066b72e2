//! Copying a process while it runs: what it writes meanwhile is copied again, at last with all
//! threads held.

use crate::Error;
use crate::capture::{Prepared, Shot, thread_states};
use crate::copy::{self, Patch, Runs, add_run};
use crate::snapshot::AreaKind;
use memhook_inject::WriteWatch;

/// Rounds of copying before the hold; each is shorter than the one before, or it is the last.
const ROUNDS: usize = 6;
/// Little enough to be copied while the threads are held (about 0.3 ms).
const SMALL_BYTES: u64 = 1 << 20;

/// Takes a snapshot this way.
pub(crate) fn precopy(prepared: &mut Prepared, watch: &WriteWatch) -> Result<Shot, Error> {
    let pid = prepared.pid;
    let areas = prepared.areas()?;
    let mut watched = Vec::new();
    let mut runs = Runs::new();
    for area in &areas {
        let can = matches!(
            area.kind,
            AreaKind::Brk | AreaKind::Stack | AreaKind::Anonymous | AreaKind::Shared
        );
        let count = runs.len();
        // The first round gives everything there is.
        let armed = can
            && watch.add(area.start, area.end).is_ok()
            && watch.written(area.start, area.end, &mut runs).is_ok();
        if !armed {
            runs.truncate(count);
        }
        if armed {
            watched.push(area.clone());
        }
    }
    let mut regions = copy::regions_for(&areas);
    // Read again at last: it may be there by then, or no longer matter.
    let mut unread = Runs::new();
    copy::copy_into(pid, &runs, &mut regions, &mut unread);
    let mut before = copy::run_bytes(&runs);
    for _ in 0..ROUNDS {
        let mut runs = Runs::new();
        for area in &watched {
            // Fails where the target has unmapped it meanwhile.
            let _ = watch.written(area.start, area.end, &mut runs);
        }
        let bytes = copy::run_bytes(&runs);
        copy::copy_into(pid, &runs, &mut regions, &mut unread);
        if bytes < SMALL_BYTES || bytes * 2 > before {
            break;
        }
        before = bytes;
    }
    let held = prepared.hold()?;
    let areas = prepared.areas()?;
    let mut runs = Runs::new();
    for area in &areas {
        let count = runs.len();
        if watch.written(area.start, area.end, &mut runs).is_err() {
            runs.truncate(count);
            prepared.populated(area, &mut runs);
        }
        for &(from, to) in &unread {
            let (from, to) = (from.max(area.start), to.min(area.end));
            if from < to {
                add_run(&mut runs, (from, to));
            }
        }
    }
    unread.clear();
    let patch = Patch::read(pid, runs, &mut unread);
    let threads = thread_states(held.threads());
    let held = held.release();
    let mut regions = copy::relaid(regions, &areas);
    patch.apply(&mut regions);
    Ok(Shot {
        threads,
        areas,
        regions,
        held,
        held_bytes: patch.len(),
        unread,
    })
}
