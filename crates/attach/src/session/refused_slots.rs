//! Slots that no thread of the target can patch. Either their pages cannot be made writable (a seccomp filter refuses
//! mprotect(2), or might kill the process for it), or the loader may be relocating the pages at the moment, or modules
//! are loaded and unloaded too fast.

use memhook_abi::slot_state::{PATCHED, PENDING, REFUSED};
use memhook_inject::{WordExchange, force_words, force_words_of_held};
use memhook_process::{HookCopy, RemoteAddress, Wrappers};
use memhook_stream::{Region, SlotView};
use std::time::Duration;

/// Words to write for a slot: first the original for the hook, then the wrapper.
struct Forced {
    slot: SlotView,
    wrapper: u64,
    place_of_original: u64,
}

fn forced(region: &Region, hook: &HookCopy, which: Wrappers) -> Vec<Forced> {
    let open = |slot: &SlotView| matches!(slot.state, REFUSED | PENDING);
    let slots = region.slots().into_iter().filter(open);
    slots
        .filter_map(|slot| {
            Some(Forced {
                wrapper: hook.wrapper(slot.function, slot.variant, which)?,
                place_of_original: hook.place_of_original(slot.function, slot.variant)?,
                slot,
            })
        })
        .collect()
}

/// Patches the slots with all threads held, and returns the duration of the hold. While the threads are held,
/// `are_current` checks that the modules are still those in which the slots were found.
pub fn patch(
    pid: i32,
    region: &Region,
    hook: &HookCopy,
    which: Wrappers,
    are_current: &dyn Fn() -> bool,
) -> Result<Duration, memhook_inject::Error> {
    let force = |words: &[WordExchange]| force_words(pid, words, are_current);
    patch_by(&force, region, forced(region, hook, which))
}

/// Like [`patch`], for slots that are never unmapped, in a process whose threads are all held by the caller.
pub fn patch_held(
    pid: i32,
    region: &Region,
    hook: &HookCopy,
    which: Wrappers,
    is_wanted: &dyn Fn(&SlotView) -> bool,
) -> Result<(), memhook_inject::Error> {
    let mut slots = forced(region, hook, which);
    slots.retain(|forced| is_wanted(&forced.slot));
    let force =
        |words: &[WordExchange]| Ok((force_words_of_held(pid, words, &|| true)?, Duration::ZERO));
    patch_by(&force, region, slots).map(drop)
}

/// Exchanges words. Returns the words that were exchanged, and the time for which threads were held.
type Force<'a> =
    dyn Fn(&[WordExchange]) -> Result<(Vec<bool>, Duration), memhook_inject::Error> + 'a;

fn patch_by(
    force: &Force<'_>,
    region: &Region,
    slots: Vec<Forced>,
) -> Result<Duration, memhook_inject::Error> {
    let mut longest = Duration::ZERO;
    if slots.is_empty() {
        return Ok(longest);
    }
    // Each original is written once, before the first slot whose wrapper calls it. No thread calls it before.
    let originals: Vec<_> = slots
        .iter()
        .map(|forced| WordExchange {
            address: RemoteAddress(forced.place_of_original),
            from: 0,
            to: forced.slot.original,
            is_permanent: true,
        })
        .collect();
    longest = longest.max(force(&originals)?.1);
    // A slot that lazy binding had not resolved when it was read may hold the function now.
    for from in [
        |slot: &SlotView| slot.expected,
        |slot: &SlotView| slot.original,
    ] {
        let is_open = |forced: &&Forced| {
            let now = region.slot(forced.slot.index);
            now.is_some_and(|now| now.state != PATCHED)
        };
        let open: Vec<&Forced> = slots.iter().filter(is_open).collect();
        let exchanges: Vec<_> = open
            .iter()
            .map(|forced| WordExchange {
                address: RemoteAddress(forced.slot.address),
                from: from(&forced.slot),
                to: forced.wrapper,
                is_permanent: forced.slot.is_permanent,
            })
            .collect();
        if exchanges.is_empty() {
            continue;
        }
        let (done, held) = force(&exchanges)?;
        longest = longest.max(held);
        for (forced, done) in open.iter().zip(done) {
            if done {
                region.set_slot_state(forced.slot.index, PATCHED);
            }
        }
    }
    Ok(longest)
}
