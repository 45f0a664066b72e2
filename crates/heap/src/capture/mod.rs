//! Taking a snapshot.

mod areas;
mod copy;
pub(crate) mod core_dump;
mod exit_frames;
pub(crate) mod fork;
pub(crate) mod kernel_words;
pub(crate) mod limits;
pub(crate) mod modules;
mod pagemap;
mod pipes;
mod precopy;
pub(crate) mod residency;
pub(crate) mod settle;
mod shared_pages;
mod shared_segments;
pub(crate) mod sockets;
mod stop;

use crate::capture::areas::areas;
use crate::capture::exit_frames::innermost_caller;
use crate::capture::fork::fork;
use crate::capture::kernel_words::{KernelWords, kernel_words};
use crate::capture::limits::Limits;
use crate::capture::modules::{module_info, vtable_names};
use crate::capture::precopy::precopy;
use crate::capture::residency::{Look, Residency};
use crate::capture::settle::{MallocPlaces, hold_settled, is_inside};
use crate::capture::shared_pages::add_untouched;
use crate::capture::stop::{copy_all, stop};
use crate::graph::roots::dead_stacks;
use crate::ranges::{Runs, run_bytes, without};
use crate::room::Room;
use crate::snapshot::inside_malloc_note;
use crate::snapshot::{
    Area, AreaKind, CopiedRegion, Meta, Method, ModuleInfo, Snapshot, ThreadState, words,
};
use crate::{Error, Types, dissect};
use memhook_inject::{
    AllHeld, Child, InVain, PageScan, PageState, Registers, WriteWatch, memory_sharers,
};
use memhook_process::{
    ModuleFiles, ModuleImage, filter_may_kill, living_thread, mappings, modules,
};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};
use tracing::info;

/// The search of a copy takes a quarter of the copy's size beside it: two bits for 16 bytes of heap, and
/// bounds and marks of each block.
const SEARCH_SHARE: u64 = 4;
/// How often threads are held again after a hold that was too long.
pub(crate) const HOLDS: usize = 3;

/// A snapshot, and the files of the modules for looking up names.
pub struct Captured {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// The modules with their bytes.
    pub images: Vec<ModuleImage>,
    /// Which pages were in memory, if that was asked for.
    pub residency: Option<Residency>,
}

impl Captured {
    /// Adds the names of all classes in the heap to the snapshot: to find them takes the modules' files,
    /// which a machine that reads the snapshot may not have.
    pub fn name_classes(&mut self) -> Result<(), Error> {
        let snapshot = &self.snapshot;
        let heap = dissect(snapshot)?;
        let mut types = Types::new(snapshot, &self.images);
        for (_, block) in heap.blocks.iter() {
            if let Some(word) = snapshot.word(block.address) {
                types.class(word);
            }
        }
        let learnt: Vec<_> = types.learnt().collect();
        self.snapshot.meta.classes.extend(learnt);
        Ok(())
    }
}

/// What is known of the target before any thread is held.
pub(crate) struct Prepared {
    pub pid: i32,
    /// By which its memory and its files are read: its id, or that of a thread that lives.
    pub reader: i32,
    begin: Instant,
    images: Vec<ModuleImage>,
    modules: Vec<ModuleInfo>,
    pub pages: Option<PageScan>,
    kernel: KernelWords,
    pub notes: Vec<String>,
    /// Mappings left out.
    unsearched: Vec<Area>,
    /// Threads inside malloc at the hold.
    in_malloc: u32,
    /// What the snapshot may cost.
    pub limits: Limits,
    /// Bytes to be copied, as they were at the start.
    pub populated_bytes: u64,
    /// The longest hold that did not lead to a copy.
    pub held_in_vain: Duration,
    /// Methods that did not work.
    failed: Vec<(Method, Error)>,
    /// Which pages are in memory.
    look: Look,
}

impl Prepared {
    fn of(pid: i32, limits: Limits) -> Result<Prepared, Error> {
        let begin = Instant::now();
        let reader = living_thread(pid);
        let images = modules(reader, &mappings(reader)?, &mut ModuleFiles::new())?;
        let mut prepared = Prepared {
            begin,
            limits,
            // Asked once more after the hold: an entry that is there at the hold is in one of the two answers,
            // or comes and goes meanwhile.
            kernel: kernel_words(reader),
            ..Prepared::with(pid, images)
        };
        prepared.check_room()?;
        Ok(prepared)
    }

    /// Fails if the copy would not fit into memory: before any thread is held.
    fn check_room(&mut self) -> Result<(), Error> {
        let mut runs = Runs::new();
        for area in &self.areas()? {
            self.populated(area, &mut runs);
        }
        self.populated_bytes = run_bytes(&runs);
        self.has_room(0, self.populated_bytes)
    }

    /// Fails if there is no room for so much beside what is copied already, with what the search takes.
    pub fn has_room(&self, copied: u64, more: u64) -> Result<(), Error> {
        let with_search = |bytes: u64| bytes + bytes / SEARCH_SHARE;
        // What was asked for includes what is copied already; what is available does not.
        let needed = match self.limits.memory {
            Some(_) => with_search(copied + more),
            None => with_search(more),
        };
        match Room::for_copy(self.limits.memory) {
            Some(room) if room.bytes < needed => Err(Error::NoRoom {
                pid: self.pid,
                needed: with_search(copied + more),
                room,
            }),
            _ => Ok(()),
        }
    }

    /// The error for a hold that would take so long, or took it.
    pub fn too_long(&self, needed: Duration, reason: String) -> Error {
        let allowed = self.limits.hold.unwrap_or(Duration::MAX);
        Error::TooLong {
            needed_ms: needed.max(allowed).as_secs_f64() * 1e3,
            allowed_ms: allowed.as_secs_f64() * 1e3,
            reason,
        }
    }

    /// Whether a hold of this length is allowed.
    pub fn may_hold(&self, time: Duration) -> bool {
        self.limits.hold.is_none_or(|most| time <= most)
    }

    /// When a hold has to end.
    pub fn end_of(&self, held: &AllHeld) -> Option<Instant> {
        let most = self.limits.hold?;
        Some(Instant::now() + most.saturating_sub(held.held_for()))
    }

    fn with(pid: i32, images: Vec<ModuleImage>) -> Prepared {
        let reader = living_thread(pid);
        Prepared {
            pid,
            reader,
            begin: Instant::now(),
            modules: images.iter().map(module_info).collect(),
            images,
            pages: PageScan::open(reader).ok(),
            kernel: KernelWords::default(),
            notes: Vec::new(),
            unsearched: Vec::new(),
            in_malloc: 0,
            limits: Limits::NONE,
            populated_bytes: 0,
            held_in_vain: Duration::ZERO,
            failed: Vec::new(),
            look: Look::No,
        }
    }

    fn malloc(&self) -> MallocPlaces {
        MallocPlaces::of(self.modules.iter().find(|m| m.glibc_minor.is_some()))
    }

    /// Notes why another method is used; an error if none can help.
    fn fall_back(&mut self, method: Method, instead: &str, error: Error) -> Result<(), Error> {
        match &error {
            Error::Inject(memhook_inject::Error::TargetGone { .. }) => return Err(error),
            Error::Inject(_) | Error::TooLong { .. } | Error::NoRoomToFork { .. } => {}
            _ => return Err(error),
        }
        let name = method.name();
        info!(pid = self.pid, method = name, %error, "no snapshot in this way");
        self.notes
            .push(format!("no {name}, {instead} instead: {error}"));
        self.failed.push((method, error));
        Ok(())
    }

    /// The error if each method would take too long, or fails.
    fn no_way(&mut self, last: Error) -> Error {
        let Error::TooLong { allowed_ms, .. } = last else {
            return last;
        };
        self.failed.push((Method::Stop, last));
        let mut enough_ms = f64::MAX;
        let mut ways = Vec::new();
        for (method, error) in &self.failed {
            let name = method.name();
            ways.push(match error {
                Error::TooLong {
                    needed_ms, reason, ..
                } => {
                    // Estimates are rough.
                    enough_ms = enough_ms.min(1.5 * needed_ms + 1.0);
                    format!("about {needed_ms:.0} ms by {name} ({reason})")
                }
                other => format!("not by {name} ({other})"),
            });
        }
        Error::NoShortHold {
            pid: self.pid,
            allowed_ms,
            ways: ways.join(", "),
            enough_ms,
        }
    }

    /// Adds the pages with contents, and not those that nobody touched or that were only read.
    pub fn populated(&self, area: &Area, found: &mut Runs) {
        let (start, end) = (area.start, area.end);
        let before = found.len();
        // A page of a file has contents even if nobody has touched it. Copying makes it resident, so it is left out where
        // resident pages are counted.
        if area.kind != AreaKind::File || !matches!(self.look, Look::No) {
            let scan = self.pages.as_ref();
            let scanned = scan.map(|p| p.find(start..end, PageState::Populated, found));
            if matches!(scanned, Some(Ok(()))) {
                return;
            }
            found.truncate(before);
            // Before Linux 6.7.
            if let Ok(runs) = pagemap::populated(self.reader, start, end) {
                found.extend(runs);
                return;
            }
        }
        found.push(start..end);
    }

    /// The mappings to be copied, as they are now.
    pub fn areas(&mut self) -> Result<Vec<Area>, Error> {
        let maps = mappings(self.reader)?;
        let (areas, unsearched) = areas(self.reader, &maps, &self.modules, self.pages.as_ref());
        self.unsearched = unsearched;
        Ok(areas)
    }

    /// Holds all threads, outside malloc if possible.
    pub fn hold(&mut self) -> Result<AllHeld, Error> {
        let limit = self.limits.hold;
        let (held, in_malloc) = hold_settled(self.pid, self.reader, &self.malloc(), limit)?;
        self.in_malloc = in_malloc;
        let InVain {
            holds,
            longest,
            tid,
        } = held.in_vain();
        self.held_in_vain = self.held_in_vain.max(longest);
        if holds > 0 {
            self.notes.push(format!(
                "all threads were let go {holds} times, after at most {:.0} ms, because thread {tid} did not stop (it sleeps uninterruptibly, as in vfork)",
                longest.as_secs_f64() * 1e3
            ));
        }
        self.kernel.words.extend(held.queued_values());
        self.kernel.words.extend(held.rseq_places());
        Ok(held)
    }

    /// Looks which pages are in memory, if that was asked for and fits into the hold.
    pub fn look(&mut self, held: &AllHeld) {
        if let Look::Takes(time) = self.look
            // Once more as long, because a busy machine has other things to do.
            && self.may_hold(held.held_for() + 2 * time)
            && let Ok(found) = Residency::read(self.reader)
        {
            self.look = Look::Done(Residency {
                is_of_snapshot: true,
                ..found
            });
        }
    }

    /// Makes one of the mappings that were cut at these addresses while that was done.
    pub fn join_mappings(&mut self, cuts: &FxHashSet<u64>) {
        if let Look::Done(found) = &mut self.look {
            found.join_mappings(cuts);
        }
    }

    fn finish(mut self, method: Method, mut shot: Shot, prepare: Duration) -> Captured {
        let residency = match self.look {
            Look::No => None,
            Look::Done(residency) => Some(residency),
            Look::Takes(_) => Residency::read(self.reader).ok(),
        };
        let left_out = add_untouched(self.reader, &shot.areas, &mut shot.regions);
        self.unsearched.extend(left_out);
        let mut classes = BTreeMap::new();
        for image in &self.images {
            vtable_names(image, &mut classes);
        }
        if self.in_malloc > 0 {
            self.notes.push(inside_malloc_note(self.in_malloc));
        }
        // All that is asked of a process at its end, where nothing changes any more.
        let after = kernel_words(self.reader);
        self.kernel.words.extend(after.words);
        self.kernel.unseen.extend(after.unseen);
        let mut snapshot = Snapshot {
            meta: Meta {
                pid: self.pid,
                method,
                held_ms: shot.held.max(self.held_in_vain).as_secs_f64() * 1e3,
                prepare_held_ms: prepare.as_secs_f64() * 1e3,
                taken_ms: self.begin.elapsed().as_secs_f64() * 1e3,
                held_bytes: shot.held_bytes,
                in_malloc: self.in_malloc,
                notes: self.notes,
                threads: shot.threads,
                areas: shot.areas,
                modules: self.modules,
                kernel_words: self.kernel.words,
                unsearched: Vec::new(),
                classes,
            },
            regions: shot.regions,
        };
        let mut unsearched: Vec<String> = self.unsearched.iter().map(describe).collect();
        unsearched.extend(hiding(&snapshot, self.reader, shot.unread).iter().map(
            |Range { start, end }| format!("memory at {start:#x}-{end:#x}, which can't be read"),
        ));
        self.kernel.unseen.sort_unstable();
        self.kernel.unseen.dedup();
        unsearched.extend(self.kernel.unseen.iter().map(|&what| what.to_owned()));
        let sharers = memory_sharers(self.reader);
        unsearched.extend(
            sharers
                .iter()
                .map(|other| format!("process {other}, which runs in the same memory")),
        );
        snapshot.meta.notes.extend(
            unsearched
                .iter()
                .map(|what| format!("not searched: {what}; what only it points to looks leaked")),
        );
        snapshot.meta.unsearched = unsearched;
        let meta = &snapshot.meta;
        info!(
            pid = meta.pid,
            method = method.name(),
            held_ms = meta.held_ms,
            taken_ms = meta.taken_ms,
            bytes = snapshot.copied_bytes(),
            "a snapshot is taken"
        );
        Captured {
            snapshot,
            images: self.images,
            residency,
        }
    }
}

/// The part of what could not be read that may hide a pointer. A guard page (MADV_GUARD_INSTALL, with which
/// glibc 2.42 ends the stacks of threads) holds nothing, and what is below a stack pointer is no root; before
/// Linux 6.15, which marks such pages, guard pages of stacks are known by that alone.
fn hiding(snapshot: &Snapshot, reader: i32, unread: Runs) -> Runs {
    if unread.is_empty() {
        return unread;
    }
    let dead = dead_stacks(snapshot);
    unread
        .into_iter()
        .flat_map(|run| without(run.start, run.end, &dead))
        .flat_map(|run| {
            let guards = pagemap::guards(reader, run.start, run.end).unwrap_or_default();
            without(run.start, run.end, &guards)
        })
        .collect()
}

fn describe(area: &Area) -> String {
    let name = if area.name.is_empty() {
        "memory"
    } else {
        &area.name
    };
    format!("{name} at {:#x}-{:#x}", area.start, area.end)
}

/// What a method brings back.
pub(crate) struct Shot {
    pub threads: Vec<ThreadState>,
    pub areas: Vec<Area>,
    pub regions: Vec<CopiedRegion>,
    pub held: Duration,
    /// Bytes copied while the threads were held.
    pub held_bytes: u64,
    /// What could not be read.
    pub unread: Runs,
}

/// Takes a snapshot of `pid` by the method asked for, or by one that works, with a note why. `None` asks for
/// the one that holds the threads for the shortest time.
pub fn capture(pid: i32, method: Option<Method>) -> Result<Captured, Error> {
    capture_within(pid, method, Limits::default())
}

/// Like [`capture`], with other limits than the default.
pub fn capture_within(pid: i32, method: Option<Method>, limits: Limits) -> Result<Captured, Error> {
    capture_prepared(Prepared::of(pid, limits)?, method)
}

/// Like [`capture_within`], with the pages that are in memory.
pub fn capture_resident(
    pid: i32,
    method: Option<Method>,
    limits: Limits,
) -> Result<Captured, Error> {
    let mut prepared = Prepared::of(pid, limits)?;
    prepared.look = Look::Takes(Residency::time(prepared.reader)?);
    capture_prepared(prepared, method)
}

/// By a thread of its own: only the one that has told threads of the process to stop can let those go that stop too late,
/// and what follows a snapshot may take long. When this one ends, the kernel lets all of them go (`exit_ptrace` of
/// kernel/ptrace.c).
fn capture_prepared(prepared: Prepared, method: Option<Method>) -> Result<Captured, Error> {
    std::thread::scope(|scope| {
        let captured = scope.spawn(|| capture_by(prepared, method)).join();
        captured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn capture_by(mut prepared: Prepared, method: Option<Method>) -> Result<Captured, Error> {
    let pid = prepared.pid;
    let is_filtered = method.is_none() && filter_may_kill(prepared.reader);
    // Without its initial thread, what is asked of a process by its id fails.
    let is_headless = prepared.reader != pid;
    let method = method
        .filter(|_| !is_headless)
        .unwrap_or(if is_filtered || is_headless {
            Method::Stop
        } else {
            Method::Precopy
        });
    if is_filtered {
        // Filters of services usually kill, and it cannot be found out which system calls they know.
        prepared.notes.push(
            "all threads held, as a seccomp filter may end the process for a system call of ours; \
             one that only refuses allows precopy or fork"
                .into(),
        );
    }
    if is_headless {
        prepared.notes.push(
            "all threads held, as the initial thread has ended, by which the others could be asked to help".into(),
        );
    }
    if method == Method::Precopy {
        let started = WriteWatch::start(pid).map_err(Error::from);
        let shot = started.and_then(|watch| {
            let shot = precopy(&mut prepared, &watch)?;
            Ok((shot, watch.held_for()))
        });
        match shot {
            Ok((shot, prepare)) => return Ok(prepared.finish(Method::Precopy, shot, prepare)),
            // A fork takes no less of our memory.
            Err(error @ Error::NoRoom { .. }) => return Err(error),
            Err(error) => prepared.fall_back(Method::Precopy, "a fork", error)?,
        }
    }
    if method != Method::Stop {
        match fork(&mut prepared) {
            Ok(shot) => return Ok(prepared.finish(Method::Fork, shot, Duration::ZERO)),
            Err(error) => prepared.fall_back(Method::Fork, "all threads held", error)?,
        }
    }
    match stop(&mut prepared) {
        Ok(shot) => Ok(prepared.finish(Method::Stop, shot, Duration::ZERO)),
        Err(error) => Err(prepared.no_way(error)),
    }
}

/// Takes a snapshot of a process at its end, with all threads stopped there. `images`: its modules. Names of
/// classes are not looked up.
pub fn capture_ending(
    child: &Child,
    pid: i32,
    images: Vec<ModuleImage>,
) -> Result<Captured, Error> {
    let mut prepared = Prepared::with(pid, Vec::new());
    prepared.modules = images.iter().map(module_info).collect();
    let threads = child.ending_threads(pid).iter().map(|t| {
        // In a system call, vector registers hold what the last memcpy left: all of them are the
        // caller's to save (psABI 3.2.1), and a call of libc's was made before.
        let is_in_call = t.registers.orig_rax as i64 >= 0;
        let extended: &[u8] = if is_in_call { &[] } else { &t.extended };
        (t.tid, &t.registers, extended)
    });
    let malloc = prepared.malloc();
    let inside = threads.clone().filter(|t| is_inside(pid, t.1, &malloc));
    prepared.in_malloc = inside.count() as u32;
    let Some(mut shot) = copy_all(&mut prepared, None)? else {
        return Err(prepared.too_long(prepared.begin.elapsed(), "it was not copied in time".into()));
    };
    shot.threads = thread_states(threads);
    shot.held = prepared.begin.elapsed();
    let mut captured = prepared.finish(Method::Stop, shot, Duration::ZERO);
    let snapshot = &mut captured.snapshot;
    for (index, thread) in child.ending_threads(pid).iter().enumerate() {
        if snapshot.meta.threads[index].is_exiting
            && let Some((rsp, words)) = innermost_caller(snapshot, &images, &thread.registers)
        {
            let state = &mut snapshot.meta.threads[index];
            state.rsp = rsp;
            state.words = words;
            state.words.push(state.fs_base);
        }
    }
    captured.images = images;
    Ok(captured)
}

/// The registers of threads.
pub(crate) fn thread_states<'a>(
    threads: impl Iterator<Item = (i32, &'a Registers, &'a [u8])>,
) -> Vec<ThreadState> {
    threads
        .map(|(tid, r, extended)| {
            let call = r.orig_rax as i64;
            let is_exiting = call == nix::libc::SYS_exit_group || call == nix::libc::SYS_exit;
            let mut all = vec![
                r.rbx, r.rbp, r.rsp, r.r12, r.r13, r.r14, r.r15, r.fs_base, r.gs_base,
            ];
            // The other registers belong to the function that runs (psABI 3.2.1). Where that is the last
            // thing that the thread does, they hold what earlier calls have left in them.
            if !is_exiting {
                all.extend([
                    r.rax, r.rcx, r.rdx, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.orig_rax,
                ]);
                all.extend(words(extended));
            }
            all.retain(|&word| word >= 4096);
            ThreadState {
                tid,
                rsp: r.rsp,
                rip: r.rip,
                fs_base: r.fs_base,
                is_exiting,
                words: all,
            }
        })
        .collect()
}
