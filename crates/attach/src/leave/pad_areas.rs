//! The pads that a process maps, and the jumps that lead to them.

use crate::error::Error;
use crate::hold::code_exchanges::pause_after;
use memhook_inject::{CodeExchange, Exchanged, exchange_code, memory_of_code};
use memhook_probe::{REDIRECT_HEADER_BYTES, RedirectEntry, read_redirects, redirect_journal_bytes};
use memhook_process::{
    Behind, HookCopy, Mapping, ModuleImage, RemoteAddress, Slot, SlotKind, behind, mappings,
    read_memory, read_word,
};
use std::time::Duration;

const PATH: &str = "/memfd:memhook-pads";
/// Number of attempts if threads are executing the code.
const TRIES: u32 = 20;
/// PROT_* bits of a cell's page, which the target never writes.
const READ_EXECUTE: u32 = 5;

/// Returns all functions with pads that the journals of the process list. An entry whose jump does not lead to the
/// memory of the pads is skipped.
pub(crate) fn entries(pid: i32, maps: &[Mapping]) -> Vec<RedirectEntry> {
    let is_area = |m: &&Mapping| m.path == PATH && !m.shared && m.offset == 0;
    maps.iter()
        .filter(is_area)
        .flat_map(|area| entries_in(pid, area))
        .collect()
}

fn entries_in(pid: i32, area: &Mapping) -> Vec<RedirectEntry> {
    let at = RemoteAddress(area.start);
    let mut header = [0; REDIRECT_HEADER_BYTES];
    let journal_bytes = read_memory(pid, at, &mut header)
        .ok()
        .and_then(|()| redirect_journal_bytes(&header));
    let room = (area.end - area.start) as usize - REDIRECT_HEADER_BYTES;
    let Some(bytes) = journal_bytes.filter(|bytes| *bytes <= room) else {
        return Vec::new();
    };
    let mut journal = vec![0; bytes];
    if read_memory(pid, at + REDIRECT_HEADER_BYTES as u64, &mut journal).is_err() {
        return Vec::new();
    }
    let mut found = read_redirects(&journal);
    found.retain(|entry| entry.leads_into(&(area.start..area.end)));
    found
}

fn has_jump(pid: i32, maps: &[Mapping], entry: &RedirectEntry) -> bool {
    crate::hold::code_exchanges::has_jump(pid, maps, entry.at, &entry.jump)
}

/// Returns the addresses (avma) of functions that lead to pads.
pub(crate) fn live_places(pid: i32, maps: &[Mapping]) -> Vec<u64> {
    let mut found = entries(pid, maps);
    found.retain(|entry| has_jump(pid, maps, entry));
    found.into_iter().map(|entry| entry.at).collect()
}

/// Returns true if a function of the process leads to a pad.
pub(crate) fn are_live(pid: i32, maps: &[Mapping]) -> bool {
    entries(pid, maps)
        .iter()
        .any(|entry| has_jump(pid, maps, entry))
}

/// Finds the cells that hold a wrapper of one of these hooks. Returns them as slots whose `target` is the trampoline.
pub(crate) fn held_cells(
    pid: i32,
    maps: &[Mapping],
    modules: &[ModuleImage],
    copies: &[HookCopy],
) -> Vec<Slot> {
    let cells = entries(pid, maps).into_iter().filter_map(|entry| {
        let value = read_word(pid, RemoteAddress(entry.cell))?;
        let is_held = behind(copies, value) != Behind::Itself;
        let module = modules.iter().position(|m| m.base == entry.bias);
        is_held.then(|| cell_slot(&entry, value, module.unwrap_or(0), String::new()))
    });
    cells.collect()
}

/// Describes a cell as a slot. Such a slot is exchanged only while all threads are held.
pub(crate) fn cell_slot(entry: &RedirectEntry, value: u64, module: usize, symbol: String) -> Slot {
    Slot {
        address: entry.cell,
        symbol,
        kind: SlotKind::JumpSlot,
        module,
        value,
        target: entry.trampoline,
        protection: READ_EXECUTE,
        is_unsettled: true,
        is_permanent: true,
    }
}

/// Replaces the jumps with the original code. Returns how many functions still have a jump, and how long all threads
/// were held. Before the call, the cells must contain the trampolines again, or the gate of their hook must be closed.
pub(crate) fn put_back(pid: i32) -> Result<(u64, Duration), Error> {
    let (mut left, mut held, mut last) = (0, Duration::ZERO, Duration::ZERO);
    for attempt in 0..TRIES {
        let maps = mappings(pid)?;
        let found = entries(pid, &maps);
        let exchanges: Vec<CodeExchange> = found
            .iter()
            .filter(|entry| has_jump(pid, &maps, entry))
            .map(|entry| CodeExchange {
                at: RemoteAddress(entry.at),
                from: entry.jump.to_vec(),
                to: entry.original.to_vec(),
            })
            .collect();
        if exchanges.is_empty() {
            return Ok((0, held));
        }
        if attempt > 0 {
            std::thread::sleep(pause_after(last));
        }
        let memory = memory_of_code(pid)?;
        let result = exchange_code(pid, &memory, &exchanges, &[], false)?;
        last = result.held;
        held = held.max(last);
        let done = result.done.iter();
        left = done.filter(|done| **done != Exchanged::Done).count() as u64;
        if left == 0 {
            break;
        }
    }
    Ok((left, held))
}
