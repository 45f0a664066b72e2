//! Functions of the target's C library that remote calls need.

use goblin::elf::Elf;
use goblin::elf::program_header::PT_LOAD;

use crate::maps::{self, Mapping};

/// No C library is larger, with all of its debug information. What is, only has the name of one.
const MOST_LIBRARY_BYTES: u64 = 256 << 20;

/// Their addresses; none for a target without a C library as a shared object.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LibcFunctions {
    /// `__errno_location`: without arguments, returns the address of the calling thread's `errno` (LSB; glibc and
    /// musl), so that remote calls leave it as it was.
    pub errno_location: Option<u64>,
    /// `dlerror`; before glibc 2.34 it is in another library.
    pub dlerror: Option<u64>,
}

impl LibcFunctions {
    /// Looks into the file of the library; slow.
    pub(crate) fn find(pid: i32, mappings: &[Mapping]) -> LibcFunctions {
        found(pid, mappings).unwrap_or_default()
    }
}

fn found(pid: i32, mappings: &[Mapping]) -> Option<LibcFunctions> {
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
    let base = first.start_avma.wrapping_sub(first_load.p_vaddr);
    let address = |name: &str| {
        let symbol = elf.dynsyms.iter().find(|symbol| {
            symbol.st_value != 0 && elf.dynstrtab.get_at(symbol.st_name) == Some(name)
        })?;
        Some(base.wrapping_add(symbol.st_value))
    };
    Some(LibcFunctions {
        errno_location: address("__errno_location"),
        dlerror: address("dlerror"),
    })
}
