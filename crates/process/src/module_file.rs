//! The bytes of a module's file.
//!
//! How long it is says who made it: a file of holes costs nothing and may be of any length. So a file is read whole only
//! as long as all of them together are of a size that programs have; of larger ones only what is mapped is read, which
//! is all that tracing needs.

use crate::Mapping;
use memhook_foreign::{Extent, open_mapped, read_exactly};
use std::sync::Arc;

/// All files together, read whole.
const MOST_WHOLE_BYTES: u64 = 4 << 30;
/// All files together, with those of which only a part is read.
const MOST_BYTES: u64 = 6 << 30;

/// The bytes of the file that `first` maps; `read_bytes` were read of others before.
pub(crate) fn bytes(
    pid: i32,
    maps: &[Mapping],
    first: &Mapping,
    read_bytes: u64,
) -> Option<Arc<[u8]>> {
    let at = first.start..first.end;
    let mut file = open_mapped(pid, &at, &first.path, first.file_id.2).ok()?;
    let extent = Extent::of(&file).ok()?;
    if extent.may_hold(extent.bytes) && read_bytes + extent.bytes <= MOST_WHOLE_BYTES {
        return read_exactly(&mut file, extent.bytes).ok();
    }
    let of_file = maps.iter().filter(|m| m.file_id == first.file_id);
    let ends = of_file.map(|m| m.offset.saturating_add(m.end - m.start));
    let mapped = ends.max()?.min(extent.bytes);
    if read_bytes + mapped > MOST_BYTES {
        return None;
    }
    let mut bytes = read_exactly(&mut file, mapped).ok()?;
    without_sections(Arc::get_mut(&mut bytes)?)?;
    Some(bytes)
}

/// Takes the section table out of an ELF header (gABI, "ELF Header"): it stands behind what is mapped.
fn without_sections(elf: &mut [u8]) -> Option<()> {
    const E_SHOFF: std::ops::Range<usize> = 0x28..0x30;
    /// e_shentsize, e_shnum, e_shstrndx.
    const SECTION_COUNTS: std::ops::Range<usize> = 0x3a..0x40;
    elf.get_mut(E_SHOFF)?.fill(0);
    elf.get_mut(SECTION_COUNTS)?.fill(0);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ElfView;

    #[test]
    fn a_header_without_sections_is_one() {
        let mut bytes = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
        without_sections(&mut bytes).unwrap();
        let elf = ElfView::parse(&bytes).unwrap();
        assert!(elf.exported("malloc").is_some());
        assert!(elf.build_id().is_some());
        assert!(!elf.has_section(".text"));
        assert!(without_sections(&mut [0; 20]).is_none());
    }
}
