//! Locations where a function was inlined, which symbols do not show. Used in messages about names
//! for which there is no function.

use crate::file::{Elf, Image, image, parse};
use crate::lookup::{has_dwarf, sections};
use crate::{ModuleFile, SearchPath, debug_files, demangle};
use gimli::{
    AttributeValue, DebuggingInformationEntry, Dwarf, EndianSlice, LittleEndian, Section, Unit,
    UnitOffset,
};
use memchr::memmem;
use std::borrow::Cow;
use std::collections::HashSet;

type Slice<'s> = EndianSlice<'s, LittleEndian>;

/// Returns up to `most` locations where, according to a module's debug information, calls of this
/// function were inlined: `file:line`, without duplicates. The name may be mangled or not, and has
/// no parameters.
pub fn inlined_at(
    module: &ModuleFile,
    search: &SearchPath,
    name: &str,
    most: usize,
) -> Vec<String> {
    let mut problems = Vec::new();
    let Some((path, data)) = image(module, &search.roots, &mut problems) else {
        return Vec::new();
    };
    let Ok(elf) = parse(&path, &data) else {
        return Vec::new();
    };
    if has_dwarf(&elf) {
        return in_file(&elf, &data, name, most);
    }
    let Some(debug) = debug_files::find(&path, &elf, search, &mut problems) else {
        return Vec::new();
    };
    match parse(&debug.path, &debug.data) {
        Ok(elf) => in_file(&elf, &debug.data, name, most),
        Err(_) => Vec::new(),
    }
}

fn in_file(elf: &Elf<'_>, data: &Image, name: &str, most: usize) -> Vec<String> {
    let sections = sections(elf, data);
    // Most files do not contain the name at all.
    let mut wanted = last_part(name).as_bytes().to_vec();
    wanted.push(0);
    let dwarf = sections.borrow(|data: &Cow<'_, [u8]>| EndianSlice::new(&data[..], LittleEndian));
    let holds = |section: &Slice<'_>| memmem::find(section.slice(), &wanted).is_some();
    if !holds(dwarf.debug_str.reader()) && !holds(dwarf.debug_info.reader()) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        if let Ok(unit) = dwarf.unit(header) {
            let places = in_unit(&dwarf, &unit, name).unwrap_or_default();
            found.extend(places);
        }
    }
    found.sort();
    found.dedup();
    found.truncate(most);
    found
}

/// Returns `take` for `pool::take`.
fn last_part(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

fn in_unit<'s>(
    dwarf: &Dwarf<Slice<'s>>,
    unit: &Unit<Slice<'s>>,
    name: &str,
) -> gimli::Result<Vec<String>> {
    let mut functions: HashSet<UnitOffset> = HashSet::new();
    let mut entries = unit.entries();
    while let Some(entry) = entries.next_dfs()? {
        if entry.tag() == gimli::DW_TAG_subprogram
            && is_called(dwarf, unit, entry, name, &functions)
        {
            functions.insert(entry.offset());
        }
    }
    let mut places = Vec::new();
    if functions.is_empty() {
        return Ok(places);
    }
    let mut entries = unit.entries();
    while let Some(entry) = entries.next_dfs()? {
        let origin = reference(entry, gimli::DW_AT_abstract_origin);
        if entry.tag() == gimli::DW_TAG_inlined_subroutine
            && origin.is_some_and(|origin| functions.contains(&origin))
        {
            places.extend(place(dwarf, unit, entry));
        }
    }
    Ok(places)
}

fn reference(
    entry: &DebuggingInformationEntry<Slice<'_>>,
    name: gimli::DwAt,
) -> Option<UnitOffset> {
    match entry.attr_value(name) {
        Some(AttributeValue::UnitRef(offset)) => Some(offset),
        _ => None,
    }
}

/// Returns true if an entry is about this function. A definition outside its class refers to the
/// declaration, which has the name and comes first.
fn is_called<'s>(
    dwarf: &Dwarf<Slice<'s>>,
    unit: &Unit<Slice<'s>>,
    entry: &DebuggingInformationEntry<Slice<'s>>,
    name: &str,
    known: &HashSet<UnitOffset>,
) -> bool {
    let declared = reference(entry, gimli::DW_AT_specification);
    if declared.is_some_and(|declared| known.contains(&declared)) {
        return true;
    }
    let text = |attribute| {
        let value = entry.attr_value(attribute)?;
        let text = dwarf.attr_string(unit, value).ok()?;
        text.to_string().ok().map(str::to_owned)
    };
    if let Some(linked) = text(gimli::DW_AT_linkage_name) {
        let full = demangle(&linked);
        return linked == name || full == name || full.split('(').next() == Some(name);
    }
    !name.contains("::") && text(gimli::DW_AT_name).as_deref() == Some(name)
}

/// Returns the location of the inlined call.
fn place<'s>(
    dwarf: &Dwarf<Slice<'s>>,
    unit: &Unit<Slice<'s>>,
    entry: &DebuggingInformationEntry<Slice<'s>>,
) -> Option<String> {
    let number = |attribute| entry.attr_value(attribute)?.udata_value();
    let line = number(gimli::DW_AT_call_line)?;
    let file = match entry.attr_value(gimli::DW_AT_call_file)? {
        AttributeValue::FileIndex(index) => index,
        other => other.udata_value()?,
    };
    let header = unit.line_program.as_ref()?.header();
    let path = dwarf
        .attr_string(unit, header.file(file)?.path_name())
        .ok()?;
    let path = path.to_string().ok()?;
    let name = path.rsplit('/').next().unwrap_or(path);
    Some(format!("{name}:{line}"))
}
