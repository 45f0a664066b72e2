//! Copies of our hook in a process, of this version or another, and the functions that their wrappers call. A forked
//! child inherits the patched slots of its traced parent, so an address inside any of these copies is never the
//! original value of a slot.

use crate::memory::Pages;
use crate::{Mapping, RemoteAddress, read_memory, read_word};
use goblin::elf::program_header::PT_LOAD;
use memhook_abi::{DESCRIPTION_MAGIC, HookDescription};
use std::{collections::HashMap, mem::offset_of, ops::Range};

/// Name of the hook's memory object, as shown in /proc/PID/maps.
const MAPPING_NAME: &str = "/memfd:memhook-hook";
/// Prefix of the name of a file that contains the hook. Such a file serves listeners that read only files.
pub const HOOK_FILE_PREFIX: &str = "memhook-hook-";
/// Suffix of the name of such a file; its prefix is [`HOOK_FILE_PREFIX`].
pub const HOOK_FILE_SUFFIX: &str = ".so";
/// Maximum number of bytes of a copy's writable data to search for its description.
const MOST_DATA: u64 = 1 << 20;
/// First version whose description includes emitting wrappers.
const WITH_EMITTING: u32 = 2;
/// Upper bounds, for all versions, on the numbers of functions, variants, and wrapper tables.
const LIMITS: (u32, u32, u32) = (1024, 64, 2);

/// Meaning of a value in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Not an address of ours.
    Itself,
    /// A wrapper that calls this function (avma).
    Wrapped(u64),
    /// Address in a hook, about which nothing else is known.
    Unknown,
}

/// One copy of the hook.
#[derive(Clone, Debug)]
pub struct HookCopy {
    /// First mapped byte (avma): the load bias.
    pub base: u64,
    /// Address after the last byte mapped from its file.
    pub end: u64,
    /// Description that the copy contains.
    description: Option<Description>,
}

#[derive(Clone, Debug)]
struct Description {
    /// Function and variant of each wrapper (avma).
    wrappers: HashMap<u64, (u32, u32)>,
    /// Wrappers by function and variant, in the order of [`Wrappers`].
    tables: Vec<Vec<u64>>,
    originals: Vec<u64>,
    originals_address: u64,
    variants: u32,
    gate: u64,
    region: u64,
}

/// Wrappers that an attach puts into slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrappers {
    /// Wrappers that record every call.
    Recording,
    /// Wrappers for a trace that ignores most calls.
    Selective,
    /// Wrappers that report to listeners.
    Emitting,
}

/// Returns true for a mapping of the hook, from anonymous memory or from a file that contains it.
pub fn is_hook(mapping: &Mapping) -> bool {
    let name = || mapping.path.rsplit('/').next().unwrap_or_default();
    mapping.path == MAPPING_NAME
        || (mapping.file_id.2 != 0
            && name().starts_with(HOOK_FILE_PREFIX)
            && name().ends_with(HOOK_FILE_SUFFIX))
}

/// Returns true for a mapping of the hook, or of memory that the hook shares with us.
pub fn is_ours(mapping: &Mapping) -> bool {
    mapping.path.starts_with("/memfd:memhook") || is_hook(mapping)
}

/// Returns the mappings of one copy, given its first one.
fn parts<'a>(
    first: &'a Mapping,
    maps: &'a [Mapping],
) -> impl Iterator<Item = &'a Mapping> + Clone + 'a {
    maps.iter().filter(|m| {
        m.path == first.path
            && m.file_id == first.file_id
            && m.start >= first.start
            && m.start - first.start < 1 << 30
    })
}

fn first_parts(maps: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    let is_first = |m: &&Mapping| m.offset == 0 && is_hook(m);
    maps.iter().filter(is_first)
}

/// Returns the ranges of copies that an attacher was mapping without the loader when it was killed. No thread has ever
/// executed them.
pub fn unfinished_copies(pid: i32, maps: &[Mapping]) -> Vec<Range<u64>> {
    let mut pages = Pages::of(pid).ok();
    first_parts(maps)
        .filter_map(|first| {
            let parts = parts(first, maps);
            if parts.clone().any(|part| part.exec) {
                return None;
            }
            let end = parts.map(|part| part.end).max()?;
            let pages = pages.as_mut()?;
            match ElfEnds::read(pages, first.start) {
                Some(elf) if elf.is_mapped => Some(first.start..end.max(elf.end)),
                Some(_) => None,
                // The copy's contents have not been written yet.
                None => (pages.word(first.start)? == 0).then_some(first.start..end),
            }
        })
        .collect()
}

/// Mark of a copy that was mapped without the loader. In a copy that was loaded by the loader, completely or not, the
/// byte is 0. The byte is one of the unused bytes of `e_ident` (gABI, "ELF Identification").
pub const MAPPED_MARK: (usize, u8) = (15, b'm');

/// Size of a loaded module by its ELF header, and how it was loaded.
struct ElfEnds {
    end: u64,
    is_mapped: bool,
}

impl ElfEnds {
    /// Reads a module whose ELF header begins at `start` (avma).
    fn read(pages: &mut Pages, start: u64) -> Option<ElfEnds> {
        if pages.bytes(start)? != *b"\x7fELF\x02" {
            return None;
        }
        // Elf64_Ehdr: e_phoff at 32, e_phnum at 56. Elf64_Phdr: p_type at 0, p_vaddr at 16, p_memsz at 40.
        let headers = start.checked_add(pages.word(start + 32)?)?;
        let count = u16::from_le_bytes(pages.bytes(start + 56)?);
        let mut found = ElfEnds {
            end: start,
            is_mapped: pages.bytes(start + MAPPED_MARK.0 as u64)? == [MAPPED_MARK.1],
        };
        for at in (0..u64::from(count)).map(|i| headers.wrapping_add(i * 56)) {
            if pages.half(at)? == PT_LOAD {
                let svma = pages.word(at.wrapping_add(16))?;
                let bytes = pages.word(at.wrapping_add(40))?;
                let end = svma.checked_add(bytes).filter(|end| *end < 1 << 30)?;
                found.end = found.end.max(start + end.next_multiple_of(4096));
            }
        }
        Some(found)
    }
}

/// Returns all complete copies in a process.
pub fn hook_copies(pid: i32, maps: &[Mapping]) -> Vec<HookCopy> {
    let unfinished = unfinished_copies(pid, maps);
    let is_whole = |first: &&Mapping| !unfinished.iter().any(|part| part.start == first.start);
    let mut copies: Vec<HookCopy> = Vec::new();
    for first in first_parts(maps).filter(is_whole) {
        let parts = parts(first, maps);
        let data = parts.clone().filter(|m| m.write);
        copies.push(HookCopy {
            base: first.start,
            end: parts.map(|m| m.end).max().unwrap_or(first.end),
            description: data.filter_map(|m| Description::find(pid, m)).next(),
        });
    }
    copies
}

/// Returns the meaning of a value found in a slot of the process.
pub fn behind(copies: &[HookCopy], value: u64) -> Behind {
    match copies.iter().find(|c| (c.base..c.end).contains(&value)) {
        None => Behind::Itself,
        Some(copy) => copy
            .original_of(value)
            .map_or(Behind::Unknown, Behind::Wrapped),
    }
}

impl HookCopy {
    /// Returns the function that a wrapper (avma) calls.
    pub fn original_of(&self, wrapper: u64) -> Option<u64> {
        let d = self.description.as_ref()?;
        let &(function, variant) = d.wrappers.get(&wrapper)?;
        let original = *d
            .originals
            .get((function * d.variants + variant) as usize)?;
        (original != 0).then_some(original)
    }

    /// Returns the originals known to this copy, as function, variant and address (avma).
    pub fn originals(&self) -> impl Iterator<Item = (u32, u32, u64)> {
        self.description.iter().flat_map(|d| {
            d.originals
                .iter()
                .enumerate()
                .filter(|(_, original)| **original != 0)
                .map(|(i, &original)| (i as u32 / d.variants, i as u32 % d.variants, original))
        })
    }

    /// Returns the address (avma) of the hook's word that contains the original of a function's variant.
    pub fn place_of_original(&self, function: u32, variant: u32) -> Option<u64> {
        let d = self.description.as_ref()?;
        let index = u64::from(function) * u64::from(d.variants) + u64::from(variant);
        (variant < d.variants && index < d.originals.len() as u64)
            .then(|| d.originals_address + index * 8)
    }

    /// Returns the wrapper (avma) of a function's variant.
    pub fn wrapper(&self, function: u32, variant: u32, which: Wrappers) -> Option<u64> {
        let d = self.description.as_ref()?;
        let table = d.tables.get(which as usize)?;
        let index = function as usize * d.variants as usize + variant as usize;
        (variant < d.variants).then(|| table.get(index).copied())?
    }

    /// Returns the number of the attach if tracing is on, otherwise 0; `None` if this is unknown.
    pub fn epoch(&self, pid: i32) -> Option<u32> {
        self.gate_word(pid).map(|word| word as u32)
    }

    /// Returns the owner of the regions that the hook uses ([`memhook_abi::Control::owner`]); 0 if it uses none, which
    /// is the case in a forked child.
    pub fn owner(&self, pid: i32) -> u64 {
        let gate = self.description.as_ref().map(|d| d.gate);
        gate.and_then(|gate| read_word(pid, RemoteAddress(gate) + 8))
            .unwrap_or(0)
    }

    /// Returns the address of its gate (avma).
    pub fn gate(&self) -> Option<u64> {
        Some(self.description.as_ref()?.gate)
    }

    /// Returns the first word of the gate, which contains epoch and last epoch.
    pub fn gate_word(&self, pid: i32) -> Option<u64> {
        read_word(pid, RemoteAddress(self.gate()?))
    }

    /// Returns the address of the last region that the hook (or its parent's copy) received (avma); 0 if there is none.
    pub fn region(&self, pid: i32) -> Option<u64> {
        read_word(pid, RemoteAddress(self.description.as_ref()?.region))
    }
}

fn words(pid: i32, address: u64, count: u64) -> Option<Vec<u64>> {
    let mut bytes = vec![0; usize::try_from(count).ok()? * 8];
    read_memory(pid, RemoteAddress(address), &mut bytes).ok()?;
    let words = bytes.as_chunks::<8>().0;
    Some(words.iter().map(|w| u64::from_le_bytes(*w)).collect())
}

impl Description {
    /// Searches for the description in a writable mapping of a copy.
    fn find(pid: i32, data: &Mapping) -> Option<Description> {
        let bytes = (data.end - data.start).min(MOST_DATA);
        let data_words = words(pid, data.start, bytes / 8)?;
        let length = size_of::<HookDescription>() / 8;
        let at = data_words.windows(length).enumerate().find(|(i, w)| {
            w[..2] == DESCRIPTION_MAGIC
                && w[offset_of!(HookDescription, own_address) / 8] == data.start + *i as u64 * 8
        })?;
        Description::read(pid, at.1)
    }

    fn read(pid: i32, words_of: &[u64]) -> Option<Description> {
        let word = |offset: usize| words_of[offset / 8];
        let half = |offset: usize| (word(offset & !7) >> ((offset & 4) * 8)) as u32;
        let functions = half(offset_of!(HookDescription, functions));
        let variants = half(offset_of!(HookDescription, variants));
        let tables = half(offset_of!(HookDescription, tables));
        if variants == 0 || functions > LIMITS.0 || variants > LIMITS.1 || tables > LIMITS.2 {
            return None;
        }
        let count = u64::from(functions * variants);
        let emitting = half(offset_of!(HookDescription, version)) >= WITH_EMITTING;
        let emitting = emitting.then_some(offset_of!(HookDescription, emitting_wrappers));
        let places = [
            offset_of!(HookDescription, wrappers),
            offset_of!(HookDescription, selective_wrappers),
        ];
        let tables = places
            .into_iter()
            .take(tables as usize)
            .chain(emitting)
            .map(|at| words(pid, word(at), count))
            .collect::<Option<Vec<_>>>()?;
        let originals_address = word(offset_of!(HookDescription, originals));
        let numbered = tables.iter().flat_map(|table| table.iter().enumerate());
        Some(Description {
            wrappers: numbered
                .map(|(i, &wrapper)| (wrapper, (i as u32 / variants, i as u32 % variants)))
                .collect(),
            originals: words(pid, originals_address, count)?,
            tables,
            originals_address,
            variants,
            gate: word(offset_of!(HookDescription, gate)),
            region: word(offset_of!(HookDescription, region)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test uses a synthetic copy in its own memory.
    #[test]
    fn a_description_is_read_and_believed_only_within_bounds() {
        let pid = std::process::id() as i32;
        let wrappers = [0x1000u64, 0x1010, 0x1020, 0x1030];
        let originals = [0x2000u64, 0, 0x2020, 0];
        let mut memory = vec![0u64; 512];
        let at = 17;
        let start = memory.as_ptr() as u64;
        let halves = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let description = [
            DESCRIPTION_MAGIC[0],
            DESCRIPTION_MAGIC[1],
            start + at as u64 * 8,
            halves(1, 2),
            halves(2, 2),
            wrappers.as_ptr() as u64,
            wrappers.as_ptr() as u64,
            originals.as_ptr() as u64,
            0,
            0,
        ];
        memory[at..at + description.len()].copy_from_slice(&description);
        // A copy of only the bytes.
        memory[200..200 + description.len()].copy_from_slice(&description);
        memory[200] = DESCRIPTION_MAGIC[0];
        let mapping = |start: u64| Mapping {
            start,
            end: start + 4096,
            read: true,
            write: true,
            exec: false,
            shared: false,
            offset: 0,
            file_id: (0, 0, 1),
            path: MAPPING_NAME.into(),
            deleted: true,
        };
        let found = Description::find(pid, &mapping(start)).expect("a description");
        let copy = HookCopy {
            base: 0x1000,
            end: 0x2000,
            description: Some(found),
        };
        let copies = [copy];
        assert_eq!(behind(&copies, 0x1000), Behind::Wrapped(0x2000));
        assert_eq!(behind(&copies, 0x1020), Behind::Wrapped(0x2020));
        assert_eq!(behind(&copies, 0x1010), Behind::Unknown);
        assert_eq!(behind(&copies, 0x1001), Behind::Unknown);
        assert_eq!(behind(&copies, 0x2000), Behind::Itself);
        assert_eq!(copies[0].originals().count(), 2);
        assert_eq!(copies[0].wrapper(1, 0, Wrappers::Selective), Some(0x1020));
        // Now it claims to have a million functions.
        memory[at + 3] = halves(1, 1 << 20);
        assert!(Description::find(pid, &mapping(start)).is_none());
    }
}
