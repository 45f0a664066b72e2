//! Label for a block with conflicting type claims.

use super::containers::family;
use super::names::short;
use super::{Claims, DeclaredBlocks, NONE, Part, What};
use crate::graph::types::Types;
use memhook_symbols::{DeclaredKind, TypeId};
use rustc_hash::FxHashMap;

/// Maximum number of names of a block. A block with more names gets no label.
const MOST_NAMES: usize = 3;
/// Maximum length of a pointer-to-pointer chain that gets a name.
const DEEPEST: usize = 4;

impl Claims<'_, '_> {
    /// Returns the names of all blocks.
    pub(super) fn settle(mut self, types: &mut Types) -> DeclaredBlocks {
        let mut found = DeclaredBlocks::default();
        let mut numbers: FxHashMap<(Vec<u32>, Option<String>), u32> = FxHashMap::default();
        let mut of = std::mem::take(&mut self.first);
        let mut more = std::mem::take(&mut self.more);
        let mut by_claim: FxHashMap<u32, u32> = FxHashMap::default();
        for (number, block) in self.blocks.iter() {
            let first = of[number as usize];
            if first == NONE {
                continue;
            }
            let word = self.snapshot.word(block.address).unwrap_or(0);
            let class = types.class(word);
            let others = more.remove(&number);
            if class.is_none()
                && others.is_none()
                && let Some(&known) = by_claim.get(&first)
            {
                of[number as usize] = known;
                continue;
            }
            let is_alone = class.is_none() && others.is_none();
            let mut claims = others.unwrap_or_default();
            claims.push(first);
            claims.sort_unstable();
            let key = (claims, class);
            let settled = match numbers.get(&key) {
                Some(&known) => known,
                None => {
                    let name = self.one_name(&key.0, key.1.as_deref());
                    let settled = match name {
                        Some(name) => {
                            found.names.push(name);
                            found.names.len() as u32 - 1
                        }
                        None => NONE,
                    };
                    numbers.insert(key, settled);
                    settled
                }
            };
            of[number as usize] = settled;
            if is_alone {
                by_claim.insert(first, settled);
            }
        }
        found.of = of;
        found
    }

    /// Returns the name of a block with these claims, unless its class is already the most specific
    /// name.
    fn one_name(&mut self, claims: &[u32], class: Option<&str>) -> Option<String> {
        let mut whats: Vec<What> = claims.iter().map(|&c| self.known[c as usize]).collect();
        let of_class = class.map(|class| (class, self.declared.by_name(class)));
        if let Some((_, Some(id))) = of_class {
            // A base class of the block's class adds nothing. A type that begins with that class
            // does.
            whats.push(What::One(id));
        }
        let all = whats.clone();
        whats.retain(|&what| !all.iter().any(|&other| self.says_more(other, what)));
        if whats.iter().all(|what| matches!(what, What::Beginning(_))) {
            return None;
        }
        let mut names: Vec<String> = whats.iter().map(|&what| self.name(what)).collect();
        if let Some((class, None)) = of_class {
            names.push(class.to_owned());
        }
        names.sort_unstable();
        names.dedup();
        let is_class = |name: &String| {
            of_class.is_some_and(|(class, _)| short(class) == *name || class == name)
        };
        if names.is_empty() || names.len() > MOST_NAMES || names.iter().all(is_class) {
            return None;
        }
        Some(names.join(" or "))
    }

    /// Returns true if one claim includes the other.
    fn says_more(&mut self, one: What, other: What) -> bool {
        use What::{Beginning, One, Row};
        let (one, other) = match (one, other) {
            (One(a) | Row(a) | Beginning(a), One(b) | Beginning(b)) if a != b => (a, b),
            (One(a) | Row(a), Beginning(b)) => return a == b,
            (Row(a), One(b)) => return a == b,
            _ => return false,
        };
        let layout = self.layouts.of(&mut self.declared, one);
        layout.beginnings.contains(&other)
    }

    fn name(&self, what: What) -> String {
        match what {
            What::One(id) | What::Beginning(id) => self.type_name(id, 0),
            What::Row(id) => format!("{}[]", self.type_name(id, 0)),
            What::Part(part, of, element) => {
                let container = short(&self.declared.get(of).name);
                let element = || element.map_or_else(|| "?".into(), |id| self.type_name(id, 0));
                match part {
                    Part::Elements => format!("{}[] of {}", element(), family(&container)),
                    Part::Text => format!("{}[] of {container}", element()),
                    Part::Bits => format!("{container}: bits"),
                    Part::Node => format!("{container}: node"),
                    Part::Buckets => format!("{container}: buckets"),
                    Part::Chunk => format!("{container}: chunk"),
                    Part::Chunks => format!("{container}: map of chunks"),
                }
            }
        }
    }

    fn type_name(&self, id: TypeId, depth: usize) -> String {
        let found = self.declared.get(id);
        match &found.kind {
            DeclaredKind::Pointer(Some(to)) if depth < DEEPEST => {
                let to = self.declared.resolved(*to);
                let to = to.map_or_else(|| "void".into(), |to| self.type_name(to, depth + 1));
                format!("{to}*")
            }
            DeclaredKind::Pointer(_) => "void*".to_owned(),
            _ if found.name.is_empty() => "(nameless)".to_owned(),
            _ => short(&found.name),
        }
    }
}
