//! The program that a user-mode emulator, such as qemu-user, runs.
//!
//! An emulator maps the segments of a program at their usual addresses, like the kernel, but translates the code
//! instead of executing it, so the code is mapped as data. Neither the modules nor the heaps of such a program belong
//! to the process.

use crate::load_segments::{LoadSegment, LoadSegments};
use crate::{Mapping, RemoteAddress, read_memory};
use goblin::container::{Container, Ctx};
use goblin::elf::{Elf, ProgramHeader, program_header::PT_LOAD};

/// Size of the part at the beginning of a file in which linkers place all program headers.
const HEADER_BYTES: usize = 4096;

/// Number of mappings before and after a mapping that are searched for others of the same file.
const NEAR: usize = 16;

/// Returns the path of the program that a process with these mappings emulates.
pub fn emulated_program(pid: i32, maps: &[Mapping]) -> Option<String> {
    let mut emulated = maps.iter().enumerate().filter(|&(index, first)| {
        if first.offset != 0 || !first.read || first.exec || !first.path.starts_with('/') {
            return false;
        }
        // Hardly any process maps private data of a file without also mapping the file's code. In a small file, the
        // data may also start at the first byte, and the code may be mapped before it.
        let near = maps[index.saturating_sub(NEAR)..].iter().take(2 * NEAR);
        let mut of_file = near.filter(|m| m.is_same_file(first));
        let has_code = of_file.clone().any(|m| m.exec);
        if has_code || !of_file.any(|m| m.write && !m.shared) {
            return false;
        }
        let mut bytes = [0; HEADER_BYTES];
        let is_read = read_memory(pid, RemoteAddress(first.start), &mut bytes).is_ok();
        let segments = segments(&bytes).filter(|_| is_read);
        segments.is_some_and(|segments| segments.are_emulated(first, maps))
    });
    // The libraries of the program are mapped after it.
    emulated.next().map(|(_, first)| first.path.clone())
}

/// Returns the segments of a file for any architecture.
fn segments(bytes: &[u8]) -> Option<LoadSegments> {
    let header = Elf::parse_header(bytes).ok()?;
    let container = header.container().unwrap_or(Container::Big);
    let ctx = Ctx::new(container, header.endianness().ok()?);
    let (offset, count) = (header.e_phoff as usize, header.e_phnum.into());
    let headers = ProgramHeader::parse(bytes, offset, count, ctx).ok()?;
    let loads = headers.iter().filter(|header| header.p_type == PT_LOAD);
    Some(LoadSegments(loads.map(LoadSegment::of).collect()))
}
