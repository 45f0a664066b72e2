//! Name of a lambda's function. GCC gives it no linkage name, so its debug information has only `operator()`. The
//! enclosing function follows from the position of its entry.

use crate::demangle;
use gimli::{AttributeValue, DebuggingInformationEntry, DwAt, EndianSlice, LittleEndian};
use gimli::{UnitOffset, UnitRef};

type Slice<'s> = EndianSlice<'s, LittleEndian>;
type Entry<'s> = DebuggingInformationEntry<Slice<'s>>;

/// Maximum number of references: a function refers to its abstract entry, which refers to its declaration.
const MOST_REFERENCES: usize = 4;

/// Maximum length of a name. A damaged file may nest scopes without end, each with a long name.
const LONGEST: usize = 1 << 16;

/// Returns true for a name in debug information that the call operator of any function object could have.
pub(crate) fn says_nothing(name: &str) -> bool {
    name == "operator()" || name.starts_with("operator()<")
}

/// Returns a name such as `shop::serve()::{lambda#2}::operator()` for the entry of a function in a unit; `None` if the
/// function does not belong to a lambda.
pub(crate) fn name_of_lambda(unit: UnitRef<'_, Slice<'_>>, function: UnitOffset) -> Option<String> {
    let declared = declaration(unit, function);
    let way = way_to(unit, declared).ok().flatten()?;
    let (own, outer) = way.split_last()?;
    let mut name = String::new();
    // Lambdas are numbered within the outermost function, because blocks inside it have no names.
    let root = outer
        .iter()
        .find(|entry| entry.tag == gimli::DW_TAG_subprogram)
        .or(outer.first())?
        .offset;
    let mut has_lambda = false;
    for entry in outer {
        let part = match entry.tag {
            gimli::DW_TAG_namespace => {
                let named = text(unit, entry.offset, gimli::DW_AT_name);
                named.unwrap_or_else(|| "(anonymous namespace)".to_owned())
            }
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
                match text(unit, entry.offset, gimli::DW_AT_name) {
                    Some(named) => named,
                    None => {
                        has_lambda = true;
                        format!("{{lambda#{}}}", number(unit, root, entry.offset)?)
                    }
                }
            }
            gimli::DW_TAG_subprogram => {
                let function = declaration(unit, entry.offset);
                if let Some(linked) = text(unit, function, gimli::DW_AT_linkage_name) {
                    // The linkage name includes all scopes.
                    name.clear();
                    demangle(&linked)
                } else {
                    let named = text(unit, function, gimli::DW_AT_name)?;
                    if has_lambda && says_nothing(&named) {
                        continue;
                    }
                    named
                }
            }
            _ => continue,
        };
        if !name.is_empty() {
            name += "::";
        }
        name += &part;
        if name.len() > LONGEST {
            return None;
        }
    }
    let own = text(unit, own.offset, gimli::DW_AT_name)?;
    has_lambda.then(|| format!("{name}::{own}"))
}

/// An entry on the path from a unit to a function.
struct Outer {
    offset: UnitOffset,
    tag: gimli::DwTag,
}

/// Returns the entries on the path from the unit to this entry.
fn way_to(unit: UnitRef<'_, Slice<'_>>, wanted: UnitOffset) -> gimli::Result<Option<Vec<Outer>>> {
    let mut way: Vec<(isize, Outer)> = Vec::new();
    let mut entries = unit.entries();
    while let Some(entry) = entries.next_dfs()? {
        while way.last().is_some_and(|(depth, _)| *depth >= entry.depth()) {
            way.pop();
        }
        let (offset, tag) = (entry.offset(), entry.tag());
        way.push((entry.depth(), Outer { offset, tag }));
        if offset == wanted {
            return Ok(Some(way.into_iter().map(|(_, outer)| outer).collect()));
        }
    }
    Ok(None)
}

/// Returns the number of this class among the unnamed classes in a function, in source order; the first is 1.
fn number(unit: UnitRef<'_, Slice<'_>>, root: UnitOffset, class: UnitOffset) -> Option<usize> {
    let place = |entry: &Entry<'_>| {
        let number = |name| entry.attr_value(name).and_then(|value| value.udata_value());
        (
            number(gimli::DW_AT_decl_line),
            number(gimli::DW_AT_decl_column),
        )
    };
    let own = place(&unit.entry(class).ok()?);
    let mut places = Vec::new();
    let mut entries = unit.entries_at_offset(root).ok()?;
    while let Ok(Some(entry)) = entries.next_dfs() {
        if entry.depth() <= 0 && entry.offset() != root {
            break;
        }
        let is_class = matches!(
            entry.tag(),
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type
        );
        if is_class && entry.attr_value(gimli::DW_AT_name).is_none() {
            places.push(place(entry));
        }
    }
    places.sort_unstable();
    places.dedup();
    places
        .iter()
        .position(|place| *place == own)
        .map(|at| at + 1)
}

/// Returns the entry with the name of a function, found through its abstract entry.
fn declaration(unit: UnitRef<'_, Slice<'_>>, function: UnitOffset) -> UnitOffset {
    let mut at = function;
    for _ in 0..MOST_REFERENCES {
        let Ok(entry) = unit.entry(at) else { break };
        let names = [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification];
        let next = names
            .into_iter()
            .find_map(|name| match entry.attr_value(name) {
                Some(AttributeValue::UnitRef(offset)) => Some(offset),
                _ => None,
            });
        match next {
            Some(next) => at = next,
            None => break,
        }
    }
    at
}

fn text(unit: UnitRef<'_, Slice<'_>>, entry: UnitOffset, name: DwAt) -> Option<String> {
    let value = unit.entry(entry).ok()?.attr_value(name)?;
    let text = unit.attr_string(value).ok()?;
    text.to_string().ok().map(str::to_owned)
}
