//! Where the target's C library keeps `errno`, so that remote calls leave it as it was.

use goblin::elf::Elf;
use goblin::elf::program_header::PT_LOAD;

use crate::maps::{self, Mapping};

/// No C library is larger, with all of its debug information. What is, only has the name of one.
const MOST_LIBRARY_BYTES: u64 = 256 << 20;

/// Address of `__errno_location` in the target: a function without arguments that returns the
/// address of the calling thread's `errno` (LSB; glibc and musl). `None` for a target without a
/// C library as a shared object.
pub(crate) fn find_location_function(pid: i32, mappings: &[Mapping]) -> Option<u64> {
    let first = mappings
        .iter()
        .find(|m| maps::is_libc(&m.name) && m.file_offset == 0)?;
    let at = first.start_avma..first.end_avma;
    let most = MOST_LIBRARY_BYTES;
    let bytes = memhook_foreign::read_mapped(pid, &at, &first.name, first.inode, most).ok()?;
    let elf = Elf::parse(&bytes).ok()?;
    let first_load = elf
        .program_headers
        .iter()
        .find(|header| header.p_type == PT_LOAD)?;
    let symbol = elf.dynsyms.iter().find(|symbol| {
        symbol.st_value != 0 && elf.dynstrtab.get_at(symbol.st_name) == Some("__errno_location")
    })?;
    Some(
        first
            .start_avma
            .wrapping_sub(first_load.p_vaddr)
            .wrapping_add(symbol.st_value),
    )
}
