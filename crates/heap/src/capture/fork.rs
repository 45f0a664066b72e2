//! Copies a process from a frozen child, which the process is made to fork while all its threads
//! are held.

use crate::Error;
use crate::capture::copy::{self, Changes, Patch};
use crate::capture::prepared::Prepared;
use crate::capture::{HOLDS, Shot, thread_states};
use crate::ranges::{Runs, add_run, intersection, run_bytes, within};
use crate::room::Room;
use memhook_foreign::size_text;
use memhook_inject::ForkPlan;
use memhook_process::{has_userfaultfd, is_watched_by_userfaultfd};
use std::time::Duration;

/// Upper bound on the time per page of two forks, which copy its page table entry and count it.
const PAGE_TIME: Duration = Duration::from_nanos(250);
const PAGE_BYTES: u64 = 4096;

/// Takes a snapshot by this method.
pub(crate) fn fork(prepared: &mut Prepared) -> Result<Shot, Error> {
    let pid = prepared.pid;
    let plan = ForkPlan::of(pid)?;
    has_room(prepared)?;
    let smaps = read_smaps(pid)?;
    if has_userfaultfd(pid) || is_watched_by_userfaultfd(&smaps) {
        let reason =
            "its userfaultfd may ask for fork events, and a fork would wait for their reader";
        return Err(memhook_inject::Error::NoFork { pid, reason }.into());
    }
    let not_inherited = not_inherited(&smaps);
    let time = |bytes: u64| PAGE_TIME.mul_f64((bytes / PAGE_BYTES) as f64);
    let needed = time(prepared.populated_bytes);
    let reason = format!("{} are to be shared", size_text(prepared.populated_bytes));
    if !prepared.may_hold(needed) {
        return Err(prepared.too_long(needed, reason));
    }
    for _ in 0..HOLDS {
        let mut held = prepared.hold()?;
        let until = prepared.end_of(&held);
        let areas = prepared.areas()?;
        let threads = thread_states(held.threads());
        let mut runs = Runs::new();
        for area in &areas {
            prepared.populated(area, &mut runs);
        }
        let mut unread = Runs::new();
        let mut patch = Patch::with_room(0);
        // This check comes first, because the fork can still be abandoned at this point.
        let lost = intersection(&runs, &within(&not_inherited, &areas));
        let done = prepared.may_hold(held.held_for() + time(run_bytes(&runs)))
            && patch.read(pid, &lost, &mut unread, until);
        if !done {
            prepared.held_in_vain = prepared.held_in_vain.max(held.release());
            continue;
        }
        // This step comes before the fork, because the copy will share the pages.
        prepared.look(held.held_for());
        let copy = held.fork(&plan)?;
        let held = held.release();
        let mut regions = copy::regions_for(pid, &areas)?;
        let mut not_in_copy = Runs::new();
        copy::copy_into(copy.pid(), &runs, &mut regions, &mut not_in_copy, None);
        drop(copy);
        patch.apply(&mut regions);
        let patched = |start| not_inherited.iter().any(|n| n.contains(&start));
        let pages = not_in_copy.into_iter().flat_map(|r| r.step_by(4096));
        for page in pages.filter(|&page| !patched(page)) {
            add_run(&mut unread, page..page + 4096);
        }
        return Ok(Shot {
            threads,
            areas,
            regions,
            held,
            held_bytes: patch.len(),
            unread,
            changes: Changes::default(),
        });
    }
    Err(prepared.too_long(prepared.held_in_vain, reason))
}

/// Checks the memory for the fork. Until the copy is made, each page that the target writes to
/// takes up one more page, and the target may be killed for exceeding the limit of its memory
/// cgroup.
fn has_room(prepared: &Prepared) -> Result<(), Error> {
    // Twice the copied pages, plus a share for the search: our copy may be charged to the same
    // memory.
    let needed = prepared.populated_bytes.saturating_mul(9) / 4;
    match Room::for_process(prepared.pid) {
        Some(room) if room.bytes < needed => Err(Error::NoRoomToFork {
            pid: prepared.pid,
            needed: prepared.populated_bytes,
            room,
        }),
        _ => Ok(()),
    }
}

/// Reads smaps as raw bytes, because paths in it need not be valid text.
fn read_smaps(pid: i32) -> Result<String, Error> {
    let path = format!("/proc/{pid}/smaps");
    let bytes = std::fs::read(&path).map_err(|error| Error::Unread { path, error })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the mappings that a child does not inherit, or inherits without contents: flags `dc`
/// (MADV_DONTFORK) and `wf` (MADV_WIPEONFORK) of proc_pid_smaps(5).
pub(crate) fn not_inherited(smaps: &str) -> Runs {
    let mut found = Runs::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let lost = flags.split_whitespace().any(|f| f == "dc" || f == "wf");
            if let (Some(range), true) = (current.clone(), lost) {
                add_run(&mut found, range);
            }
        } else if let Some((range, _)) = line.split_once(' ')
            && let Some((start, end)) = range.split_once('-')
        {
            let address = |text| u64::from_str_radix(text, 16).ok();
            current = address(start)
                .zip(address(end))
                .map(|(start, end)| start..end);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_does_not_get() {
        let smaps = "\
1000-3000 rw-p 00000000 00:00 0
Size:                  8 kB
VmFlags: rd wr mr mw me dc ac
3000-4000 rw-p 00000000 00:00 0
VmFlags: rd wr mr mw me ac
8000-9000 rw-p 00000000 00:00 0                          [heap]
VmFlags: rd wr mr mw me wf
";
        assert_eq!(not_inherited(smaps), [0x1000..0x3000, 0x8000..0x9000]);
    }
}
