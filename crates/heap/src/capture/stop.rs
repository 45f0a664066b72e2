//! Copies a process with all its threads held throughout.

use crate::Error;
use crate::capture::copy::{self, Changes, Patch};
use crate::capture::limits::Speed;
use crate::capture::prepared::Prepared;
use crate::capture::{HOLDS, Shot, thread_states};
use crate::ranges::{Runs, run_bytes};
use crate::snapshot::AreaKind;
use memhook_foreign::size_text;
use std::slice::from_ref;
use std::time::{Duration, Instant};

/// Bytes that are copied to measure the speed.
const SAMPLE_BYTES: u64 = 16 << 20;

/// Copies all memory of a stopped process in one pass. Returns `None` if the time limit `until`
/// passed first.
pub(crate) fn copy_all(
    prepared: &mut Prepared,
    until: Option<Instant>,
) -> Result<Option<Shot>, Error> {
    let areas = prepared.areas()?;
    let mut regions = copy::regions_for(prepared.pid, &areas)?;
    let mut runs = Runs::new();
    for area in &areas {
        prepared.populated(area, &mut runs);
    }
    let bytes = run_bytes(&runs);
    prepared.has_room(0, bytes)?;
    let mut unread = Runs::new();
    let done = copy::copy_into(prepared.reader, &runs, &mut regions, &mut unread, until);
    Ok(done.then_some(Shot {
        threads: Vec::new(),
        areas,
        held: Duration::ZERO,
        held_bytes: bytes,
        regions,
        unread,
        changes: Changes::default(),
    }))
}

/// Takes a snapshot by this method.
pub(crate) fn stop(prepared: &mut Prepared) -> Result<Shot, Error> {
    let needed = speed(prepared)?.time(prepared.populated_bytes);
    let reason = || format!("{} are to be copied", size_text(prepared.populated_bytes));
    if !prepared.may_hold(needed) {
        return Err(prepared.too_long(needed, reason()));
    }
    let reason = reason();
    for _ in 0..HOLDS {
        let held = prepared.hold()?;
        let until = prepared.end_of(&held);
        if let Some(mut shot) = copy_all(prepared, until)? {
            shot.threads = thread_states(held.threads());
            prepared.look(held.held_for());
            shot.held = held.release();
            return Ok(shot);
        }
        prepared.held_in_vain = prepared.held_in_vain.max(held.release());
    }
    Err(prepared.too_long(prepared.held_in_vain, reason))
}

/// Measures the speed of copying on a part of this process.
pub(crate) fn speed(prepared: &mut Prepared) -> Result<Speed, Error> {
    let areas = prepared.areas()?;
    let mut speed = Speed::default();
    let mut left = SAMPLE_BYTES;
    for area in areas.iter().filter(|a| a.kind != AreaKind::File) {
        let mut runs = Runs::new();
        prepared.populated(area, &mut runs);
        for run in runs {
            let run = run.start..run.end.min(run.start.saturating_add(left));
            let mut part = Patch::with_room(0);
            let begin = Instant::now();
            // The destination is freshly mapped memory, as in the real copy.
            if part.read(prepared.reader, from_ref(&run), &mut Runs::new(), None) {
                speed.copied(run.end - run.start, begin);
            }
            left -= run.end - run.start;
            if left == 0 {
                return Ok(speed);
            }
        }
    }
    Ok(speed)
}
