//! Copies a process while it runs. Pages that the process writes during the copy are copied again. The last of them are
//! copied with all threads held.

use crate::Error;
use crate::capture::copy::{self, Patch};
use crate::capture::limits::Speed;
use crate::capture::prepared::Prepared;
use crate::capture::{HOLDS, Shot, thread_states};
use crate::ranges::{Runs, joined, run_bytes, within};
use crate::snapshot::{Area, AreaKind, CopiedRegion};
use memhook_foreign::size_text;
use memhook_inject::{Error as InjectError, Pace, Watchable, WriteWatch, to_let_go};
use memhook_process::{Mapping, has_userfaultfd, mappings};
use rustc_hash::FxHashSet;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Maximum number of rounds of copying before a hold. A round that is not shorter than the previous one is the last.
const ROUNDS: usize = 6;
/// Additional rounds for a target that writes too much in each round, because this may be only a brief burst.
const PATIENT_ROUNDS: usize = 2;
/// Amount of memory that can easily be copied within the time limit of a hold.
const SMALL_BYTES: u64 = 1 << 20;
/// Spare space for the copy during a hold, beyond the size of the last round, so that no memory has to be allocated
/// during the hold.
const SPARE_BYTES: u64 = 8 << 20;

/// Share of a hold's time that is planned for huge pages. The rest is a margin, because the copying speed is only an
/// estimate.
const SHARE_FOR_HUGE_PAGES: f64 = 0.6;
const PAGE_BYTES: u64 = 4096;

/// Adds ranges to others. Both lists are sorted.
fn add_all(runs: &mut Runs, more: Runs) {
    if runs.is_empty() {
        *runs = more;
    } else if !more.is_empty() {
        runs.extend(more);
        *runs = joined(std::mem::take(runs));
    }
}

/// State of a running copy.
struct Copying<'a> {
    prepared: &'a mut Prepared,
    watch: &'a WriteWatch,
    watched: Runs,
    /// Mappings, each with the room into which it may grow.
    wholes: Runs,
    /// Addresses at which the write watch splits mappings while it is active.
    cuts: FxHashSet<u64>,
    regions: Vec<CopiedRegion>,
    /// Pages that were reported as written and are not copied yet.
    pending: Runs,
    /// Bytes in huge pages, which are not watched. During the hold, as many of them as time allows are copied again.
    huge_bytes: u64,
    /// Ranges that could not be read. The copy tries them again at the end, when they may be readable or may no longer
    /// matter.
    unread: Runs,
    speed: Speed,
    /// Duration of one request for the list of written pages.
    asking: Duration,
}

/// Takes a snapshot by this method.
pub(crate) fn precopy(prepared: &mut Prepared, watch: &WriteWatch) -> Result<Shot, Error> {
    let mut copying = Copying::begin(prepared, watch)?;
    let mut rest = copying.all_rounds()?;
    for attempt in 1..=HOLDS {
        for _ in 0..PATIENT_ROUNDS {
            if copying.prepared.may_hold(copying.hold_for(rest)) {
                break;
            }
            rest = copying.round()?;
        }
        let needed = copying.hold_for(rest);
        if !copying.prepared.may_hold(needed) {
            let reason = format!("it writes {} while that much is copied", size_text(rest));
            return Err(copying.prepared.too_long(needed, reason));
        }
        if let Some(shot) = copying.hold(rest, attempt == HOLDS)? {
            return Ok(shot);
        }
        rest = copying.round()?;
    }
    let held = copying.prepared.held_in_vain;
    let reason = format!("held {HOLDS} times, and each time it took longer than expected");
    Err(copying.prepared.too_long(held, reason))
}

impl<'a> Copying<'a> {
    /// Makes the first copy of all memory.
    fn begin(prepared: &'a mut Prepared, watch: &'a WriteWatch) -> Result<Copying<'a>, Error> {
        let maps = mappings(prepared.reader)?;
        let areas = prepared.areas_of(&maps);
        let can = |area: &&Area| {
            matches!(
                area.kind,
                AreaKind::Brk | AreaKind::Stack | AreaKind::Anonymous | AreaKind::Shared
            )
        };
        let wanted: FxHashSet<(u64, u64)> = areas
            .iter()
            .filter(can)
            .map(|area| (area.start, area.end))
            .collect();
        let is_wanted = |m: &Mapping| wanted.contains(&(m.start, m.end));
        let (mut watched, mut runs) = (Runs::new(), Runs::new());
        let (mut wholes, mut cuts) = (Runs::new(), FxHashSet::default());
        let mut huge = Runs::new();
        // Everything skipped here is copied later, with all threads held.
        let mut pace = Pace::default();
        for found in watch.watchable(&maps, &is_wanted) {
            let (members, requested) = pace.ask(|| watch.add_all(found));
            wholes.extend(requested);
            for Watchable { part, .. } in members {
                // The first round reports every page with contents. If the request fails halfway, the reported pages
                // are copied anyway, because the hold only copies pages that are written after they were reported.
                let asked = watch.written(part.clone(), &mut runs);
                if asked.is_ok() && watch.huge(part.clone(), &mut huge).is_ok() {
                    cuts.insert(part.end);
                    watched.push(part);
                }
            }
        }
        let huge_bytes = run_bytes(&huge);
        add_all(&mut runs, huge);
        let regions = copy::regions_for(prepared.pid, &areas)?;
        let mut copying = Copying {
            prepared,
            watch,
            watched,
            wholes,
            cuts,
            regions,
            pending: runs,
            huge_bytes,
            unread: Runs::new(),
            speed: Speed::default(),
            asking: Duration::ZERO,
        };
        copying.copy()?;
        Ok(copying)
    }

    /// Returns the number of copied bytes of the target.
    fn copied(&self) -> u64 {
        self.regions.iter().map(|r| run_bytes(&r.runs)).sum()
    }

    /// Copies the pending pages. Returns the number of bytes.
    fn copy(&mut self) -> Result<u64, Error> {
        let runs = std::mem::take(&mut self.pending);
        let bytes = run_bytes(&runs);
        let added = copy::added_bytes(&runs, &self.regions);
        self.prepared.has_room(self.copied(), added)?;
        let begin = Instant::now();
        let (regions, unread) = (&mut self.regions, &mut self.unread);
        copy::copy_into(self.prepared.pid, &runs, regions, unread, None);
        self.speed.copied(bytes, begin);
        Ok(bytes)
    }

    /// Copies the pages written since the last round. Fails if the program itself has begun to use userfaultfd(2),
    /// because our watch must not interfere with the program's own use.
    fn round(&mut self) -> Result<u64, Error> {
        let pid = self.prepared.pid;
        if has_userfaultfd(pid) {
            return Err(InjectError::OwnUserfaultfd { pid }.into());
        }
        let begin = Instant::now();
        let mut written = Runs::new();
        for part in &self.watched {
            // Fails if the target has since mapped something else in this range. That mapping and all memory after it
            // are copied during the hold.
            let _ = self.watch.written(part.clone(), &mut written);
        }
        self.asking = begin.elapsed();
        add_all(&mut self.pending, written);
        self.copy()
    }

    /// Copies in rounds for as long as each round is shorter than the previous one.
    fn all_rounds(&mut self) -> Result<u64, Error> {
        let mut before = u64::MAX;
        for _ in 0..ROUNDS {
            let bytes = self.round()?;
            if bytes < SMALL_BYTES || bytes > before / 2 {
                return Ok(bytes);
            }
            before = bytes;
        }
        Ok(before)
    }

    /// Returns the number of bytes that can be copied by the given time at the measured speed, with a margin.
    fn fits_until(&self, until: Option<Instant>) -> u64 {
        let Some(until) = until else {
            return u64::MAX;
        };
        let left = until.saturating_duration_since(Instant::now());
        self.speed.bytes_in(left.mul_f64(SHARE_FOR_HUGE_PAGES))
    }

    /// Returns true if a hold has enough time to copy `bytes` bytes, provided that the threads stop immediately.
    fn fits_usually(&self, bytes: u64) -> bool {
        let limit = self.prepared.limits.hold;
        limit.is_none_or(|most| self.speed.time(bytes) <= most.mul_f64(SHARE_FOR_HUGE_PAGES))
    }

    /// Returns the length of a hold that copies the same amount as the last round did.
    fn hold_for(&self, rest: u64) -> Duration {
        self.asking + self.speed.time(rest)
    }

    /// Copies the rest with all threads held. Returns `None` if the hold took too long and was ended before the copy
    /// was complete, or if threads took so long to stop that no time was left for huge pages that would normally fit.
    /// The last attempt omits such huge pages.
    fn hold(&mut self, rest: u64, is_last: bool) -> Result<Option<Shot>, Error> {
        let pid = self.prepared.pid;
        let room = rest + rest / 4 + SPARE_BYTES;
        // The huge pages that are copied in the hold need space too.
        let limit = self.prepared.limits.hold;
        let of_huge = limit.map_or(u64::MAX, |most| self.speed.bytes_in(most));
        let huge_room = self.huge_bytes.min(of_huge);
        self.prepared.has_room(self.copied(), room + huge_room)?;
        let mut patch = Patch::with_room(room);
        let mut huge_patch = Patch::with_room(huge_room);
        let held = self.prepared.hold()?;
        let until = self.prepared.end_of(&held);
        let areas = self.prepared.areas()?;
        let (mut runs, mut huge) = (Runs::new(), Runs::new());
        let mut replaced = Runs::new();
        for area in &areas {
            let count = runs.len();
            let range = area.start..area.end;
            let asked = self.watch.written(range.clone(), &mut runs);
            if asked.is_err() || self.watch.huge(range, &mut huge).is_err() {
                runs.truncate(count);
                self.prepared.populated(area, &mut runs);
                replaced.push(area.start..area.end);
            }
        }
        // Keeps only older ranges that are still mapped.
        let mut older = std::mem::take(&mut self.pending);
        add_all(&mut older, self.unread.clone());
        add_all(&mut runs, within(&older, &areas));
        let bytes = run_bytes(&runs);
        let needed = held.held_for() + self.speed.time(bytes);
        let mut unread = Runs::new();
        let mut done = self.prepared.may_hold(needed) && patch.read(pid, &runs, &mut unread, until);
        let mut unsettled = Runs::new();
        if done {
            let (now, later) = split_at_bytes(huge, self.fits_until(until));
            unsettled = later;
            if !huge_patch.read(pid, &now, &mut unread, until) {
                huge_patch = Patch::with_room(0);
                add_all(&mut unsettled, now);
            }
            let is_hurried = !is_last && self.fits_usually(run_bytes(&unsettled));
            done = unsettled.is_empty() || !is_hurried;
        }
        let threads = thread_states(held.threads());
        if done {
            self.prepared.look(held.held_for());
            self.prepared.join_mappings(&self.cuts);
        }
        let held = held.release();
        if !done {
            // The kernel does not report these pages as written again.
            self.pending = runs;
            self.prepared.held_in_vain = self.prepared.held_in_vain.max(held);
            return Ok(None);
        }
        let regions = std::mem::take(&mut self.regions);
        let mut regions = copy::relaid(pid, regions, &areas)?;
        // A mapping that is not watched may have replaced a mapping that was copied, and may have no pages yet.
        copy::forget(&mut regions, &replaced);
        // Memory that has since become a huge page may be in both copies. All threads were held, so both are equal.
        patch.apply(&mut regions);
        huge_patch.apply(&mut regions);
        // Pages whose contents are the same before and after the hold are assumed to have had them during the hold,
        // too.
        let changes = copy::changes(pid, &unsettled, &regions);
        Ok(Some(Shot {
            threads,
            areas: joined_areas(areas, &self.cuts),
            regions,
            held,
            held_bytes: patch.len() + huge_patch.len(),
            unread,
            changes,
        }))
    }
}

/// Splits ranges into the first `bytes` bytes (whole pages) and the rest.
fn split_at_bytes(runs: Runs, bytes: u64) -> (Runs, Runs) {
    let (mut first, mut rest, mut left) = (Runs::new(), Runs::new(), bytes & !(PAGE_BYTES - 1));
    for Range { start, end } in runs {
        let middle = end.min(start.saturating_add(left));
        left -= middle - start;
        first.extend((start < middle).then_some(start..middle));
        rest.extend((middle < end).then_some(middle..end));
    }
    (first, rest)
}

/// Returns the areas as they are without the watch.
fn joined_areas(areas: Vec<Area>, cuts: &FxHashSet<u64>) -> Vec<Area> {
    let mut found: Vec<Area> = Vec::with_capacity(areas.len());
    for area in areas {
        match found.last_mut() {
            Some(last)
                if (last.end, last.kind, &last.name) == (area.start, area.kind, &area.name)
                    && cuts.contains(&area.start) =>
            {
                last.end = area.end;
            }
            _ => found.push(area),
        }
    }
    found
}

/// Unregisters the watched memory slice by slice. If the userfaultfd were simply closed, the kernel would unregister
/// all of it in one step, and threads of the process that map or unmap memory would have to wait.
impl Drop for Copying<'_> {
    fn drop(&mut self) {
        // On older kernels, any userfaultfd can unregister memory that is registered with another. Closing the
        // descriptor unregisters only our own memory ranges.
        if has_userfaultfd(self.prepared.pid) {
            return;
        }
        // The mappings are read again, because a watched mapping that has grown is watched completely.
        let maps = mappings(self.prepared.reader).unwrap_or_default();
        let is_watched = |m: &Mapping| {
            let first = self.wholes.partition_point(|whole| whole.end <= m.start);
            let whole = self.wholes.get(first);
            whole.is_some_and(|whole| whole.start < m.end)
        };
        let mut pace = Pace::default();
        for mapping in to_let_go(&maps, &is_watched) {
            // Fails if the target has unmapped the range meanwhile.
            let _ = pace.let_go(mapping, |slice| self.watch.remove(slice));
        }
    }
}
