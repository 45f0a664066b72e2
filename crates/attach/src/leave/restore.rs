//! Restores originals in slots that contain our wrappers, and code where jumps lead to pads. The wrappers and jumps may
//! have been placed by this attach, by a killed attacher, or in the parent of a forked process: the contents of the
//! slots decide, not the journal.

use super::pad_areas::{held_cells, put_back};
use crate::error::Error;
use crate::hold::reach::Reach;
use crate::hold::safe_point::SafePoints;
use crate::hook::object::hook_at;
use crate::hook::presence::{has_hook, hold_with_hook};
use crate::survey::target_facts::is_filtered;
use crate::survey::traced_modules::layout;
use crate::unwinding::tables::UnwindTables;
use memhook_abi::{ANY_LOADER_COUNT, Exchange, hook_error};
use memhook_inject::{Held, MAX_CALL_DATA, WordExchange, force_words};
use memhook_process::{
    CLibrary, HookCopy, Mapping, ModuleFiles, ModuleImage, RemoteAddress, Slot, SlotScan,
    find_slots, hook_copies, mappings, modules, read_word,
};
use std::time::{Duration, Instant};

/// Time limit for finding a thread outside the loader.
const SAFE_POINT_PATIENCE: Duration = Duration::from_secs(2);
/// Longest time that a held thread waits for a moment at which no other thread unloads modules.
const STILL_PATIENCE: Duration = Duration::from_millis(20);
/// Number of times that the slots are examined.
const LOOKS: u32 = 5;

const _: () = assert!(size_of::<Exchange>() == 32);
const MOST_WORDS: usize = (MAX_CALL_DATA - 8) / size_of::<Exchange>();

/// Result of a restoration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restored {
    /// Number of slots that still hold our wrapper, and of functions that still lead to a pad.
    pub left: u64,
    /// Longest time that threads were held.
    pub held: Duration,
}

/// Contents of a process's slots, with the mappings at the time they were read.
struct SlotLook {
    layout: Vec<Mapping>,
    modules: Vec<ModuleImage>,
    copies: Vec<HookCopy>,
    slots: Vec<Slot>,
    /// Number of slots whose address is inside a hook but does not identify the original.
    unknown: u64,
}

impl SlotLook {
    /// Reads the slots of a process.
    fn new(pid: i32, files: &mut ModuleFiles) -> Result<SlotLook, Error> {
        let maps = mappings(pid)?;
        let modules = modules(pid, &maps, files)?;
        let copies = hook_copies(pid, &maps);
        let any = |name: &str| memhook_abi::function_by_name(name).is_some();
        let scan = if copies.is_empty() {
            SlotScan::default()
        } else {
            find_slots(pid, &modules, &maps, &any, &copies)?
        };
        let is_unknown = |u: &&memhook_process::Unhookable| u.is_foreign_wrapper;
        let mut slots = scan.held;
        slots.extend(held_cells(pid, &maps, &modules, &copies));
        Ok(SlotLook {
            layout: layout(&maps),
            modules,
            slots,
            unknown: scan.unhookable.iter().filter(is_unknown).count() as u64,
            copies,
        })
    }

    /// Reads the slots again if modules were loaded or unloaded.
    fn refresh(&mut self, pid: i32, files: &mut ModuleFiles) -> Result<(), Error> {
        if layout(&mappings(pid)?) != self.layout {
            *self = SlotLook::new(pid, files)?;
        }
        Ok(())
    }

    fn holds_any(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Returns the slots that still hold a wrapper.
    fn still_held(&self, pid: i32) -> Vec<Slot> {
        let holds = |slot: &&Slot| read_word(pid, RemoteAddress(slot.address)) == Some(slot.value);
        self.slots.iter().filter(holds).cloned().collect()
    }
}

/// Closes the gates of all hooks in the process and restores the originals. `hook_base`: load bias of this version's
/// hook. `safe`: where threads can be held, if known.
///
/// One thread does the work, outside the loader and while no modules are loaded or unloaded. If no thread can, all
/// threads are held, and the attacher writes the words.
pub fn restore(
    pid: i32,
    hook_base: Option<u64>,
    safe: Option<SafePoints>,
    files: &mut ModuleFiles,
) -> Result<Restored, Error> {
    let mut look = SlotLook::new(pid, files)?;
    let mut done = Restored::default();
    let is_open = |copy: &HookCopy| copy.epoch(pid).is_some_and(|epoch| epoch != 0);
    if let Some(base) = hook_base
        && (look.holds_any() || look.copies.iter().any(is_open))
    {
        match by_hook(pid, base, safe, &mut look, files, &mut done) {
            // No thread of the process can do the work now, for example because all run on unknown stacks.
            Err(Error::Inject(why)) if may_be_forced(&why) => {
                tracing::info!(pid, %why, "slots are restored with all threads held");
            }
            other => other?,
        }
    }
    for _ in 0..LOOKS {
        look.refresh(pid, files)?;
        let exchanges = forced(pid, &look);
        if exchanges.is_empty() {
            break;
        }
        match force_words(pid, &exchanges, &|| true) {
            Ok((_, held)) => done.held = done.held.max(held),
            // The slots count as not restored.
            Err(why) if may_be_forced(&why) => {}
            Err(why) => return Err(why.into()),
        }
    }
    done.left = look.still_held(pid).len() as u64 + look.unknown;
    let (jumps_left, held) = put_back(pid)?;
    done.left += jumps_left;
    done.held = done.held.max(held);
    tracing::info!(pid, left = done.left, held = ?done.held, "slots are restored");
    Ok(done)
}

/// Returns true if the process still exists and the other method may succeed after this failure.
fn may_be_forced(why: &memhook_inject::Error) -> bool {
    use memhook_inject::Error::{AlreadyTraced, Permission, TargetGone, TargetStopped};
    !matches!(
        why,
        TargetGone { .. } | Permission { .. } | AlreadyTraced { .. } | TargetStopped { .. }
    )
}

/// Returns the words to write with all threads held: slots, and the gates of other versions.
fn forced(pid: i32, look: &SlotLook) -> Vec<WordExchange> {
    let slots = look.still_held(pid);
    let mut exchanges: Vec<WordExchange> = slots
        .iter()
        .map(|slot| WordExchange {
            address: RemoteAddress(slot.address),
            from: slot.value,
            to: slot.target,
            // Any word that holds a wrapper's address is ours.
            is_permanent: true,
        })
        .collect();
    for copy in &look.copies {
        // The epoch is the lower half.
        if let (Some(gate), Some(word)) = (copy.gate(), copy.gate_word(pid))
            && word as u32 != 0
        {
            exchanges.push(WordExchange {
                address: RemoteAddress(gate),
                from: word,
                to: word & !0xffff_ffff,
                is_permanent: true,
            });
        }
    }
    exchanges
}

/// Restores originals by calling the hook. Slots for which this fails are left for the forced method.
fn by_hook(
    pid: i32,
    base: u64,
    safe: Option<SafePoints>,
    look: &mut SlotLook,
    files: &mut ModuleFiles,
    done: &mut Restored,
) -> Result<(), Error> {
    let Some(object) = hook_at(pid, base) else {
        return Err(Error::OtherProgram { pid });
    };
    let (entry, hook) = (object.entry_points()?, RemoteAddress(base));
    let libc = CLibrary::of(pid, &look.layout);
    let iterate = libc.and_then(|libc| libc.function("dl_iterate_phdr"));
    let iterate = iterate.unwrap_or_default().0;
    if iterate == 0 || look.slots.iter().all(|slot| slot.is_unsettled) {
        // The hook only has to close its gate, which is possible at any point.
        let mut held = hold_with_hook(pid, base)?;
        held.call(hook + entry.close, &[])?;
        done.held = done.held.max(held.release()?);
        return Ok(());
    }
    let safe = safe.unwrap_or_else(|| {
        let mut tables = UnwindTables::default();
        let mut modules = look.modules.clone();
        modules.extend(object.image(base).ok());
        tables.compile(&modules);
        SafePoints::new(&tables, &modules)
    });
    let held = safe.hold_outside_of_the_loader(&mut Reach::Running, pid, SAFE_POINT_PATIENCE);
    let (mut held, is_safe) = match held {
        Ok(held) if has_hook(pid, base) => (held, true),
        Err(memhook_inject::Error::NoSafeThread { .. }) => (hold_with_hook(pid, base)?, false),
        // Another program now has this pid.
        Ok(_) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    held.call(hook + entry.close, &[])?;
    // If this process is killed, the target's seccomp filters apply to the remaining calls, and might kill it.
    if is_safe && !is_filtered(&held, false) {
        // After any failure the slots are examined again.
        let _ = exchange_all(&mut held, hook + entry.exchange, iterate, look, files);
    }
    done.held = done.held.max(held.release()?);
    Ok(())
}

fn exchange_all(
    held: &mut Held,
    exchange: RemoteAddress,
    iterate: u64,
    look: &mut SlotLook,
    files: &mut ModuleFiles,
) -> Result<(), Error> {
    let pid = held.pid();
    let begin = Instant::now();
    while begin.elapsed() < STILL_PATIENCE {
        // With no words to exchange, the call only returns the loader's count.
        let (_, loader_count) = exchange_words(held, exchange, iterate, ANY_LOADER_COUNT, &[])?;
        look.refresh(pid, files)?;
        // Words in pages that the loader may be relocating are only written by the forced method.
        let mut slots = look.still_held(pid);
        slots.retain(|slot| !slot.is_unsettled);
        let (permanent, others): (Vec<Slot>, Vec<Slot>) =
            slots.into_iter().partition(|slot| slot.is_permanent);
        for chunk in permanent.chunks(MOST_WORDS) {
            exchange_words(held, exchange, iterate, ANY_LOADER_COUNT, chunk)?;
        }
        let mut is_stale = false;
        for chunk in others.chunks(MOST_WORDS) {
            let (answer, _) = exchange_words(held, exchange, iterate, loader_count, chunk)?;
            is_stale |= answer == hook_error::STALE;
        }
        if !is_stale {
            break;
        }
    }
    Ok(())
}

/// Returns the hook's result and the loader's count.
fn exchange_words(
    held: &mut Held,
    exchange: RemoteAddress,
    iterate: u64,
    loader_count: u64,
    slots: &[Slot],
) -> Result<(i64, u64), memhook_inject::Error> {
    let mut data = Vec::with_capacity(8 + slots.len() * size_of::<Exchange>());
    data.extend_from_slice(&0u64.to_le_bytes());
    for slot in slots {
        // struct Exchange: address, from, to, protection, state.
        data.extend_from_slice(&slot.address.to_le_bytes());
        data.extend_from_slice(&slot.value.to_le_bytes());
        data.extend_from_slice(&slot.target.to_le_bytes());
        data.extend_from_slice(&slot.protection.to_le_bytes());
        data.extend_from_slice(&0u32.to_le_bytes());
    }
    let count = slots.len() as u64;
    let result = held.call_with_data(exchange, &mut data, |at| {
        vec![(at + 8).0, count, iterate, loader_count, at.0]
    })?;
    let now = data.first_chunk().map_or(0, |now| u64::from_le_bytes(*now));
    Ok((result as i64, now))
}
