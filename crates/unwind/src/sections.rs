//! Locations of a module's call frame information.

use crate::Error;
use gimli::{BaseAddresses, LittleEndian};
use memhook_foreign::{Compression, inflate};
use object::{
    CompressedData, CompressionFormat, Object, ObjectSection, ObjectSegment, read::elf::ElfFile64,
};
use std::borrow::Cow;

/// Sections that unwinding needs, at their svma.
pub struct Sections<'a> {
    /// `.eh_frame`, or empty.
    pub eh_frame: Cow<'a, [u8]>,
    /// `.debug_frame`, or empty. Used only if there is no `.eh_frame`.
    pub debug_frame: Cow<'a, [u8]>,
    /// Base addresses (svma) for the relative pointer encodings of `.eh_frame`.
    pub bases: BaseAddresses,
}

impl<'a> Sections<'a> {
    /// Returns the sections of a file without any.
    pub(crate) fn empty() -> Self {
        Sections {
            eh_frame: Cow::default(),
            debug_frame: Cow::default(),
            bases: BaseAddresses::default(),
        }
    }

    /// Finds the sections of an ELF file by section headers, or by PT_GNU_EH_FRAME if the headers
    /// were stripped (as may be the case in the vDSO).
    pub fn of(elf: &'a [u8]) -> Result<Self, Error> {
        let file = ElfFile64::<object::LittleEndian>::parse(elf)?;
        let mut bases = BaseAddresses::default();
        let address = |name: &str| file.section_by_name(name).map(|s| s.address());
        if let Some(a) = address(".text") {
            bases = bases.set_text(a);
        }
        if let Some(a) = address(".got") {
            bases = bases.set_got(a);
        }
        if let Some(a) = address(".eh_frame_hdr") {
            bases = bases.set_eh_frame_hdr(a);
        }
        let data = |name: &str| {
            file.section_by_name(name)
                .and_then(|s| contents(s.compressed_data().ok()?))
                .unwrap_or_default()
        };
        let mut eh_frame = data(".eh_frame");
        if let Some(a) = address(".eh_frame") {
            bases = bases.set_eh_frame(a);
        }
        if eh_frame.is_empty()
            && let Some((start, bytes)) = eh_frame_by_header(&file)
        {
            bases = bases.set_eh_frame(start);
            eh_frame = Cow::Borrowed(bytes);
        }
        let debug_frame = if eh_frame.is_empty() {
            data(".debug_frame")
        } else {
            Cow::Borrowed(&[][..])
        };
        if eh_frame.is_empty() && debug_frame.is_empty() {
            return Err(Error::NoFrames);
        }
        Ok(Sections {
            eh_frame,
            debug_frame,
            bases,
        })
    }
}

/// Returns the uncompressed contents of a section if its header is plausible.
fn contents(data: CompressedData<'_>) -> Option<Cow<'_, [u8]>> {
    let compression = match data.format {
        CompressionFormat::None => return Some(Cow::Borrowed(data.data)),
        CompressionFormat::Zlib => Compression::Zlib,
        CompressionFormat::Zstandard => Compression::Zstd,
        _ => return None,
    };
    inflate(data.data, compression, data.uncompressed_size).map(Cow::Owned)
}

/// Finds `.eh_frame` by the pointer in `.eh_frame_hdr`, which PT_GNU_EH_FRAME locates (LSB Core,
/// 10.6.2). `.eh_frame` ends with a zero terminator, at the latest at the end of its segment.
fn eh_frame_by_header<'a>(file: &ElfFile64<'a, object::LittleEndian>) -> Option<(u64, &'a [u8])> {
    use object::read::elf::ProgramHeader;
    let endian = object::LittleEndian;
    let header = file
        .elf_program_headers()
        .iter()
        .find(|p| p.p_type(endian) == object::elf::PT_GNU_EH_FRAME)?;
    let hdr_svma = header.p_vaddr(endian);
    let hdr_bytes = header.data(endian, file.data()).ok()?;
    let hdr = gimli::EhFrameHdr::new(hdr_bytes, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame_hdr(hdr_svma);
    let gimli::Pointer::Direct(start) = hdr.parse(&bases, 8).ok()?.eh_frame_ptr() else {
        return None;
    };
    let segment = file
        .segments()
        .find(|s| start >= s.address() && start - s.address() < s.size())?;
    let bytes = segment.data().ok()?;
    Some((start, bytes.get((start - segment.address()) as usize..)?))
}
