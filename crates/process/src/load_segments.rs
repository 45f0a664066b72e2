//! Loadable segments of a module (PT_LOAD), and the mappings that belong to them.
//!
//! The offsets of mappings do not show where a module begins and ends: linkers such as lld and mold map one page of the
//! file several times, even the first one, so that headers, code and data may all be at offset 0.

use crate::Mapping;
use goblin::elf::ProgramHeader;

const PAGE: u64 = 4096;

fn page(address: u64) -> u64 {
    address & !(PAGE - 1)
}

/// One PT_LOAD (gABI, "Program Header").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoadSegment {
    /// Start address (svma).
    pub svma: u64,
    /// Size in memory.
    pub bytes: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Size in the file.
    pub file_bytes: u64,
    /// True if it is executable.
    pub exec: bool,
}

/// All PT_LOADs of one module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoadSegments(pub Vec<LoadSegment>);

/// Relation of a mapping to a segment.
#[derive(PartialEq, Eq)]
enum Part {
    /// Bytes of the file that belong to the segment.
    OfFile,
    /// Memory without a file: zeroed data, or memory with which a program has replaced its code, for instance to use
    /// large pages.
    Anonymous,
}

/// Returns true for anonymous memory. Zeroed data may have its own name, or be merged with the mapping of the heap
/// after it.
fn is_anonymous(mapping: &Mapping) -> bool {
    let path = &mapping.path;
    let is_named = path.is_empty() || path == "[heap]" || path.starts_with("[anon");
    mapping.file_id.2 == 0 && is_named
}

impl LoadSegments {
    /// Returns the lowest page-aligned address (svma), which corresponds to offset 0 of the file.
    pub(crate) fn lowest(&self) -> u64 {
        self.0.iter().map(|s| page(s.svma)).min().unwrap_or(0)
    }

    /// Returns true if the file's segments are mapped at their usual addresses, but the code is not executable and the
    /// data are writable: this is the case for a program whose code an emulator translates.
    pub(crate) fn are_emulated(&self, first: &Mapping, maps: &[Mapping]) -> bool {
        let bias = first.start.wrapping_sub(self.lowest());
        // The first part of the data may have been made read-only after relocation.
        let last_mapping = |segment: &LoadSegment| {
            let last = segment.file_bytes.checked_sub(1)?;
            let address = bias.wrapping_add(segment.svma).wrapping_add(last);
            let at = maps.partition_point(|m| m.end <= address);
            let mapping = maps.get(at).filter(|m| m.contains(address))?;
            let offset = mapping.offset.wrapping_add(page(address) - mapping.start);
            let wanted = page(segment.offset.wrapping_add(last));
            (mapping.is_same_file(first) && !mapping.shared && offset == wanted).then_some(mapping)
        };
        let (code, data): (Vec<&LoadSegment>, _) = self.0.iter().partition(|s| s.exec);
        let is_translated = |m: &Mapping| !m.exec && !m.write;
        code.into_iter().filter_map(last_mapping).any(is_translated)
            && data.into_iter().filter_map(last_mapping).any(|m| m.write)
    }

    /// Returns the end of a module whose first mapping is `first`, one of `maps`. Returns `None` unless the file is
    /// mapped as its segments require, with executable code: it may be mapped only as data.
    pub(crate) fn end(&self, first: &Mapping, maps: &[Mapping]) -> Option<u64> {
        let bias = first.start.wrapping_sub(self.lowest());
        let (mut end, mut has_code, mut has_more) = (first.end, false, false);
        for segment in &self.0 {
            let start = bias.wrapping_add(page(segment.svma));
            let at = maps.partition_point(|m| m.end <= start);
            let Some(mapping) = maps.get(at).filter(|m| m.contains(start)) else {
                continue;
            };
            let Some(part) = segment.part(first, mapping, start) else {
                continue;
            };
            has_code |= segment.exec && mapping.exec;
            has_more |= part == Part::OfFile && (start != first.start || segment.exec);
            let wanted = bias.wrapping_add(segment.svma);
            let wanted = wanted
                .saturating_add(segment.bytes)
                .saturating_add(PAGE - 1);
            end = end.max(mapped_until(&maps[at..], first, page(wanted)));
        }
        (has_code && has_more).then_some(end)
    }
}

impl LoadSegment {
    pub(crate) fn of(header: &ProgramHeader) -> LoadSegment {
        LoadSegment {
            svma: header.p_vaddr,
            bytes: header.p_memsz,
            offset: header.p_offset,
            file_bytes: header.p_filesz,
            exec: header.is_executable(),
        }
    }

    fn part(&self, first: &Mapping, mapping: &Mapping, start: u64) -> Option<Part> {
        let offset = mapping.offset.saturating_add(start - mapping.start);
        if mapping.is_same_file(first) && offset == page(self.offset) {
            return Some(Part::OfFile);
        }
        let may_be = self.exec || self.file_bytes == 0;
        (may_be && is_anonymous(mapping)).then_some(Part::Anonymous)
    }
}

/// Returns how far the first of these mappings, together with adjacent mappings that follow it, extends into `wanted`.
fn mapped_until(maps: &[Mapping], first: &Mapping, wanted: u64) -> u64 {
    let mut end = maps[0].end;
    for next in &maps[1..] {
        let is_part = next.is_same_file(first) || is_anonymous(next);
        if end >= wanted || next.start != end || !is_part {
            break;
        }
        end = next.end;
    }
    end.min(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_maps;

    fn segment(svma: u64, bytes: u64, offset: u64, file_bytes: u64, exec: bool) -> LoadSegment {
        LoadSegment {
            svma,
            bytes,
            offset,
            file_bytes,
            exec,
        }
    }

    fn end(segments: &[LoadSegment], maps: &str, first: usize) -> Option<u64> {
        let maps = parse_maps(maps);
        LoadSegments(segments.to_vec()).end(&maps[first], &maps)
    }

    /// lld lays out a small library like this: all of its segments are in the first page of the file.
    #[test]
    fn segments_that_share_the_first_page_of_the_file() {
        let segments = [
            segment(0, 0x5f4, 0, 0x5f4, false),
            segment(0x1600, 0x120, 0x600, 0x120, true),
            segment(0x2720, 0x1a0, 0x720, 0x1a0, false),
            segment(0x38c0, 0x18, 0x8c0, 0x18, false),
        ];
        let maps = "\
10000-11000 r--p 00000000 fe:01 42 /a/x.so
11000-12000 r-xp 00000000 fe:01 42 /a/x.so
12000-13000 r--p 00000000 fe:01 42 /a/x.so
13000-14000 rw-p 00000000 fe:01 42 /a/x.so
14000-15000 rw-p 00000000 00:00 0
15000-16000 r--p 00000000 fe:01 43 /a/y.so";
        assert_eq!(end(&segments, maps, 0), Some(0x14000));
    }

    /// This layout occurs in a JVM, whose compiled code is after the last library that was loaded.
    #[test]
    fn memory_that_follows_is_not_the_modules() {
        let segments = [
            segment(0, 0x800, 0, 0x800, false),
            segment(0x1000, 0x500, 0x1000, 0x500, true),
            segment(0x2800, 0x1b21, 0x1800, 0x100, false),
        ];
        let maps = "\
10000-11000 r--p 00000000 fe:01 42 /a/x.so
11000-12000 r-xp 00001000 fe:01 42 /a/x.so
12000-13000 rw-p 00001000 fe:01 42 /a/x.so
13000-900000 rwxp 00000000 00:00 0";
        assert_eq!(end(&segments, maps, 0), Some(0x15000));
        // Segments from a damaged file.
        let mut damaged = segments;
        damaged[2].bytes = u64::MAX;
        assert_eq!(end(&damaged, maps, 0), Some(0x90_0000));
        // The zeroed data have been merged with the mapping of the heap.
        let heap = maps.replace("rwxp 00000000 00:00 0", "rw-p 00000000 00:00 0 [heap]");
        assert_eq!(end(&segments, &heap, 0), Some(0x15000));
    }

    #[test]
    fn a_program_whose_code_is_data_is_emulated() {
        let segments = LoadSegments(vec![
            segment(0, 0x800, 0, 0x800, false),
            segment(0x1000, 0x500, 0x1000, 0x500, true),
            segment(0x3800, 0x1900, 0x2800, 0x900, false),
        ]);
        let are_emulated = |text: &str| {
            let maps = parse_maps(text);
            segments.are_emulated(&maps[0], &maps)
        };
        let emulated = "\
10000-12000 r--p 00000000 fe:01 42 /a/x
13000-14000 r--p 00002000 fe:01 42 /a/x
14000-15000 rw-p 00003000 fe:01 42 /a/x";
        assert!(are_emulated(emulated));
        let executed = "\
10000-11000 r--p 00000000 fe:01 42 /a/x
11000-12000 r-xp 00001000 fe:01 42 /a/x
13000-14000 r--p 00002000 fe:01 42 /a/x
14000-15000 rw-p 00003000 fe:01 42 /a/x";
        assert!(!are_emulated(executed));
        // A file that a debugger or a linker reads, or changes.
        assert!(!are_emulated("10000-15000 r--p 00000000 fe:01 42 /a/x"));
        assert!(!are_emulated("10000-15000 rw-p 00000000 fe:01 42 /a/x"));
        assert!(!are_emulated(&emulated.replace("rw-p", "rw-s")));
    }

    #[test]
    fn a_file_that_is_mapped_as_data_is_no_module() {
        let segments = [
            segment(0, 0x800, 0, 0x800, false),
            segment(0x1000, 0x500, 0x1000, 0x500, true),
            segment(0x3800, 0x900, 0x1800, 0x100, false),
        ];
        for maps in [
            "10000-12000 r--p 00000000 fe:01 42 /a/x.so",
            "10000-12000 r-xp 00002000 fe:01 42 /a/x.so",
            "10000-11000 r--p 00000000 fe:01 42 /a/x.so\n11000-19000 rwxp 00000000 00:00 0",
            "10000-11000 r--p 00000000 fe:01 42 /a/x.so\n11000-12000 r-xp 00001000 fe:01 7 /a/y.so",
        ] {
            assert_eq!(end(&segments, maps, 0), None, "{maps}");
        }
        assert_eq!(
            end(&[], "10000-12000 r-xp 00000000 fe:01 42 /a/x.so", 0),
            None
        );
    }

    /// Some programs copy their code into large pages.
    #[test]
    fn code_that_was_moved_into_other_memory_is_the_modules() {
        let segments = [
            segment(0, 0x800, 0, 0x800, false),
            segment(0x1000, 0x1500, 0x1000, 0x1500, true),
            segment(0x3800, 0x100, 0x2800, 0x100, false),
        ];
        let maps = "\
10000-11000 r--p 00000000 fe:01 42 /a/x
11000-13000 r-xp 00000000 00:00 0
13000-14000 rw-p 00002000 fe:01 42 /a/x";
        assert_eq!(end(&segments, maps, 0), Some(0x14000));
    }
}
