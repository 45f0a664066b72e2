//! Slots in pages that the target cannot make writable: a seccomp filter refuses mprotect(2).

use memhook_abi::slot_state::{PATCHED, REFUSED, RESTORED};
use memhook_inject::{WordExchange, force_words};
use memhook_stream::{Region, SlotView};
use std::time::Duration;

fn refused(region: &Region) -> Vec<SlotView> {
    let slots = region.slots().into_iter();
    slots
        .filter(|slot| slot.state == REFUSED && slot.replacement != 0)
        .collect()
}

/// Patches them with all threads held; returns for how long.
pub fn patch(pid: i32, region: &Region) -> Result<Duration, memhook_inject::Error> {
    let mut longest = Duration::ZERO;
    let slots = refused(region);
    if slots.is_empty() {
        return Ok(longest);
    }
    // A slot that lazy binding had not resolved at the look may hold the function by now.
    for from in [
        |slot: &SlotView| slot.expected,
        |slot: &SlotView| slot.original,
    ] {
        let open: Vec<&SlotView> = slots
            .iter()
            .filter(|slot| {
                region
                    .slot(slot.index)
                    .is_some_and(|now| now.state == REFUSED)
            })
            .collect();
        let exchanges: Vec<_> = open
            .iter()
            .map(|slot| WordExchange {
                address: slot.address,
                from: from(slot),
                to: slot.replacement,
            })
            .collect();
        let (done, held) = force_words(pid, &exchanges)?;
        longest = longest.max(held);
        for (slot, done) in open.iter().zip(done) {
            if done {
                region.set_slot_state(slot.index, PATCHED);
            }
        }
    }
    Ok(longest)
}

/// Restores those that still hold our value, with all threads held.
pub fn restore(pid: i32, region: &Region) -> Result<(), memhook_inject::Error> {
    let slots = refused(region);
    if slots.is_empty() {
        return Ok(());
    }
    let exchanges: Vec<_> = slots
        .iter()
        .map(|slot| WordExchange {
            address: slot.address,
            from: slot.replacement,
            to: slot.original,
        })
        .collect();
    for (slot, done) in slots.iter().zip(force_words(pid, &exchanges)?.0) {
        if done {
            region.set_slot_state(slot.index, RESTORED);
        }
    }
    Ok(())
}
