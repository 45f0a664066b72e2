//! Holds a thread at a point where it may call the loader.

use super::musl_sleepers::MuslSleepers;
use super::reach::Reach;
use super::safe_places::SafePlaces;
use crate::hook::object::hook_images;
use crate::unwinding::tables::UnwindTables;
use memhook_inject::{Error, Held, HoldOptions, Others, Registers, wait_for_late_threads};
use memhook_process::{ModuleImage, RemoteAddress, loader_ranges, mappings, read_word, vdso};
use memhook_unwind::{TableModule, walk};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Time limit for finding a thread outside the loader.
pub const SAFE_POINT_PATIENCE: Duration = Duration::from_secs(5);

/// Number of attempts to load the hook while all other threads are stopped.
const STILL_TRIES: u32 = 3;
/// Longest wait for threads that did not stop in time. A thread whose uninterruptible sleep lasts longer is released
/// later.
const LATE_PATIENCE: Duration = Duration::from_millis(500);

/// Interval between checks of a loader lock that is taken.
const LOCKED_PAUSE: Duration = Duration::from_millis(20);

/// Points at which a thread of a process can safely be made to call the loader.
pub struct SafePoints {
    modules: Vec<TableModule>,
    places: SafePlaces,
    loader: Vec<Range<u64>>,
    musl: Option<MuslSleepers>,
}

impl SafePoints {
    /// Creates the safe points of a process from its modules and their compiled unwind tables. If the process contains
    /// a hook, the hook must be one of the modules: a thread may block for a long time in read(2), called by a wrapper,
    /// even after the detach.
    pub fn new(tables: &UnwindTables, modules: &[ModuleImage]) -> SafePoints {
        SafePoints {
            modules: tables.table_modules(modules),
            places: SafePlaces::among(modules),
            loader: loader_ranges(modules),
            musl: None,
        }
    }

    /// Creates the safe points of a running, untraced process with these modules.
    ///
    /// # Errors
    /// The process's mappings cannot be read.
    pub fn of_process(
        pid: i32,
        mut modules: Vec<ModuleImage>,
    ) -> Result<SafePoints, memhook_process::Error> {
        let maps = mappings(pid)?;
        modules.extend(vdso(pid, &maps));
        modules.extend(hook_images(pid, &maps));
        let mut tables = UnwindTables::default();
        tables.find_or_compile(&modules);
        Ok(SafePoints {
            musl: MuslSleepers::of(pid, &modules, maps),
            ..SafePoints::new(&tables, &modules)
        })
    }

    /// Returns the reason if no thread will ever be at a safe point.
    pub fn never(&self) -> Option<&'static str> {
        self.places.never()
    }

    /// Returns true if a thread that sleeps at `pc` with the stack at `sp` is certainly at a safe point.
    pub fn is_safe_asleep(&self, pid: i32, (pc, sp): (u64, u64)) -> bool {
        let read = |address| read_word(pid, RemoteAddress(address));
        let start = (pc, sp, UNKNOWN_FRAME_POINTER);
        self.places.check(&self.modules, start, &read).is_ok()
    }

    /// Returns true if a thread certainly sleeps inside the loader.
    pub fn sleeps_in_the_loader(&self, pid: i32, (pc, sp): (u64, u64)) -> bool {
        let read = |address| read_word(pid, RemoteAddress(address));
        let start = (pc, sp, UNKNOWN_FRAME_POINTER);
        let (frames, _) = walk(&self.modules, start, &read, 256);
        is_within(&frames, &self.loader)
    }

    /// Holds a thread at a safe point, to call functions that may take any lock.
    pub fn hold(&self, reach: &mut Reach<'_>, pid: i32, deadline: Duration) -> Result<Held, Error> {
        let judge = |registers: &Registers, read: &dyn Fn(u64) -> Option<u64>| {
            let start = (registers.rip, registers.rsp, registers.rbp);
            self.places.check(&self.modules, start, read)
        };
        hold_where(reach, pid, &judge, deadline)
    }

    /// Like [`SafePoints::hold`], but for calls to an allocator's functions, musl's included. The safe points must come
    /// from [`SafePoints::of_process`].
    pub fn hold_to_free(
        &self,
        reach: &mut Reach<'_>,
        pid: i32,
        deadline: Duration,
    ) -> Result<Held, Error> {
        let judge = |registers: &Registers, read: &dyn Fn(u64) -> Option<u64>| {
            let start = (registers.rip, registers.rsp, registers.rbp);
            self.places.check(&self.modules, start, read)?;
            let call = registers.orig_rax as i64;
            let musl = self.musl.as_ref();
            musl.map_or(Ok(()), |musl| musl.check(call, registers.rsp))
        };
        hold_where(reach, pid, &judge, deadline)
    }

    /// Like [`SafePoints::hold`], but at a moment when no thread holds the loader's locks. The other threads are
    /// stopped too, so that none of them takes the locks or touches our descriptors before the hook is loaded. If
    /// stopping them takes more than 10 ms three times in a row, or if one of them is inside the loader, they keep
    /// running. Fails with [`Error::CallTimeout`] if the locks stay taken until the deadline.
    pub fn hold_to_load(
        &self,
        reach: &mut Reach<'_>,
        pid: i32,
        deadline: Duration,
    ) -> Result<Held, Error> {
        let until = Instant::now() + SAFE_POINT_PATIENCE;
        let mut tries = STILL_TRIES;
        loop {
            let others = Others::of(pid);
            let mut held = self.hold(reach, pid, deadline)?;
            let mut asked = held.ask_for_loader_locks();
            if asked.is_ok() && tries > 0 {
                if held.stop_others(&others)? {
                    asked = held.ask_for_loader_locks();
                    // A stopped thread is inside the loader. If that happens repeatedly, as in a process that
                    // continuously loads plugins, the other threads are left running.
                    tries -= u32::from(asked.is_err());
                } else if others.can_be_stopped() {
                    tries -= 1;
                    held.release()?;
                    // Each of them stays stopped until this wait sees it.
                    wait_for_late_threads(LATE_PATIENCE);
                    continue;
                }
            }
            match asked {
                Err(Error::CallTimeout { .. }) if Instant::now() < until => {
                    held.release()?;
                    std::thread::sleep(LOCKED_PAUSE);
                }
                asked => return asked.map(|()| held),
            }
        }
    }

    /// Holds a thread that is outside the loader, for dl_iterate_phdr(3), which allocates nothing and takes only a lock
    /// that no code outside the loader takes.
    pub fn hold_outside_of_the_loader(
        &self,
        reach: &mut Reach<'_>,
        pid: i32,
        deadline: Duration,
    ) -> Result<Held, Error> {
        let judge = |registers: &Registers, read: &dyn Fn(u64) -> Option<u64>| {
            let start = (registers.rip, registers.rsp, registers.rbp);
            let frames = unwind_for_safety(&self.modules, &self.loader, start, read);
            match is_within(&frames, &self.loader) {
                true => Err(format!("is inside the loader at {:#x}", start.0)),
                false => Ok(()),
            }
        };
        hold_where(reach, pid, &judge, deadline)
    }
}

/// Placeholder for the unknown frame pointer of a running thread. A backtrace that needs the frame pointer thus never
/// reaches the end.
const UNKNOWN_FRAME_POINTER: u64 = 0;

fn hold_where(
    reach: &mut Reach<'_>,
    pid: i32,
    judge: memhook_inject::Judge<'_>,
    deadline: Duration,
) -> Result<Held, Error> {
    let options = HoldOptions {
        judge: Some(judge),
        thread: None,
        deadline,
    };
    reach.hold(pid, &options)
}

/// The return address of a call at the end of a range is directly after the range.
fn is_within(frames: &[u64], ranges: &[Range<u64>]) -> bool {
    let is_in = |address: u64| ranges.iter().any(|range| range.contains(&address));
    let (innermost, callers) = frames.split_at(1);
    innermost.iter().any(|&pc| is_in(pc)) || callers.iter().any(|pc| is_in(pc.wrapping_sub(1)))
}

/// Number of bytes of stack above a lost frame to search.
const SEARCH_BYTES: u64 = 16 * 1024;

/// Returns the frames of a thread that has stopped with (pc, sp, rbp). If unwinding fails at some point, every word
/// further up that points into `ranges` counts as a frame, because it may be a return address.
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
