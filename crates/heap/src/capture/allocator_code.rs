//! Code ranges of allocators other than glibc's. A heap is consistent only while no thread is in
//! this code.

use crate::capture::modules::program_headers;
use goblin::elf::program_header::{PF_X, PT_LOAD};
use memchr::memmem;
use memhook_process::ModuleImage;
use std::ops::Range;

/// Allocators whose library contains no other code.
const LIBRARIES: [&str; 3] = ["jemalloc", "mimalloc", "tcmalloc"];
/// A function that only jemalloc has. It identifies a copy whatever name prefix it was built with.
const MARK: &[u8] = b"tcache_bin_flush_small";
/// Suffix of the names of parts that the compiler splits off a function. A number may follow.
const COLD: &[u8] = b".cold";

/// Size of an `Elf64_Sym`: name offset, type and section, address, size.
const SYMBOL_BYTES: usize = 24;
const FUNCTION: u8 = 2;

/// Returns the code of the allocator in a module, if its heap is dissected. `allocator` is the
/// allocator that the module's exports identify.
pub fn code_of(image: &ModuleImage, allocator: Option<&str>) -> Vec<Range<u64>> {
    if image.is_libc || image.is_loader {
        return Vec::new();
    }
    if !image.is_main && allocator.is_some_and(|name| LIBRARIES.contains(&name)) {
        let headers = program_headers(&image.bytes).unwrap_or_default();
        let code = headers
            .iter()
            .filter(|h| h.p_type == PT_LOAD && h.p_flags & PF_X != 0);
        let code = code.map(|header| {
            let start = image.base.wrapping_add(header.p_vaddr);
            start..start.saturating_add(header.p_memsz)
        });
        return code.collect();
    }
    linked_in(image).unwrap_or_default()
}

/// Returns the code of a copy that is linked into a program, found by its function names.
fn linked_in(image: &ModuleImage) -> Option<Vec<Range<u64>>> {
    // No other symbol table contains the names of unexported functions.
    let names = image.bytes.section(".strtab")?;
    let mark = memmem::find(&names, MARK)?;
    let start = names[..mark].iter().rposition(|&b| b == 0)? + 1;
    let prefix = names[start..mark].to_vec();
    let symbols = image.bytes.section(".symtab")?;
    let cold_part = memmem::Finder::new(COLD);
    let mut hot: Option<Range<u64>> = None;
    let mut cold: Option<Range<u64>> = None;
    for symbol in symbols.chunks_exact(SYMBOL_BYTES) {
        let half =
            |at: usize| u32::from_le_bytes(symbol[at..at + 4].try_into().unwrap_or_default());
        let word =
            |at: usize| u64::from_le_bytes(symbol[at..at + 8].try_into().unwrap_or_default());
        if symbol[4] & 0xf != FUNCTION || half(4) >> 16 == 0 {
            continue;
        }
        let name = names.get(half(0) as usize..).unwrap_or_default();
        let name = name.split(|&b| b == 0).next().unwrap_or_default();
        // Without the prefix, such names could belong to other code of the program.
        if prefix.is_empty() || !name.starts_with(&prefix) {
            continue;
        }
        let is_cold = cold_part.find(name).is_some();
        let range = if is_cold { &mut cold } else { &mut hot };
        let start = image.base.wrapping_add(word(8));
        let end = start.saturating_add(word(16));
        *range = Some(match range.take() {
            Some(range) => range.start.min(start)..range.end.max(end),
            None => start..end,
        });
    }
    Some(hot.into_iter().chain(cold).collect())
}
