//! File addresses in a mapping with known offset and length, but unknown segments.

use crate::files::Files;
use crate::{ModuleFile, SearchPath};
use object::elf::{PF_X, PT_LOAD, ProgramHeader64};
use object::read::elf::ProgramHeader;

const PAGE: u64 = 4096;

/// A loaded segment.
struct Segment {
    offset: u64,
    svma: u64,
    /// Bytes in the file.
    bytes: u64,
    /// Bytes in memory.
    memory_bytes: u64,
    is_code: bool,
}

impl Segment {
    fn of(header: &ProgramHeader64<object::Endianness>) -> Option<Segment> {
        let endian = object::Endianness::Little;
        (header.p_type(endian) == PT_LOAD).then(|| Segment {
            offset: header.p_offset(endian),
            svma: header.p_vaddr(endian),
            bytes: header.p_filesz(endian),
            memory_bytes: header.p_memsz(endian),
            is_code: header.p_flags(endian).contains(PF_X),
        })
    }

    fn page(&self) -> u64 {
        self.svma & !(PAGE - 1)
    }

    /// Returns the address of a byte of the file, as if the segment were long enough.
    fn svma_of(&self, offset: u64) -> u64 {
        self.svma.wrapping_sub(self.offset).wrapping_add(offset)
    }

    /// Returns true if a mapping may belong to this segment alone.
    fn holds(&self, offset: u64, bytes: u64) -> bool {
        let end = self.svma.saturating_add(self.memory_bytes);
        let all = end.saturating_sub(self.page()).saturating_add(PAGE - 1) & !(PAGE - 1);
        self.offset & !(PAGE - 1) == offset && bytes <= all
    }
}

/// Returns the address in its file (svma) of the first byte of a mapping. The mapping begins at
/// `offset` of the file of `module`, and `start` and `end` of the module are its bounds. A mapping
/// at offset 0 may be the mapping of the whole module.
pub(crate) fn first_svma(module: &ModuleFile, search: &SearchPath, offset: u64) -> Option<u64> {
    let files = Files::open(module, search, &mut Vec::new());
    let bytes = module.end.saturating_sub(module.start);
    files.with_segments(|headers, is_own| {
        let segments: Vec<Segment> = headers.iter().filter_map(Segment::of).collect();
        if !is_own {
            // A tool that strips the code from a file gives its segments other offsets.
            let first = segments.iter().map(Segment::page).min();
            let code = segments.iter().find(|segment| segment.is_code);
            let code = code.map(Segment::page);
            return if offset == 0 { first } else { code };
        }
        first_of(&segments, offset, bytes)
    })
}

fn first_of(segments: &[Segment], offset: u64, bytes: u64) -> Option<u64> {
    let code = segments.iter().filter(|segment| segment.is_code);
    let others = segments.iter().filter(|segment| !segment.is_code);
    let mut by_use = code.chain(others);
    let same = by_use.find(|segment| segment.holds(offset, bytes));
    if let Some(segment) = same {
        return Some(segment.svma_of(offset));
    }
    if offset == 0 {
        return segments.iter().map(Segment::page).min();
    }
    // The mapping is a part of a segment whose protection was changed.
    let inside = |segment: &&Segment| {
        let end = segment.offset.saturating_add(segment.bytes);
        (segment.offset..end).contains(&offset)
    };
    let part = segments.iter().find(inside)?;
    Some(part.svma_of(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(offset: u64, svma: u64, bytes: u64, is_code: bool) -> Segment {
        Segment {
            offset,
            svma,
            bytes,
            memory_bytes: bytes,
            is_code,
        }
    }

    /// The layout is LLD's: each segment is one page further in memory than in the file.
    #[test]
    fn addresses_of_mappings() {
        let segments = [
            segment(0, 0, 0x1800, false),
            segment(0x1800, 0x2800, 0x3000, true),
            segment(0x4800, 0x6800, 0x100, false),
        ];
        // The whole module, its code as the loader maps it, and the second half of its code.
        for (offset, bytes, svma) in [
            (0, 0x7000, 0),
            (0x1000, 0x4000, 0x2000),
            (0x3000, 0x1000, 0x4000),
            (0x4000, 0x1000, 0x6000),
        ] {
            assert_eq!(first_of(&segments, offset, bytes), Some(svma), "{offset:x}");
        }
        assert_eq!(first_of(&segments, 0x9000, 0x1000), None);
        assert_eq!(first_of(&[], 0, 1), None);
        // One program has a fixed address, and one has code that begins in the first page of its
        // file.
        let fixed = [segment(0, 0x40_0000, 0x2000, true)];
        assert_eq!(first_of(&fixed, 0, 0x2000), Some(0x40_0000));
        let small = [
            segment(0, 0, 0x500, false),
            segment(0x500, 0x1500, 0x100, true),
        ];
        assert_eq!(first_of(&small, 0, 0x1000), Some(0x1000));
        assert_eq!(first_of(&small, 0, 0x2000), Some(0));
    }
}
