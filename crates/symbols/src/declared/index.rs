//! Collects the locations of variables and type definitions, in one pass over all entries.

use super::TypeRef;
use super::entry::{Place, Units};
use gimli::DwTag;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher;
use std::time::Instant;

/// Number of entries between two checks of the time.
const ENTRIES_A_LOOK: u32 = 1 << 16;
/// Maximum number of definitions that are stored.
const MOST_DEFINITIONS: usize = 8 << 20;
/// Maximum number of variables that are stored.
const MOST_VARIABLES: usize = 8 << 20;

/// A variable at a fixed place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeclaredVariable {
    /// Address of the variable in the process.
    pub address: u64,
    /// Type of the variable.
    pub of: TypeRef,
}

/// Place of a type's definition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Definition {
    pub at: TypeRef,
    bytes: u64,
    /// True if another type has the same name.
    has_rival: bool,
}

/// Result of the pass.
#[derive(Default)]
pub(super) struct Index {
    /// Variables by address.
    pub variables: Vec<DeclaredVariable>,
    /// Definitions by the hash of their qualified name.
    definitions: FxHashMap<u64, Definition>,
    /// Types with which other structures begin.
    pub beginnings: Vec<TypeRef>,
    /// True if the pass has read everything.
    pub is_whole: bool,
}

/// Hash of a qualified name, computed component by component. Ignores spacing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NameHash(u64);

impl NameHash {
    pub const START: NameHash = NameHash(0);

    /// Returns the hash of a name inside this scope.
    pub fn then(self, name: &[u8]) -> NameHash {
        let mut hasher = FxHasher::default();
        hasher.write_u64(self.0);
        let mut last = b' ';
        for (i, &byte) in name.iter().enumerate() {
            let next = name.get(i + 1).copied().unwrap_or(b' ');
            // Compilers and demanglers put spaces in different places. Only spaces between two
            // words are significant.
            let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            if byte != b' ' || is_word(last) && is_word(next) {
                hasher.write_u8(byte);
                last = byte;
            }
        }
        NameHash(hasher.finish() | 1)
    }

    /// Returns the hash of a name with all of its scopes.
    pub fn of_path(path: &str) -> NameHash {
        pieces(path).fold(NameHash::START, |hash, piece| hash.then(piece.as_bytes()))
    }
}

/// Returns the pieces of a name, without the colons between them.
fn pieces(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(path);
    std::iter::from_fn(move || {
        let path = rest?;
        let (mut depth, mut last) = (0u32, b' ');
        for (at, byte) in path.bytes().enumerate() {
            match byte {
                b'<' | b'(' | b'{' | b'[' => depth += 1,
                b'>' | b')' | b'}' | b']' => depth = depth.saturating_sub(1),
                b':' if depth == 0 && last == b':' => {
                    rest = path.get(at + 1..);
                    return path.get(..at - 1);
                }
                _ => {}
            }
            last = byte;
        }
        rest = None;
        Some(path)
    })
}

/// Name of an anonymous namespace.
pub(super) const NAMELESS: &[u8] = b"(anonymous namespace)";

pub(super) fn is_structure(tag: DwTag) -> bool {
    tag == gimli::DW_TAG_structure_type
        || tag == gimli::DW_TAG_class_type
        || tag == gimli::DW_TAG_union_type
}

/// A scope of names.
struct Scope {
    depth: isize,
    name: NameHash,
    /// True for a structure that is seen for the first time. Only then is its first member
    /// recorded.
    is_new: bool,
}

impl Index {
    /// Reads the entries of all units, until the time limit.
    pub fn of(units: &Units<'_>, until: Instant) -> Index {
        let mut index = Index::default();
        let mut left = ENTRIES_A_LOOK;
        let mut is_in_time = true;
        for unit in 0..units.all().len() as u32 {
            // The rest of a damaged unit is lost.
            let _ = index.add(units, unit, &mut || {
                left -= 1;
                if left == 0 {
                    left = ENTRIES_A_LOOK;
                    is_in_time = Instant::now() < until;
                }
                is_in_time
            });
            if !is_in_time {
                break;
            }
        }
        index.is_whole = is_in_time;
        index.variables.sort_unstable_by_key(|v| (v.address, v.of));
        index
    }

    /// Returns the type with this name, if there is only one.
    pub fn definition(&self, name: NameHash) -> Option<TypeRef> {
        let definition = self.definitions.get(&name.0)?;
        (!definition.has_rival).then_some(definition.at)
    }

    fn add(
        &mut self,
        units: &Units<'_>,
        unit: u32,
        goes_on: &mut impl FnMut() -> bool,
    ) -> Option<()> {
        let open = units.get(unit)?;
        let base = units.base(open);
        let mut raw = open.unit.entries_raw(None).ok()?;
        let mut scopes: Vec<Scope> = Vec::new();
        // Names that are only declared so far. Their definitions may be outside of their scope.
        let mut declared: FxHashMap<u32, NameHash> = FxHashMap::default();
        while !raw.is_empty() {
            if !goes_on() {
                return None;
            }
            let depth = raw.next_depth();
            let offset = u32::try_from(raw.next_offset().0).ok()?;
            let Some(abbreviation) = raw.read_abbreviation().ok()? else {
                continue;
            };
            while scopes.pop_if(|scope| scope.depth >= depth).is_some() {}
            let tag = abbreviation.tag();
            let is_scope = is_structure(tag)
                || tag == gimli::DW_TAG_namespace
                || tag == gimli::DW_TAG_subprogram;
            let begins = tag == gimli::DW_TAG_member || tag == gimli::DW_TAG_inheritance;
            let begins = begins
                && scopes
                    .last()
                    .is_some_and(|s| s.is_new && s.depth + 1 == depth);
            if !is_scope && !begins && tag != gimli::DW_TAG_variable {
                raw.skip_attributes(abbreviation.attributes()).ok()?;
                continue;
            }
            let entry = units.attributes(open, unit, &mut raw, abbreviation.attributes())?;
            let at = TypeRef { unit, offset };
            if begins {
                if entry.place == Place::At(0) {
                    self.beginnings.extend(entry.of);
                }
            } else if tag == gimli::DW_TAG_variable {
                let of = entry.of.or_else(|| {
                    // The entry that this entry completes has the type.
                    units.entry(entry.completes?)?.1.of
                });
                if let (Some(address), Some(of)) = (entry.address, of)
                    && self.variables.len() < MOST_VARIABLES
                {
                    let address = base.wrapping_add(address);
                    self.variables.push(DeclaredVariable { address, of });
                }
            } else {
                let outer = scopes.last().map_or(NameHash::START, |scope| scope.name);
                let nameless = if tag == gimli::DW_TAG_namespace {
                    NAMELESS
                } else {
                    b""
                };
                let first = entry.completes.filter(|first| first.unit == unit);
                let first = first.and_then(|first| declared.get(&first.offset).copied());
                let name = first.unwrap_or_else(|| outer.then(entry.name.unwrap_or(nameless)));
                if is_structure(tag) && entry.is_declaration {
                    declared.insert(offset, name);
                }
                let is_named = entry.name.is_some() || first.is_some();
                let is_defined = is_structure(tag) && !entry.is_declaration && is_named;
                let is_new = is_defined && self.define(name, at, entry.bytes.unwrap_or(0));
                if abbreviation.has_children() {
                    scopes.push(Scope {
                        depth,
                        name,
                        is_new,
                    });
                }
            }
        }
        Some(())
    }

    /// Records where a type is defined. Returns true if the type is new.
    fn define(&mut self, name: NameHash, at: TypeRef, bytes: u64) -> bool {
        if let Some(known) = self.definitions.get_mut(&name.0) {
            known.has_rival |= known.bytes != bytes;
            return false;
        }
        if self.definitions.len() >= MOST_DEFINITIONS {
            return false;
        }
        let definition = Definition {
            at,
            bytes,
            has_rival: false,
        };
        self.definitions.insert(name.0, definition);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_however_they_are_spaced() {
        let of_compiler = NameHash::START.then(b"std").then(
            b"_Sp_counted_ptr_inplace<a::B, std::allocator<void>, (__gnu_cxx::_Lock_policy)2>",
        );
        let of_demangler =
            "std::_Sp_counted_ptr_inplace<a::B,std::allocator<void>,(__gnu_cxx::_Lock_policy)2>";
        assert_eq!(of_compiler, NameHash::of_path(of_demangler));
        let two = NameHash::START.then(b"Map<unsigned int, Set<int> >");
        assert_eq!(two, NameHash::of_path("Map<unsigned int, Set<int>>"));
        assert_ne!(two, NameHash::of_path("Map<unsignedint, Set<int>>"));
        let inside = NameHash::START.then(NAMELESS).then(b"Node");
        assert_eq!(inside, NameHash::of_path("(anonymous namespace)::Node"));
        assert_ne!(inside, NameHash::of_path("Node"));
    }
}
