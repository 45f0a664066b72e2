//! Facts about the target that are collected before any thread is held, and limits on the cost of a
//! snapshot.

use crate::Error;
use crate::capture::areas::areas;
use crate::capture::kernel_words::{KernelWords, kernel_words, kernel_words_without_descriptors};
use crate::capture::limits::Limits;
use crate::capture::modules::{mark_programs_libc, module_info, vtable_names};
use crate::capture::own_frames::follow;
use crate::capture::residency::{Look, Residency};
use crate::capture::settle::{MallocPlaces, hold_settled};
use crate::capture::shared_pages::add_untouched;
use crate::capture::{Captured, Shot, pagemap};
use crate::graph::roots::dead_stacks;
use crate::ranges::{Runs, run_bytes, without};
use crate::room::Room;
use crate::snapshot::{
    Area, AreaKind, Meta, Method, ModuleInfo, ProcessIdentity, Snapshot, inside_malloc_note,
};
use memhook_foreign::size_text;
use memhook_inject::{AllHeld, InVain, PageScan, PageState, memory_sharers};
use memhook_process::{
    Mapping, ModuleFiles, ModuleImage, emulated_program, living_thread, mappings, modules,
};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};
use tracing::info;

/// The search needs an additional quarter of the copy's size: two bits per 16 bytes of heap, plus
/// the bounds and mark of each block.
const SEARCH_SHARE: u64 = 4;

/// Facts about the target that are collected before any thread is held.
pub(crate) struct Prepared {
    pub pid: i32,
    /// Id through which the memory and files of the process are read: the process id, or the id of
    /// a live thread.
    pub reader: i32,
    pub(super) begin: Instant,
    pub(super) images: Vec<ModuleImage>,
    pub(super) modules: Vec<ModuleInfo>,
    pub pages: Option<PageScan>,
    pub(super) kernel: KernelWords,
    pub notes: Vec<String>,
    /// Mappings that were left out.
    pub(super) unsearched: Vec<Area>,
    /// Number of threads inside malloc during the hold.
    pub(super) in_malloc: u32,
    /// Limits on the cost of the snapshot.
    pub limits: Limits,
    /// Bytes to be copied, counted at the start.
    pub populated_bytes: u64,
    /// The longest hold that did not lead to a copy.
    pub held_in_vain: Duration,
    /// Methods that failed, with their errors.
    pub(super) failed: Vec<(Method, Error)>,
    /// The pages that are in memory.
    pub(super) look: Look,
    /// True if the kernel is queried, in each thread, for facts that only it knows.
    pub(super) asks_threads: bool,
    /// True if class names are looked up.
    pub(super) names_classes: bool,
    /// Program that the process emulates.
    emulated: Option<String>,
}

impl Prepared {
    pub(super) fn of(pid: i32, limits: Limits) -> Result<Prepared, Error> {
        let begin = Instant::now();
        let reader = living_thread(pid);
        let images = modules(reader, &mappings(reader)?, &mut ModuleFiles::new())?;
        let mut prepared = Prepared {
            begin,
            limits,
            // These words are read again after the hold. Any entry that exists during the hold is
            // then in at least one of the two results, unless it appears after the first read and
            // disappears before the second.
            kernel: words_of(reader, limits),
            ..Prepared::with(pid, images)
        };
        prepared.check_room()?;
        Ok(prepared)
    }

    /// Fails if the copy would not fit into memory. Called before any thread is held.
    fn check_room(&mut self) -> Result<(), Error> {
        let mut runs = Runs::new();
        for area in &self.areas()? {
            self.populated(area, &mut runs);
        }
        self.populated_bytes = run_bytes(&runs);
        self.has_room(0, self.populated_bytes)
    }

    /// Fails if `more` bytes, and the memory needed to search them, do not fit in addition to the
    /// bytes already copied.
    pub fn has_room(&self, copied: u64, more: u64) -> Result<(), Error> {
        let with_search = |bytes: u64| bytes + bytes / SEARCH_SHARE;
        // The user's limit includes the bytes already copied; the available memory does not.
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

    /// Returns the error for a hold that would take, or has taken, too long.
    pub fn too_long(&self, needed: Duration, reason: String) -> Error {
        let allowed = self.limits.hold.unwrap_or(Duration::MAX);
        Error::TooLong {
            needed_ms: needed.max(allowed).as_secs_f64() * 1e3,
            allowed_ms: allowed.as_secs_f64() * 1e3,
            reason,
        }
    }

    /// Returns true if a hold of this length is allowed.
    pub fn may_hold(&self, time: Duration) -> bool {
        self.limits.hold.is_none_or(|most| time <= most)
    }

    /// Returns the time at which a hold must end.
    pub fn end_of(&self, held: &AllHeld) -> Option<Instant> {
        let most = self.limits.hold?;
        Some(Instant::now() + most.saturating_sub(held.held_for()))
    }

    pub(super) fn with(pid: i32, images: Vec<ModuleImage>) -> Prepared {
        let reader = living_thread(pid);
        let mut modules: Vec<ModuleInfo> = images.iter().map(module_info).collect();
        mark_programs_libc(reader, &mut modules);
        Prepared {
            pid,
            reader,
            begin: Instant::now(),
            modules,
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
            asks_threads: false,
            names_classes: true,
            emulated: None,
        }
    }

    pub(super) fn malloc(&self) -> MallocPlaces {
        MallocPlaces::of(&self.modules)
    }

    /// Records why another method is used. Returns an error if no other method can help.
    pub(super) fn fall_back(
        &mut self,
        method: Method,
        instead: &str,
        error: Error,
    ) -> Result<(), Error> {
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

    /// Returns the error for when every method fails or would take too long.
    pub(super) fn no_way(&mut self, last: Error) -> Error {
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
                    // The estimates are rough.
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

    /// Adds the pages with contents. Pages that were never touched, or were only read, are left
    /// out.
    pub fn populated(&self, area: &Area, found: &mut Runs) {
        let (start, end) = (area.start, area.end);
        let before = found.len();
        // A page of a file has contents even if no process has touched it. Copying such a page
        // makes it resident, so it is left out where resident pages are counted.
        if area.kind != AreaKind::File || !matches!(self.look, Look::No) {
            let scan = self.pages.as_ref();
            let scanned = scan.map(|p| p.find(start..end, PageState::Populated, found));
            if matches!(scanned, Some(Ok(()))) {
                return;
            }
            found.truncate(before);
            // Kernels before Linux 6.7.
            if let Ok(runs) = pagemap::populated(self.reader, start, end) {
                found.extend(runs);
                return;
            }
        }
        found.push(start..end);
    }

    /// Returns true if some of the memory is in huge pages.
    pub fn has_huge_pages(&mut self) -> bool {
        let areas = self.areas().unwrap_or_default();
        let Some(pages) = &self.pages else {
            return false;
        };
        let mut found = Runs::new();
        areas.iter().any(|area| {
            let _ = pages.find(area.start..area.end, PageState::Huge, &mut found);
            !found.is_empty()
        })
    }

    /// Returns the current mappings that have to be copied.
    pub fn areas(&mut self) -> Result<Vec<Area>, Error> {
        Ok(self.areas_of(&mappings(self.reader)?))
    }

    /// Selects the mappings that have to be copied.
    pub fn areas_of(&mut self, maps: &[Mapping]) -> Vec<Area> {
        let (areas, unsearched) = areas(self.reader, maps, &self.modules, self.pages.as_ref());
        self.unsearched = unsearched;
        self.emulated = emulated_program(self.reader, maps);
        areas
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
            let attempts = match holds {
                1 => "one attempt".to_owned(),
                holds => format!("{holds} attempts"),
            };
            self.notes.push(format!(
                "{attempts} to hold all threads ended after at most {:.0} ms, because thread {tid} did not stop (uninterruptible sleep, as during vfork)",
                longest.as_secs_f64() * 1e3
            ));
        }
        self.kernel.words.extend(held.queued_values());
        self.kernel.words.extend(held.rseq_places());
        Ok(held)
    }

    /// Records which pages are resident, if the caller asked for it and there is time during the
    /// hold.
    pub fn look(&mut self, held_for: Duration) {
        if let Look::Takes(time) = self.look
            // The estimate is doubled, because a busy machine also does other work during the hold.
            && self.may_hold(held_for + 2 * time)
            && let Ok(found) = Residency::read(self.reader)
        {
            self.look = Look::Done(Residency {
                is_of_snapshot: true,
                ..found
            });
        }
    }

    /// Merges mappings that the copy has split at these addresses.
    pub fn join_mappings(&mut self, cuts: &FxHashSet<u64>) {
        if let Look::Done(found) = &mut self.look {
            found.join_mappings(cuts);
        }
    }

    pub(super) fn finish(
        mut self,
        method: Method,
        mut shot: Shot,
        mut prepare: Duration,
    ) -> Captured {
        if self.limits.only_looks && self.asks_threads {
            self.kernel
                .unseen
                .push("the signal stacks of its threads, which were not asked".into());
        } else if self.asks_threads {
            prepare = prepare.max(self.kernel.ask_threads(self.pid));
        }
        let residency = match self.look {
            Look::No => None,
            Look::Done(residency) => Some(residency),
            Look::Takes(_) => Residency::read(self.reader).ok(),
        };
        let left_out = add_untouched(self.reader, &shot.areas, &mut shot.regions);
        self.unsearched.extend(left_out);
        let mut classes = BTreeMap::new();
        for image in self.images.iter().filter(|_| self.names_classes) {
            vtable_names(image, &mut classes);
        }
        if self.in_malloc > 0 {
            self.notes.push(inside_malloc_note(self.in_malloc));
        }
        // A process that is ending no longer changes, so no further facts are needed.
        let after = words_of(self.reader, self.limits);
        self.kernel.words.extend(after.words);
        self.kernel.unseen.extend(after.unseen);
        let mut snapshot = Snapshot {
            meta: Meta {
                pid: self.pid,
                processor: std::env::consts::ARCH.to_owned(),
                identity: ProcessIdentity::of(self.pid),
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
                changed: shot.changes.pages,
                changed_words: shot.changes.words,
                unsearched: Vec::new(),
                classes,
                variables: Vec::new(),
                earlier: None,
                unmoved: 0,
                emulated: self.emulated,
            },
            regions: shot.regions,
        };
        follow(&mut snapshot, &self.images);
        let mut unsearched: Vec<String> = self.unsearched.iter().map(describe).collect();
        unsearched.extend(hiding(&snapshot, self.reader, shot.unread).iter().map(
            |Range { start, end }| format!("memory at {start:#x}-{end:#x}, which can't be read"),
        ));
        self.kernel.unseen.sort_unstable();
        self.kernel.unseen.dedup();
        unsearched.append(&mut self.kernel.unseen);
        let sharers = memory_sharers(self.reader);
        unsearched.extend(
            sharers
                .iter()
                .map(|other| format!("process {other} (it runs in the same memory)")),
        );
        snapshot.meta.notes.extend(unsearched.iter().map(|what| {
            format!("not searched: {what}; blocks without another pointer look leaked")
        }));
        // A copy that was not made at a single moment does not prove that a block is unreachable,
        // so no block may be released.
        if !snapshot.meta.changed.is_empty() {
            let size = size_text(run_bytes(&snapshot.meta.changed));
            let what = format!("{size} in huge pages, which changed while they were read");
            snapshot.meta.notes.push(format!(
                "{what}, because reading them takes longer than a hold may last: blocks there count as reachable"
            ));
            unsearched.push(what);
        }
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

/// Returns the pointers that the kernel stores for the process. If the limits allow only reading,
/// queries the kernel without descriptors.
fn words_of(reader: i32, limits: Limits) -> KernelWords {
    match limits.only_looks {
        true => kernel_words_without_descriptors(reader),
        false => kernel_words(reader),
    }
}

/// Returns the unreadable parts that may contain a pointer. Guard pages (MADV_GUARD_INSTALL, with
/// which glibc 2.42 protects the ends of thread stacks) have no contents, and memory below a stack
/// pointer is not a root. Linux has marked guard pages since 6.15. Before that, guard pages of
/// stacks can be identified only by their position below the stack pointer.
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
