//! Address lookups in one module whose files are open.

use crate::file::{Elf, Image};
use crate::lambdas::{name_of_lambda, says_nothing};
use crate::split::SplitDwarf;
use crate::{Frame, Source, demangle, symbol_table::SymbolTable};
use addr2line::Context;
use gimli::{DwarfSections, EndianSlice, LittleEndian, SectionId};
use memhook_foreign::{Compression, inflate};
use object::{CompressionFormat, Object, ObjectSection};
use std::borrow::Cow;
use std::cell::{LazyCell, RefCell};
use std::collections::HashMap;

/// DWARF sections, each borrowed from its mapped file, read into memory, or decompressed.
pub(crate) type Sections<'d> = DwarfSections<Cow<'d, [u8]>>;

/// Maximum bytes of the decompressed sections of a file.
pub(crate) const MOST_INFLATED_BYTES: u64 = 4 << 30;
/// Maximum depth of inlined functions at one address.
const MOST_FRAMES: usize = 256;

/// Returns the DWARF sections of a file that describe functions and lines. Missing sections are returned empty.
pub(crate) fn sections<'d>(elf: &Elf<'d>, image: &'d Image) -> Sections<'d> {
    chosen_sections(elf, image, is_needed)
}

/// Returns the DWARF sections that describe variables and types.
pub(crate) fn type_sections<'d>(elf: &Elf<'d>, image: &'d Image) -> Sections<'d> {
    chosen_sections(elf, image, is_of_types)
}

fn chosen_sections<'d>(
    elf: &Elf<'d>,
    image: &'d Image,
    is_chosen: fn(SectionId) -> bool,
) -> Sections<'d> {
    let mut left = MOST_INFLATED_BYTES;
    let load = |id: SectionId| -> Result<Cow<'d, [u8]>, std::convert::Infallible> {
        let section = is_chosen(id).then(|| elf.section_by_name(id.name()));
        let section = section.flatten();
        Ok(section
            .and_then(|section| contents(&section, image, &mut left))
            .unwrap_or_default())
    };
    match DwarfSections::load(load) {
        Ok(sections) => sections,
        Err(never) => match never {},
    }
}

/// Returns true for sections that function and line lookups need. The remaining sections (variable locations, macros,
/// separate type units) make up a large part of a debug file.
fn is_needed(id: SectionId) -> bool {
    !matches!(
        id,
        SectionId::DebugLoc
            | SectionId::DebugLocLists
            | SectionId::DebugMacinfo
            | SectionId::DebugMacro
            | SectionId::DebugTypes
    )
}

fn is_of_types(id: SectionId) -> bool {
    matches!(
        id,
        SectionId::DebugInfo
            | SectionId::DebugAbbrev
            | SectionId::DebugStr
            | SectionId::DebugLineStr
            | SectionId::DebugStrOffsets
            | SectionId::DebugAddr
    )
}

/// Returns the number of bytes that [`sections`] will take, according to the file's headers.
pub(crate) fn inflated_bytes(elf: &Elf<'_>) -> u64 {
    chosen_bytes(elf, is_needed)
}

/// Returns the bytes that [`type_sections`] takes.
pub(crate) fn type_bytes(elf: &Elf<'_>) -> u64 {
    chosen_bytes(elf, is_of_types)
}

fn chosen_bytes(elf: &Elf<'_>, is_chosen: fn(SectionId) -> bool) -> u64 {
    let mut all = 0u64;
    let load = |id: SectionId| -> Result<(), std::convert::Infallible> {
        let section = is_chosen(id).then(|| elf.section_by_name(id.name()));
        let range = section
            .flatten()
            .and_then(|section| section.compressed_file_range().ok());
        all = all.saturating_add(range.map_or(0, |range| range.uncompressed_size));
        Ok(())
    };
    match DwarfSections::load(load) {
        Ok(_) => all,
        Err(never) => match never {},
    }
}

/// Returns a section, decompressed if necessary. The compressed form is freed before the function returns.
pub(crate) fn contents<'d>(
    section: &impl ObjectSection<'d>,
    image: &'d Image,
    left: &mut u64,
) -> Option<Cow<'d, [u8]>> {
    let range = section.compressed_file_range().ok()?;
    let stored = image.part(range.offset, range.compressed_size)?;
    let compression = match range.format {
        CompressionFormat::None => return Some(stored),
        CompressionFormat::Zlib => Compression::Zlib,
        CompressionFormat::Zstandard => Compression::Zstd,
        _ => return None,
    };
    *left = left.checked_sub(range.uncompressed_size)?;
    inflate(&stored, compression, range.uncompressed_size).map(Cow::Owned)
}

/// Returns true if a file has DWARF.
pub(crate) fn has_dwarf(elf: &Elf<'_>) -> bool {
    elf.section_by_name(".debug_info")
        .is_some_and(|section| section.size() > 0)
}

pub(crate) type Slice<'s> = EndianSlice<'s, LittleEndian>;

type LazySymbols<'s> = LazyCell<SymbolTable<'s>, &'s dyn Fn() -> SymbolTable<'s>>;

/// All information about a module's code.
pub(crate) struct Lookup<'s> {
    pub dwarf: Option<Context<Slice<'s>>>,
    /// Read only if debug information lacks a function, which is seldom.
    symbols: LazySymbols<'s>,
    split: &'s SplitDwarf<'s>,
    /// Names of lambda functions, by unit and entry. They are cached, because finding a name requires walking the whole
    /// unit.
    lambdas: RefCell<HashMap<(u64, usize), Option<String>>>,
}

/// Creates the DWARF context from sections; `None` if they are damaged.
pub(crate) fn context<'s>(
    sections: &'s Sections<'_>,
    supplementary: Option<&'s Sections<'_>>,
) -> Option<Context<Slice<'s>>> {
    let slice = |data: &'s Cow<'_, [u8]>| EndianSlice::new(&data[..], LittleEndian);
    let mut dwarf = sections.borrow(slice);
    if let Some(supplementary) = supplementary {
        dwarf.set_sup(supplementary.borrow(slice));
    }
    dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
    Context::from_dwarf(dwarf).ok()
}

impl<'s> Lookup<'s> {
    pub fn new(
        dwarf: Option<Context<Slice<'s>>>,
        symbols: &'s dyn Fn() -> SymbolTable<'s>,
        split: &'s SplitDwarf<'s>,
    ) -> Lookup<'s> {
        Lookup {
            dwarf,
            symbols: LazyCell::new(symbols),
            split,
            lambdas: RefCell::default(),
        }
    }

    /// Returns the name of a lambda's function, including the enclosing function.
    fn of_lambda(
        &self,
        context: &Context<Slice<'s>>,
        svma: u64,
        function: Option<gimli::UnitOffset>,
    ) -> Option<String> {
        let function = function?;
        let unit = self.split.complete(context.find_dwarf_and_unit(svma))?;
        let unit_at = unit.header.offset().to_debug_info_offset(&unit.header)?;
        let key = (unit_at.0 as u64, function.0);
        let mut known = self.lambdas.borrow_mut();
        let name = known.entry(key);
        name.or_insert_with(|| name_of_lambda(unit, function))
            .clone()
    }

    /// Returns the best available source of names.
    pub fn source(&self) -> Source {
        if self.dwarf.is_some() {
            return Source::DebugInfo;
        }
        match (self.symbols.is_full, self.symbols.is_empty()) {
            (true, _) => Source::Symbols,
            (false, false) => Source::DynamicSymbols,
            (false, true) => Source::Nothing,
        }
    }

    /// Returns true if missing files would have improved some names.
    pub fn lacks_files(&self) -> bool {
        self.split.lacks_any()
    }

    /// Returns the frames at an address (svma), innermost first.
    pub fn frames(&self, svma: u64) -> Vec<Frame> {
        let mut found = Vec::new();
        if let Some(context) = &self.dwarf
            && let Ok(mut frames) = self.split.complete(context.find_frames(svma))
        {
            while found.len() < MOST_FRAMES
                && let Ok(Some(frame)) = frames.next()
            {
                let name = frame.function.as_ref().and_then(|f| f.raw_name().ok());
                let (file, line) = match &frame.location {
                    Some(location) => (location.file.map(str::to_owned), location.line),
                    None => (None, None),
                };
                let function = match name {
                    Some(name) if says_nothing(&name) => self
                        .of_lambda(context, svma, frame.dw_die_offset)
                        .or_else(|| Some(name.into_owned())),
                    name => name.map(|name| demangle(&name)),
                };
                found.push(Frame {
                    function,
                    file,
                    line: line.filter(|&line| line != 0),
                    inlined: true,
                });
            }
        }
        found.retain(|frame| frame.function.is_some() || frame.file.is_some());
        // The DWARF information has lines but no function for this code, or nothing at all, so the symbol table is
        // used.
        if found.iter().all(|frame| frame.function.is_none())
            && let Some(name) = self.symbols.function_at(svma)
        {
            let function = Some(demangle(name));
            match found.last_mut() {
                Some(frame) => frame.function = function,
                None => found.push(Frame {
                    function,
                    ..Frame::default()
                }),
            }
        }
        if let Some(outermost) = found.last_mut() {
            outermost.inlined = false;
        }
        found
    }
}
