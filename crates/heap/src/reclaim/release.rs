//! Releases blocks of a running process by calling the process's own `free`.

use super::callbacks::callback;
use super::candidates::Candidates;
use super::hold_time::HoldTime;
use super::look::{InVain, Look};
use super::refusal::Refusal;
use super::unchanged::{unchanged, unchanged_contents};
use crate::blocks::SegmentKind;
use crate::snapshot::MUSL;
use crate::{Error, Heap};
use memhook_inject::{Held, Others, stops, wait_for_late_threads};
use memhook_process::{
    ElfView, ModuleImage, ModulePart, RemoteAddress, is_executed_still, mappings, module_part,
    set_malloc_hook,
};
use std::time::{Duration, Instant};

/// Bytes of each block that are compared while a thread is held to release it. The whole block was
/// compared shortly before.
const HEAD_BYTES: u64 = 64;
/// The first version of glibc (2.34) that does not call `__free_hook`.
const NO_HOOKS_SINCE: u32 = 34;

/// Number of blocks examined in one hold. The next hold continues where the previous one stopped.
const LOOKED_AT: usize = 128;
/// Time for which a thread calls `free` of an allocator whose blocks need a second check.
const CALLS: Duration = Duration::from_millis(1);
/// Longest wait for the last of these calls. After that, the thread is left to finish the call
/// alone, because it may hold one lock while it waits for another.
const CALL_PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for a thread that did not stop in time.
const LATE_PATIENCE: Duration = Duration::from_millis(500);
/// Time limit for finding a moment when all threads are outside an allocator.
const STILL_PATIENCE: Duration = Duration::from_secs(5);

/// Result of a release.
#[derive(Default)]
pub struct Released {
    /// The blocks released.
    pub released: Vec<u32>,
    /// Number of holds of a thread.
    pub holds: u64,
    /// Total time of these holds.
    pub held: Duration,
    /// Length of the longest hold.
    pub longest: Duration,
    /// Reason for an early end.
    pub failed: Option<Error>,
}

/// Function that holds one thread at a point where it may be made to call `free`.
pub type HoldAtSafePoint<'a> = dyn FnMut() -> Result<Held, memhook_inject::Error> + 'a;

impl Candidates {
    /// Releases the chosen blocks that have not changed since the snapshot.
    ///
    /// After a failure, it is unknown which blocks of the last batch were released. They are
    /// counted as kept, and only another scan can show what happened to them.
    pub(super) fn release(&self, hold: &mut HoldAtSafePoint) -> Released {
        let mut done = Released::default();
        if !self.chosen.is_empty() {
            done.failed = self.try_release(&self.chosen, hold, &mut done).err();
        }
        done
    }

    fn try_release(
        &self,
        blocks: &[u32],
        hold: &mut HoldAtSafePoint,
        done: &mut Released,
    ) -> Result<(), Error> {
        for allocator in owners(&self.scan.heap, blocks) {
            let is_its = |&&block: &&u32| allocator_of(&self.scan.heap, block) == allocator;
            let blocks: Vec<u32> = blocks.iter().filter(is_its).copied().collect();
            self.release_of(allocator, &blocks, hold, done)?;
        }
        Ok(())
    }

    /// Releases blocks of one allocator; `None` means glibc's.
    fn release_of(
        &self,
        allocator: Option<&str>,
        blocks: &[u32],
        hold: &mut HoldAtSafePoint,
        done: &mut Released,
    ) -> Result<(), Error> {
        let pid = self.captured.snapshot.meta.pid;
        let free = match allocator {
            None => self.find_free()?,
            Some(name) => find_free_of(&self.captured.images, name).ok_or(Error::NoHeap {
                pid,
                reason: format!("no library of {name} in it exports free()"),
            })?,
        };
        if let Some(why) = foreign_callback(pid, &self.captured.images, allocator) {
            let reason = Refusal::CallsBack(why).to_string();
            return Err(Error::NoHeap { pid, reason });
        }
        let mut same = self.unchanged(blocks, u64::MAX);
        let Some(name) = allocator else {
            let unsure = self.take_unsure(&mut same);
            self.release_by(None, free, same, hold, done)?;
            let live = self.scan.heap.live.clone();
            // Without that test, no block is in doubt.
            let look = live.map(|live| Look::new(live, &self.captured.snapshot));
            return self.release_by(look.as_ref(), free, unsure, hold, done);
        };
        let look = self.look_of(name).ok_or_else(|| no_check(pid, name))?;
        self.release_by(Some(&look), free, same, hold, done)
    }

    /// Removes those glibc blocks whose contents would be the same if they had been freed.
    fn take_unsure(&self, blocks: &mut Vec<u32>) -> Vec<u32> {
        let heap = &self.scan.heap;
        let Some(live) = &heap.live else {
            return Vec::new();
        };
        let memory = &self.captured.snapshot;
        let is_unsure =
            |&mut number: &mut u32| live.may_look_the_same(memory, &heap.blocks.get(number));
        blocks.extract_if(.., is_unsure).collect()
    }

    /// Releases blocks of one allocator, after a second check if the allocator needs one.
    fn release_by(
        &self,
        look: Option<&Look>,
        free: u64,
        mut left: Vec<u32>,
        hold: &mut HoldAtSafePoint,
        done: &mut Released,
    ) -> Result<(), Error> {
        let pid = self.captured.snapshot.meta.pid;
        // Reversed, because blocks are taken from the end.
        left.reverse();
        let mut time = HoldTime::new();
        let mut progress = Instant::now();
        while !left.is_empty() && stops() == 0 {
            let others = look
                .filter(|look| look.needs_standstill())
                .map(|_| Others::of(pid));
            let mut held = hold()?;
            done.holds += 1;
            if !is_executed_still(&self.memory) {
                return Err(Error::OtherProgram { pid });
            }
            let released = match look {
                None => self.release_some(&mut held, free, &mut left, &mut time, done),
                Some(look) => {
                    let live = self.live_of(&mut held, look, others.as_ref(), &mut left);
                    match live {
                        Ok(batch) => {
                            progress = Instant::now();
                            self.release_live(&mut held, free, batch, &mut left, done)
                        }
                        Err(InVain::Inside(_)) if progress.elapsed() < STILL_PATIENCE => Ok(()),
                        Err(InVain::Inside(why)) => Err(Error::NeverStill { pid, why }),
                        Err(InVain::Failed(error)) => Err(error.into()),
                    }
                }
            };
            let begin = Instant::now();
            let held = held.release();
            time.finished(begin.elapsed());
            let lasted = *held.as_ref().unwrap_or(&Duration::ZERO);
            done.held += lasted;
            done.longest = done.longest.max(lasted);
            // A thread that stopped too late is still traced by us, and could not be held again.
            wait_for_late_threads(LATE_PATIENCE);
            released?;
            held?;
            std::thread::sleep(time.held(lasted));
            if let Some(average) = time.starvation() {
                return Err(Error::LongHolds { pid, average });
            }
        }
        Ok(())
    }

    /// Returns the blocks, all of one allocator, whose first `most` bytes are unchanged.
    fn unchanged(&self, blocks: &[u32], most: u64) -> Vec<u32> {
        let snapshot = &self.captured.snapshot;
        let heap = &self.scan.heap;
        let has_headers = blocks
            .first()
            .is_none_or(|&b| allocator_of(heap, b).is_none());
        let compare = if has_headers {
            unchanged
        } else {
            unchanged_contents
        };
        let still = compare(snapshot.meta.pid, snapshot, heap, blocks, most);
        blocks
            .iter()
            .zip(still)
            .filter_map(|(&block, same)| same.then_some(block))
            .collect()
    }

    /// Releases as many blocks as fit into one hold.
    fn release_some(
        &self,
        held: &mut Held,
        free: u64,
        left: &mut Vec<u32>,
        time: &mut HoldTime,
        done: &mut Released,
    ) -> Result<(), Error> {
        let blocks = &self.scan.heap.blocks;
        let mut begin = Instant::now();
        let until = time.end(begin, held.held_for());
        let mut is_first = true;
        // Every hold releases at least one block, regardless of the speed of the machine.
        while !left.is_empty() && (is_first || begin < until) {
            is_first = false;
            let count = time.fitting(until.saturating_duration_since(begin), Held::MAX_CALLS);
            let mut batch = left.split_off(left.len().saturating_sub(count));
            batch.reverse();
            let mut batch = self.unchanged(&batch, HEAD_BYTES);
            let addresses: Vec<u64> = batch.iter().map(|&b| blocks.get(b).address).collect();
            let count = held.call_each(RemoteAddress(free), &addresses, until)?;
            let rest = batch.split_off(count.min(batch.len()));
            done.released.extend(batch);
            left.extend(rest.into_iter().rev());
            let now = Instant::now();
            if count > 0 {
                time.called(count, now - begin);
            }
            begin = now;
        }
        Ok(())
    }

    /// Returns the second check for blocks of an allocator.
    fn look_of(&self, allocator: &str) -> Option<Look> {
        let mut others = self.scan.heap.others.iter();
        let heap = others.find(|other| other.allocator == allocator)?;
        Some(Look::new(heap.live_check.clone()?, &self.captured.snapshot))
    }

    /// Takes some of the blocks from the list, and returns those that are live.
    fn live_of(
        &self,
        held: &mut Held,
        look: &Look,
        others: Option<&Others>,
        left: &mut Vec<u32>,
    ) -> Result<Vec<u32>, InVain> {
        let mut batch = left.split_off(left.len().saturating_sub(LOOKED_AT));
        batch.reverse();
        let blocks = batch.iter().map(|&b| self.scan.heap.blocks.get(b));
        let live = look.at(held, others, &self.memory, &blocks.collect::<Vec<_>>());
        match live {
            Ok(live) => {
                let mut live = live.into_iter();
                batch.retain(|_| live.next() == Some(true));
                let same = self.unchanged(&batch, HEAD_BYTES);
                held.let_others_go();
                Ok(same)
            }
            Err(why) => {
                held.let_others_go();
                left.extend(batch.into_iter().rev());
                Err(why)
            }
        }
    }

    /// Releases blocks that are known to be live.
    fn release_live(
        &self,
        held: &mut Held,
        free: u64,
        mut batch: Vec<u32>,
        left: &mut Vec<u32>,
        done: &mut Released,
    ) -> Result<(), Error> {
        let blocks = &self.scan.heap.blocks;
        let addresses: Vec<u64> = batch.iter().map(|&b| blocks.get(b).address).collect();
        let until = Instant::now() + CALLS;
        let function = RemoteAddress(free);
        let count = held.call_each_to_its_end(function, &addresses, until, CALL_PATIENCE)?;
        let rest = batch.split_off(count.min(batch.len()));
        done.released.extend(batch);
        left.extend(rest.into_iter().rev());
        Ok(())
    }

    /// Returns the address of `free` in the C library that owns this heap.
    fn find_free(&self) -> Result<u64, Error> {
        let snapshot = &self.captured.snapshot;
        let pid = snapshot.meta.pid;
        let no_heap = |reason: &str| Error::NoHeap {
            pid,
            reason: reason.into(),
        };
        let libc = snapshot.libc();
        let image = self
            .captured
            .images
            .iter()
            .find(|m| libc.is_some_and(|l| l.start == m.start))
            .ok_or_else(|| no_heap("it has no C library"))?;
        if self.scan.heap.glibc_minor < NO_HOOKS_SINCE
            && let Some(address) = exported(image, "__free_hook")
        {
            let mut word = [0; 8];
            memhook_process::read_memory(pid, RemoteAddress(address), &mut word)?;
            if word != [0; 8] {
                return Err(Error::OwnFreeHook);
            }
        }
        exported(image, "free").ok_or_else(|| no_heap("its C library exports no free()"))
    }
}

fn no_check(pid: i32, allocator: &str) -> Error {
    let reason = Refusal::NotShown(allocator.to_owned()).to_string();
    Error::NoHeap { pid, reason }
}

/// Returns the allocator of a block; `None` means glibc's.
pub(super) fn allocator_of(heap: &Heap, block: u32) -> Option<&'static str> {
    match heap.blocks.segment_of(block).kind {
        SegmentKind::Sized(index) => heap.others.get(index as usize).map(|other| other.allocator),
        _ => None,
    }
}

/// Returns the allocators of some blocks, without duplicates.
pub(super) fn owners(heap: &Heap, blocks: &[u32]) -> Vec<Option<&'static str>> {
    let mut found: Vec<_> = blocks
        .iter()
        .map(|&block| allocator_of(heap, block))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Allocators other than glibc's whose blocks may be released. Others were not tested.
pub(super) const RELEASED: [&str; 4] = ["jemalloc", "mimalloc", "tcmalloc", MUSL];
/// Part of the names of gperftools' debugging libraries. The blocks that they return are not blocks
/// of the allocator inside them.
const DEBUGGING: &str = "_debug";

/// Returns the address of `free` in the library of an allocator. An allocator that is linked into
/// the program has no `free` that may be called, because threads inside its code could not be
/// recognized.
pub(super) fn find_free_of(images: &[ModuleImage], allocator: &str) -> Option<u64> {
    exported(library_of(images, allocator)?, "free")
}

/// Returns the reason why the functions of an allocator may call code of the program, if there is
/// one. If `allocator` is `None`, the allocator is glibc's.
pub fn foreign_callback(
    pid: i32,
    images: &[ModuleImage],
    allocator: Option<&str>,
) -> Option<String> {
    let library = match allocator {
        None => images.iter().find(|image| image.is_libc),
        Some(name) => library_of(images, name),
    };
    let Ok(maps) = mappings(pid) else {
        return Some("its mappings cannot be read".to_owned());
    };
    let Some(library) = library else {
        return Some("its library was not found".to_owned());
    };
    let hook = allocator.is_none().then(|| set_malloc_hook(pid, images));
    if let Some(hook) = hook.flatten() {
        return Some(hook);
    }
    callback(pid, &maps, images, allocator.unwrap_or("glibc"), library)
}

fn library_of<'a>(images: &'a [ModuleImage], allocator: &str) -> Option<&'a ModuleImage> {
    if !RELEASED.contains(&allocator) {
        return None;
    }
    let exports = |image: &ModuleImage, name: &str| image.facts.exported(name).is_some();
    let is_its = |image: &&ModuleImage| {
        let name = match module_part(image) {
            ModulePart::Musl => Some(MUSL),
            _ => memhook_abi::known_allocator(|name| exports(image, name)),
        };
        !image.is_main && name == Some(allocator)
    };
    let mut libraries = images.iter().filter(is_its);
    // If there are two libraries, it is unknown which of them owns the block.
    let library = libraries.next().filter(|_| libraries.next().is_none())?;
    (!library.name().contains(DEBUGGING)).then_some(library)
}

/// Returns the address of a function or a variable that a module exports.
pub(crate) fn exported(image: &ModuleImage, name: &str) -> Option<u64> {
    let elf = ElfView::parse(&image.bytes).ok()?;
    let found = elf.exported(name).filter(|e| !e.is_ifunc)?;
    Some(image.base + found.svma)
}
