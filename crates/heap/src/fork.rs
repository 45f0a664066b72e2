//! Copying a process from a frozen child that it forks with all threads held.

use crate::Error;
use crate::capture::{Prepared, Shot, thread_states};
use crate::copy::{self, Patch, Runs, add_run};
use crate::snapshot::Area;
use memhook_inject::ForkPlan;

/// Takes a snapshot this way.
pub(crate) fn fork(prepared: &mut Prepared) -> Result<Shot, Error> {
    let pid = prepared.pid;
    let plan = ForkPlan::of(pid)?;
    let not_inherited = not_inherited(&read_smaps(pid)?);
    let mut held = prepared.hold()?;
    let areas = prepared.areas()?;
    let threads = thread_states(held.threads());
    let mut runs = Runs::new();
    for area in &areas {
        prepared.populated(area, &mut runs);
    }
    let copy = held.fork(&plan)?;
    let mut unread = Runs::new();
    let patch = Patch::read(pid, within(&not_inherited, &areas), &mut unread);
    let held = held.release();
    let mut regions = copy::regions_for(&areas);
    let mut not_in_copy = Runs::new();
    copy::copy_into(copy.pid(), &runs, &mut regions, &mut not_in_copy);
    drop(copy);
    patch.apply(&mut regions);
    let patched = |start| not_inherited.iter().any(|n| n.0 <= start && start < n.1);
    let pages = not_in_copy.iter().flat_map(|r| (r.0..r.1).step_by(4096));
    for page in pages.filter(|&page| !patched(page)) {
        add_run(&mut unread, (page, page + 4096));
    }
    Ok(Shot {
        threads,
        areas,
        regions,
        held,
        held_bytes: patch.len(),
        unread,
    })
}

/// Raw bytes: paths in it may be no text.
fn read_smaps(pid: i32) -> Result<String, Error> {
    let read = std::fs::read(format!("/proc/{pid}/smaps"));
    let bytes = read.map_err(|source| Error::Unread { pid, source })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Mappings that a child does not get, or gets empty: flags `dc` (MADV_DONTFORK) and `wf`
/// (MADV_WIPEONFORK) of proc_pid_smaps(5).
pub(crate) fn not_inherited(smaps: &str) -> Runs {
    let mut found = Runs::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let lost = flags.split_whitespace().any(|f| f == "dc" || f == "wf");
            if let (Some(range), true) = (current, lost) {
                add_run(&mut found, range);
            }
        } else if let Some((range, _)) = line.split_once(' ')
            && let Some((start, end)) = range.split_once('-')
        {
            let address = |text| u64::from_str_radix(text, 16).ok();
            current = address(start).zip(address(end));
        }
    }
    found
}

/// The parts of the ranges that are in areas.
fn within(ranges: &Runs, areas: &[Area]) -> Runs {
    let mut found = Runs::new();
    for area in areas {
        for &(start, end) in ranges {
            let (start, end) = (start.max(area.start), end.min(area.end));
            if start < end {
                add_run(&mut found, (start, end));
            }
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
        assert_eq!(not_inherited(smaps), [(0x1000, 0x3000), (0x8000, 0x9000)]);
    }
}
