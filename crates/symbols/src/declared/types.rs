//! Types, read on demand.

use super::DeclaredSections;
use super::entry::{Entry, Place, Units};
use super::index::{DeclaredVariable, Index, NAMELESS, NameHash, is_structure};
use gimli::DwTag;
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::ControlFlow;
use std::time::Instant;

/// Maximum number of typedefs and qualifiers before a type.
const MOST_NAMES: usize = 64;
/// Maximum number of nested scopes of a type.
const DEEPEST: usize = 64;
/// Maximum number of members of a structure that are examined.
const MOST_FIELDS: usize = 1 << 14;
/// Maximum number of types that are read.
const MOST_TYPES: usize = 1 << 20;
/// Maximum length of a name. Names of templates can be arbitrarily long.
const LONGEST_NAME: usize = 1 << 12;

/// Place of a type's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeRef {
    pub(super) unit: u32,
    pub(super) offset: u32,
}

/// Number that identifies a type. Types with equal names and sizes have the same number, regardless
/// of where they are described.
pub type TypeId = u32;

/// A type without typedefs and qualifiers.
#[derive(Clone, Debug)]
pub struct DeclaredType {
    /// Name with all scopes; empty if the type has none.
    pub name: String,
    /// Size in bytes; 0 if unknown.
    pub bytes: u64,
    /// Alignment of its addresses, if stated.
    pub alignment: Option<u64>,
    /// Kind of the type.
    pub kind: DeclaredKind,
    /// Template arguments. An argument that is not a type is `None`.
    pub arguments: Vec<Option<TypeRef>>,
}

/// Kind of a type.
#[derive(Clone, Debug)]
pub enum DeclaredKind {
    /// A number, a character, a constant.
    Plain,
    /// A pointer or reference; `None` for `void`.
    Pointer(Option<TypeRef>),
    /// An array with its number of elements, if known.
    Array(TypeRef, Option<u64>),
    /// Members at fixed places, including base classes.
    Structure(Vec<Field>),
    /// A type with unknown contents: a union, a function.
    Opaque,
}

/// A member of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Offset in bytes from the start of the structure.
    pub offset: u64,
    /// Type of the member.
    pub of: TypeRef,
}

/// Reason for incomplete results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypesUnread {
    /// The time was up.
    Time,
}

/// The types and variables of some modules.
pub struct DeclaredTypes<'s> {
    units: Units<'s>,
    index: Index,
    types: Vec<DeclaredType>,
    by_place: FxHashMap<TypeRef, Option<TypeId>>,
    by_name: FxHashMap<(String, u64), TypeId>,
    /// Scopes of each unit's names, sorted, each with its own enclosing scope.
    scopes: FxHashMap<u32, Vec<(u32, u32)>>,
    beginnings: Option<FxHashSet<Vec<u8>>>,
}

const NO_SCOPE: u32 = u32::MAX;

impl<'s> DeclaredTypes<'s> {
    /// Finds variables and definitions. When the time limit is reached, the remaining variables and
    /// definitions are left out.
    pub fn of(sections: &'s DeclaredSections<'_>, until: Instant) -> DeclaredTypes<'s> {
        let units = Units::of(sections);
        DeclaredTypes {
            index: Index::of(&units, until),
            units,
            types: Vec::new(),
            by_place: FxHashMap::default(),
            by_name: FxHashMap::default(),
            scopes: FxHashMap::default(),
            beginnings: None,
        }
    }

    /// Returns the reason for incomplete results.
    pub fn unread(&self) -> Option<TypesUnread> {
        (!self.index.is_whole).then_some(TypesUnread::Time)
    }

    /// Returns all variables at fixed places, by address.
    pub fn variables(&self) -> &[DeclaredVariable] {
        &self.index.variables
    }

    /// Returns a type by its number.
    pub fn get(&self, id: TypeId) -> &DeclaredType {
        &self.types[id as usize]
    }

    /// Finds the structure with this name, spelled as demanglers spell it.
    pub fn by_name(&mut self, path: &str) -> Option<TypeId> {
        let at = self.index.definition(NameHash::of_path(path))?;
        self.resolve(at)
    }

    /// Returns true if some structure begins with a structure of this name. If so, a pointer to the
    /// inner structure may point to the outer one. Only the last part of the name counts.
    pub fn is_beginning(&mut self, id: TypeId) -> bool {
        let beginnings = self.beginnings.take().unwrap_or_else(|| {
            let places = self.index.beginnings.iter();
            let names = places.filter_map(|&at| self.plain_name(at));
            names
                .filter(|name| !name.is_empty())
                .map(<[u8]>::to_vec)
                .collect()
        });
        let path = &self.types[id as usize].name;
        let found = [path.as_str(), last_part(path)];
        let found = found
            .iter()
            .any(|name| beginnings.contains(name.as_bytes()));
        self.beginnings = Some(beginnings);
        found
    }

    /// Returns the name of the structure that a reference points to, without its scopes.
    fn plain_name(&self, at: TypeRef) -> Option<&'s [u8]> {
        let (tag, entry, _, alias) = self.peeled(at)?;
        is_structure(tag).then(|| entry.name.or(alias)).flatten()
    }

    /// Returns the type without typedefs and qualifiers, and the last typedef's name.
    fn peeled(&self, at: TypeRef) -> Option<(DwTag, Entry<'s>, TypeRef, Option<&'s [u8]>)> {
        let (mut at, mut alias) = (at, None);
        for _ in 0..MOST_NAMES {
            let (tag, entry) = self.units.entry(at)?;
            if let Some(other) = entry.stands_for {
                at = other;
                continue;
            }
            let is_alias = tag == gimli::DW_TAG_typedef;
            let is_qualifier = [
                gimli::DW_TAG_const_type,
                gimli::DW_TAG_volatile_type,
                gimli::DW_TAG_restrict_type,
                gimli::DW_TAG_atomic_type,
            ]
            .contains(&tag);
            if !is_alias && !is_qualifier {
                return Some((tag, entry, at, alias));
            }
            if is_alias {
                alias = entry.name;
            }
            at = entry.of?;
        }
        None
    }

    /// Returns the type that a reference points to; `None` if it is damaged or is `void`.
    pub fn resolve(&mut self, at: TypeRef) -> Option<TypeId> {
        if let Some(known) = self.by_place.get(&at) {
            return *known;
        }
        let found = self.read(at);
        self.by_place.insert(at, found);
        found
    }

    /// Returns the type at a place, if it was resolved before.
    pub fn resolved(&self, at: TypeRef) -> Option<TypeId> {
        self.by_place.get(&at).copied().flatten()
    }

    fn read(&mut self, at: TypeRef) -> Option<TypeId> {
        let (tag, entry, at, alias) = self.peeled(at)?;
        if let Some(known) = self.by_place.get(&at) {
            return *known;
        }
        let found = self.read_peeled(tag, &entry, at, alias);
        self.by_place.insert(at, found);
        found
    }

    fn read_peeled(
        &mut self,
        tag: DwTag,
        entry: &Entry<'s>,
        at: TypeRef,
        alias: Option<&'s [u8]>,
    ) -> Option<TypeId> {
        let kind = match tag {
            gimli::DW_TAG_base_type | gimli::DW_TAG_enumeration_type => DeclaredKind::Plain,
            gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type => DeclaredKind::Pointer(entry.of),
            gimli::DW_TAG_array_type => self.array(entry, at)?,
            gimli::DW_TAG_union_type => DeclaredKind::Opaque,
            tag if is_structure(tag) => return self.structure(entry, at, alias),
            _ => DeclaredKind::Opaque,
        };
        let bytes = match kind {
            DeclaredKind::Pointer(_) => 8,
            _ => entry.bytes.unwrap_or(0),
        };
        let key = (entry.name.or(alias).map(text).unwrap_or_default(), bytes);
        let has_one_meaning = matches!(kind, DeclaredKind::Plain);
        if has_one_meaning && let Some(&known) = self.by_name.get(&key) {
            return Some(known);
        }
        let id = self.add(DeclaredType {
            name: key.0.clone(),
            bytes,
            alignment: entry.alignment,
            kind,
            arguments: Vec::new(),
        })?;
        if has_one_meaning {
            self.by_name.insert(key, id);
        }
        Some(id)
    }

    fn add(&mut self, found: DeclaredType) -> Option<TypeId> {
        if self.types.len() >= MOST_TYPES {
            return None;
        }
        self.types.push(found);
        Some(self.types.len() as TypeId - 1)
    }

    fn array(&self, entry: &Entry<'s>, at: TypeRef) -> Option<DeclaredKind> {
        let of = entry.of?;
        let mut all: Option<u64> = None;
        let mut is_known = true;
        let _ = self.units.children(at, |tag, range, _| {
            if tag == gimli::DW_TAG_subrange_type {
                match range.count {
                    Some(count) => all = Some(all.unwrap_or(1).saturating_mul(count)),
                    None => is_known = false,
                }
            }
            ControlFlow::Continue(())
        });
        Some(DeclaredKind::Array(of, all.filter(|_| is_known)))
    }

    fn structure(
        &mut self,
        entry: &Entry<'s>,
        at: TypeRef,
        alias: Option<&'s [u8]>,
    ) -> Option<TypeId> {
        let (name, hash) = self.path(entry, at, alias);
        if entry.is_declaration {
            let definition = self.index.definition(hash).filter(|&d| d != at)?;
            return self.resolve(definition);
        }
        let bytes = entry.bytes.unwrap_or(0);
        let key = (name, bytes);
        if !key.0.is_empty()
            && let Some(&known) = self.by_name.get(&key)
        {
            return Some(known);
        }
        let (mut fields, mut arguments) = (Vec::new(), Vec::new());
        let _ = self.units.children(at, |tag, child, _| {
            match tag {
                gimli::DW_TAG_member | gimli::DW_TAG_inheritance => {
                    if let (Place::At(offset), Some(of)) = (child.place, child.of) {
                        fields.push(Field { offset, of });
                    }
                }
                gimli::DW_TAG_template_type_parameter => arguments.push(child.of),
                _ => {}
            }
            match fields.len() + arguments.len() < MOST_FIELDS {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        let id = self.add(DeclaredType {
            name: key.0.clone(),
            bytes,
            alignment: entry.alignment,
            kind: DeclaredKind::Structure(fields),
            arguments,
        })?;
        if !key.0.is_empty() {
            self.by_name.insert(key, id);
        }
        Some(id)
    }

    /// Returns the name of a structure with all scopes, and its hash.
    fn path(
        &mut self,
        entry: &Entry<'s>,
        at: TypeRef,
        alias: Option<&'s [u8]>,
    ) -> (String, NameHash) {
        // The declaration determines the scope.
        let declared = entry
            .completes
            .and_then(|at| Some((at, self.units.entry(at)?.1)));
        let (at, own) = match declared {
            Some((declared, first)) => (declared, entry.name.or(first.name)),
            None => (at, entry.name),
        };
        let Some(name) = own.or(alias) else {
            return (String::new(), NameHash::START);
        };
        let mut outer = self.outer_names(at);
        outer.push(name);
        let hash = outer
            .iter()
            .fold(NameHash::START, |hash, name| hash.then(name));
        let names: Vec<String> = outer.into_iter().map(text).collect();
        let mut path = names.join("::");
        if path.len() > LONGEST_NAME {
            let end = (0..=LONGEST_NAME)
                .rev()
                .find(|&at| path.is_char_boundary(at));
            path.truncate(end.unwrap_or(0));
            path.push('…');
        }
        (path, hash)
    }

    /// Returns the scopes of an entry, from the outside in.
    fn outer_names(&mut self, at: TypeRef) -> Vec<&'s [u8]> {
        if !self.scopes.contains_key(&at.unit) {
            let scopes = self.scopes_of(at.unit);
            self.scopes.insert(at.unit, scopes);
        }
        let Some(scopes) = self.scopes.get(&at.unit) else {
            return Vec::new();
        };
        let found = scopes.binary_search_by_key(&at.offset, |&(offset, _)| offset);
        let mut next = found.ok().map(|i| scopes[i].1);
        let mut names = Vec::new();
        while let Some(&(offset, outer)) = next.and_then(|i| scopes.get(i as usize)) {
            let entry = self.units.entry(TypeRef { offset, ..at });
            let Some((tag, entry)) = entry.filter(|_| names.len() < DEEPEST) else {
                break;
            };
            let of_first = || self.units.entry(entry.completes?)?.1.name;
            let name = entry.name.or_else(of_first);
            let nameless: &[u8] = if tag == gimli::DW_TAG_namespace {
                NAMELESS
            } else {
                b""
            };
            names.push(name.unwrap_or(nameless));
            next = (outer != NO_SCOPE).then_some(outer);
        }
        names.reverse();
        names
    }

    /// Returns the scopes of a unit's names.
    fn scopes_of(&self, unit: u32) -> Vec<(u32, u32)> {
        let mut scopes: Vec<(u32, u32)> = Vec::new();
        let mut open: Vec<(isize, u32)> = Vec::new();
        let Some(raw) = self.units.get(unit).map(|open| open.unit.entries_raw(None)) else {
            return scopes;
        };
        let Ok(mut raw) = raw else {
            return scopes;
        };
        while !raw.is_empty() {
            let depth = raw.next_depth();
            let offset = u32::try_from(raw.next_offset().0);
            let (Ok(abbreviation), Ok(offset)) = (raw.read_abbreviation(), offset) else {
                break;
            };
            let Some(abbreviation) = abbreviation else {
                continue;
            };
            while open.pop_if(|scope| scope.0 >= depth).is_some() {}
            let tag = abbreviation.tag();
            if is_structure(tag)
                || tag == gimli::DW_TAG_namespace
                || tag == gimli::DW_TAG_subprogram
            {
                scopes.push((offset, open.last().map_or(NO_SCOPE, |&(_, scope)| scope)));
                if abbreviation.has_children() {
                    open.push((depth, scopes.len() as u32 - 1));
                }
            }
            if raw.skip_attributes(abbreviation.attributes()).is_err() {
                break;
            }
        }
        scopes
    }
}

/// Returns the part of a name after all of its scopes.
fn last_part(path: &str) -> &str {
    let (mut depth, mut begin, mut last) = (0u32, 0, b' ');
    for (at, byte) in path.bytes().enumerate() {
        match byte {
            b'<' | b'(' => depth += 1,
            b'>' | b')' => depth = depth.saturating_sub(1),
            b':' if depth == 0 && last == b':' => begin = at + 1,
            _ => {}
        }
        last = byte;
    }
    path.get(begin..).unwrap_or(path)
}

/// Converts a name from a file to valid text.
fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
