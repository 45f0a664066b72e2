//! Debugging information entries: their locations, and the attributes needed for types.

use super::{DeclaredSections, TypeRef};
use crate::lookup::Slice;
use gimli::{
    Attribute, AttributeValue, DwTag, Dwarf, EntriesRaw, LittleEndian, Operation, Unit, UnitHeader,
    UnitType,
};
use rustc_hash::FxHashMap;
use std::ops::ControlFlow;

/// The units of several modules.
pub(super) struct Units<'s> {
    dwarfs: Vec<Dwarf<Slice<'s>>>,
    bases: Vec<u64>,
    /// Units, in the order of modules and of their sections.
    units: Vec<OpenUnit<'s>>,
    /// Types in separate units, by signature.
    by_signature: FxHashMap<u64, TypeRef>,
}

/// One unit.
pub(super) struct OpenUnit<'s> {
    module: u32,
    /// Offset of the unit in its section.
    start: u64,
    pub unit: Unit<Slice<'s>>,
}

/// Attributes of an entry that types need.
#[derive(Clone, Copy, Default)]
pub(super) struct Entry<'s> {
    pub name: Option<&'s [u8]>,
    pub bytes: Option<u64>,
    pub of: Option<TypeRef>,
    /// The entry that this one completes.
    pub completes: Option<TypeRef>,
    pub is_declaration: bool,
    /// The entry in another unit that this placeholder stands for.
    pub stands_for: Option<TypeRef>,
    /// Address of a variable in the module's file.
    pub address: Option<u64>,
    /// Place of a member.
    pub place: Place,
    /// Number of elements, for the range of an array.
    pub count: Option<u64>,
    pub alignment: Option<u64>,
}

/// Place of a member in its structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Place {
    /// No offset is given, for example for the members of a union and for bit fields.
    #[default]
    Unsaid,
    /// Offset in bytes from the start of the structure.
    At(u64),
    /// The place can be computed only in a running program.
    Computed,
}

impl<'s> Units<'s> {
    /// Opens the units of all modules.
    pub fn of(sections: &'s DeclaredSections<'_>) -> Units<'s> {
        let mut units = Units {
            dwarfs: Vec::new(),
            bases: Vec::new(),
            units: Vec::new(),
            by_signature: FxHashMap::default(),
        };
        for (module, (base, sections)) in (0u32..).zip(&sections.modules) {
            let mut dwarf = sections.borrow(|data| Slice::new(&data[..], LittleEndian));
            dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
            let mut headers = dwarf.units();
            while let Ok(Some(header)) = headers.next() {
                let Some(start) = header.offset().to_debug_info_offset(&header) else {
                    continue;
                };
                let kind = header.type_();
                let Some(unit) = open(&dwarf, header) else {
                    continue;
                };
                if let UnitType::Type {
                    type_signature,
                    type_offset,
                } = kind
                    && let Ok(offset) = u32::try_from(type_offset.0)
                {
                    let unit = units.units.len() as u32;
                    let at = TypeRef { unit, offset };
                    units.by_signature.insert(type_signature.0, at);
                }
                units.units.push(OpenUnit {
                    module,
                    start: start.0 as u64,
                    unit,
                });
            }
            units.dwarfs.push(dwarf);
            units.bases.push(*base);
        }
        units
    }

    pub fn all(&self) -> &[OpenUnit<'s>] {
        &self.units
    }

    pub fn get(&self, unit: u32) -> Option<&OpenUnit<'s>> {
        self.units.get(unit as usize)
    }

    /// Returns the load bias of a unit's module.
    pub fn base(&self, unit: &OpenUnit<'s>) -> u64 {
        self.bases[unit.module as usize]
    }

    /// Returns the entry at a location: its tag, whether it has children, and its attributes.
    pub fn entry(&self, at: TypeRef) -> Option<(DwTag, Entry<'s>)> {
        let open = self.get(at.unit)?;
        let mut raw = self.entries_from(at)?;
        let abbreviation = raw.read_abbreviation().ok()??;
        let entry = self.attributes(open, at.unit, &mut raw, abbreviation.attributes())?;
        Some((abbreviation.tag(), entry))
    }

    /// Calls `found` for each child of the entry at a place.
    pub fn children(
        &self,
        of: TypeRef,
        mut found: impl FnMut(DwTag, Entry<'s>, TypeRef) -> ControlFlow<()>,
    ) -> Option<()> {
        let open = self.get(of.unit)?;
        let mut raw = self.entries_from(of)?;
        let parent = raw.read_abbreviation().ok()??;
        raw.skip_attributes(parent.attributes()).ok()?;
        if !parent.has_children() {
            return Some(());
        }
        let depth = raw.next_depth();
        while !raw.is_empty() && raw.next_depth() >= depth {
            let is_child = raw.next_depth() == depth;
            let offset = u32::try_from(raw.next_offset().0).ok()?;
            let Some(abbreviation) = raw.read_abbreviation().ok()? else {
                continue;
            };
            if !is_child {
                raw.skip_attributes(abbreviation.attributes()).ok()?;
                continue;
            }
            let entry = self.attributes(open, of.unit, &mut raw, abbreviation.attributes())?;
            let at = TypeRef { offset, ..of };
            if found(abbreviation.tag(), entry, at).is_break() {
                break;
            }
        }
        Some(())
    }

    /// Reads the entries of a unit from a place on.
    pub fn entries_from(&self, at: TypeRef) -> Option<EntriesRaw<'_, Slice<'s>>> {
        let open = self.get(at.unit)?;
        let offset = gimli::UnitOffset(at.offset as usize);
        open.unit.entries_raw(Some(offset)).ok()
    }

    /// Reads the given attributes.
    pub fn attributes(
        &self,
        open: &OpenUnit<'s>,
        unit: u32,
        raw: &mut EntriesRaw<'_, Slice<'s>>,
        attributes: &[gimli::AttributeSpecification],
    ) -> Option<Entry<'s>> {
        let mut entry = Entry::default();
        for &attribute in attributes {
            let attribute = raw.read_attribute(attribute).ok()?;
            self.set(open, unit, &attribute, &mut entry);
        }
        Some(entry)
    }

    fn set(
        &self,
        open: &OpenUnit<'s>,
        unit: u32,
        attribute: &Attribute<Slice<'s>>,
        entry: &mut Entry<'s>,
    ) {
        match attribute.name() {
            gimli::DW_AT_name => {
                let dwarf = &self.dwarfs[open.module as usize];
                let name = dwarf.attr_string(&open.unit, attribute.value());
                entry.name = name.ok().map(|name| name.slice());
            }
            gimli::DW_AT_byte_size => entry.bytes = attribute.udata_value(),
            gimli::DW_AT_alignment => entry.alignment = attribute.udata_value(),
            gimli::DW_AT_count => entry.count = attribute.udata_value(),
            // For an array without elements, the bound is -1.
            gimli::DW_AT_upper_bound => {
                let bound = attribute.udata_value().filter(|&b| b <= i64::MAX as u64);
                entry.count = bound.and_then(|bound| bound.checked_add(1));
            }
            gimli::DW_AT_type => entry.of = self.reference(open, unit, attribute.value()),
            gimli::DW_AT_specification | gimli::DW_AT_abstract_origin => {
                entry.completes = self.reference(open, unit, attribute.value());
            }
            gimli::DW_AT_signature => {
                entry.stands_for = self.reference(open, unit, attribute.value());
            }
            gimli::DW_AT_declaration => {
                entry.is_declaration = matches!(attribute.value(), AttributeValue::Flag(true));
            }
            gimli::DW_AT_data_member_location => {
                let offset = attribute.udata_value();
                entry.place = offset.map_or(Place::Computed, Place::At);
            }
            gimli::DW_AT_location => entry.address = self.address(open, attribute.value()),
            _ => {}
        }
    }

    fn reference(
        &self,
        open: &OpenUnit<'s>,
        unit: u32,
        value: AttributeValue<Slice<'s>>,
    ) -> Option<TypeRef> {
        match value {
            AttributeValue::UnitRef(offset) => Some(TypeRef {
                unit,
                offset: u32::try_from(offset.0).ok()?,
            }),
            AttributeValue::DebugInfoRef(offset) => {
                let key = (open.module, offset.0 as u64);
                let after = self.units.partition_point(|u| (u.module, u.start) <= key);
                let unit = after.checked_sub(1)?;
                let found = self.units.get(unit)?;
                let offset = (found.module == open.module).then(|| key.1 - found.start)?;
                Some(TypeRef {
                    unit: unit as u32,
                    offset: u32::try_from(offset).ok()?,
                })
            }
            AttributeValue::DebugTypesRef(signature) => {
                self.by_signature.get(&signature.0).copied()
            }
            _ => None,
        }
    }

    /// Returns the address of a location, if it never changes.
    fn address(&self, open: &OpenUnit<'s>, value: AttributeValue<Slice<'s>>) -> Option<u64> {
        let mut operations = value.exprloc_value()?.operations(open.unit.encoding());
        let address = match operations.next().ok()?? {
            Operation::Address { address } => address,
            Operation::AddressIndex { index } => {
                let dwarf = &self.dwarfs[open.module as usize];
                dwarf.address(&open.unit, index).ok()?
            }
            _ => return None,
        };
        // A variable that the linker has dropped is at address 0.
        let is_all = matches!(operations.next(), Ok(None));
        (is_all && address != 0).then_some(address)
    }
}

/// Opens a unit without its lines, because their section is not read.
fn open<'s>(dwarf: &Dwarf<Slice<'s>>, header: UnitHeader<Slice<'s>>) -> Option<Unit<Slice<'s>>> {
    let encoding = header.encoding();
    let file = dwarf.file_type;
    let mut unit = Unit {
        abbreviations: dwarf.abbreviations(&header).ok()?,
        name: None,
        comp_dir: None,
        low_pc: 0,
        str_offsets_base: gimli::DebugStrOffsetsBase::default_for_encoding_and_file(encoding, file),
        addr_base: gimli::DebugAddrBase(0),
        loclists_base: gimli::DebugLocListsBase::default_for_encoding_and_file(encoding, file),
        rnglists_base: gimli::DebugRngListsBase::default_for_encoding_and_file(encoding, file),
        line_program: None,
        dwo_id: None,
        header,
    };
    let (mut strings, mut addresses) = (None, None);
    {
        let mut raw = unit.entries_raw(None).ok()?;
        let root = raw.read_abbreviation().ok()??;
        for &attribute in root.attributes() {
            match raw.read_attribute(attribute).ok()?.value() {
                AttributeValue::DebugStrOffsetsBase(base) => strings = Some(base),
                AttributeValue::DebugAddrBase(base) => addresses = Some(base),
                _ => {}
            }
        }
    }
    unit.str_offsets_base = strings.unwrap_or(unit.str_offsets_base);
    unit.addr_base = addresses.unwrap_or(unit.addr_base);
    Some(unit)
}
