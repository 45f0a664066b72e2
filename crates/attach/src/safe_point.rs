//! Code in which a thread may hold a lock that `dlopen` needs.

use crate::hook_object::hook_images;
use crate::reach::Reach;
use crate::unwind_tables::UnwindTables;
use memhook_inject::{Error, Held, HoldOptions, Registers};
use memhook_process::{ModuleImage, RemoteAddress, mappings, read_word, unsafe_ranges, vdso};
use memhook_unwind::{TableModule, walk};
use std::{ops::Range, time::Duration};

/// How long a thread outside of the loader is looked for.
pub const SAFE_POINT_PATIENCE: Duration = Duration::from_secs(5);

/// Where a thread of one process may be made to call the loader.
pub struct SafePoints {
    modules: Vec<TableModule>,
    ranges: Vec<Range<u64>>,
}

impl SafePoints {
    /// In a process with these modules, whose tables are compiled. A hook that is there is one of them: a thread may
    /// wait for a long time in a wrapper's call of read(2), also after the detach.
    pub fn new(tables: &UnwindTables, modules: &[ModuleImage]) -> SafePoints {
        SafePoints {
            modules: tables.table_modules(modules),
            ranges: unsafe_ranges(modules),
        }
    }

    /// In a running process that is not traced, with these modules.
    ///
    /// # Errors
    /// When the process's mappings cannot be read.
    pub fn of_process(
        pid: i32,
        mut modules: Vec<ModuleImage>,
    ) -> Result<SafePoints, memhook_process::Error> {
        let maps = mappings(pid)?;
        modules.extend(vdso(pid, &maps));
        modules.extend(hook_images(pid, &maps));
        let mut tables = UnwindTables::default();
        tables.find_or_compile(&modules);
        Ok(SafePoints::new(&tables, &modules))
    }

    /// Whether a thread that sleeps at `pc` with the stack at `sp` is certainly at one.
    pub fn is_safe_asleep(&self, pid: i32, at: (u64, u64)) -> bool {
        let (frames, is_complete) = self.frames_asleep(pid, at);
        is_complete && !is_within(&frames, &self.ranges)
    }

    /// Whether one certainly sleeps inside of a call of something in `ranges`.
    pub fn sleeps_within(&self, pid: i32, at: (u64, u64), ranges: &[Range<u64>]) -> bool {
        is_within(&self.frames_asleep(pid, at).0, ranges)
    }

    /// Its frame pointer is not known, so that a backtrace that needs it comes to no end.
    fn frames_asleep(&self, pid: i32, (pc, sp): (u64, u64)) -> (Vec<u64>, bool) {
        let read = |address| read_word(pid, RemoteAddress(address));
        walk(&self.modules, (pc, sp, 0), &read, 256)
    }

    /// Holds a thread at one.
    pub fn hold(&self, reach: &mut Reach<'_>, pid: i32, deadline: Duration) -> Result<Held, Error> {
        let unwind = |registers: &Registers, read: &dyn Fn(u64) -> Option<u64>| {
            let start = (registers.rip, registers.rsp, registers.rbp);
            unwind_for_safety(&self.modules, &self.ranges, start, read)
        };
        let options = HoldOptions {
            need_safe_point: true,
            thread: None,
            deadline,
            unsafe_ranges: self.ranges.clone(),
            unwind: Some(&unwind),
        };
        reach.hold(pid, &options)
    }
}

/// The return address of a call at the end of a range lies just behind it.
fn is_within(frames: &[u64], ranges: &[Range<u64>]) -> bool {
    let is_in = |address: u64| ranges.iter().any(|range| range.contains(&address));
    let (innermost, callers) = frames.split_at(1);
    innermost.iter().any(|&pc| is_in(pc)) || callers.iter().any(|pc| is_in(pc.wrapping_sub(1)))
}

/// How much of the stack above a lost frame is searched, in bytes.
const SEARCH_BYTES: u64 = 16 * 1024;

/// The frames of a thread that has stopped with (pc, sp, rbp). Where unwinding loses its way, every
/// word further up that points into `ranges` counts as a frame: it may be one.
pub fn unwind_for_safety(
    modules: &[TableModule],
    ranges: &[Range<u64>],
    start: (u64, u64, u64),
    read: &dyn Fn(u64) -> Option<u64>,
) -> Vec<u64> {
    let (mut frames, complete) = walk(modules, start, read, 256);
    if !complete {
        let words = (0..SEARCH_BYTES / 8).map_while(|i| read((start.1 & !7).checked_add(i * 8)?));
        frames.extend(words.filter(|w| ranges.iter().any(|range| range.contains(w))));
    }
    frames
}
