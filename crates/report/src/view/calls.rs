//! All call stacks as one tree. Most stacks share most of their frames with others, so the tree needs far fewer frames
//! than a list of stacks.

use crate::Profile;
use crate::labels::name;
use crate::places::{place_of, source_root};
use crate::stacks::Role;
use crate::wrappers::is_wrapper;
use crate::{StackFrame, Style};
use rustc_hash::FxHashMap;
use std::collections::{BTreeSet, HashMap};

/// Strings without duplicates. Number 0 is the empty string.
pub(super) struct Strings {
    pub all: Vec<String>,
    known: HashMap<String, u32>,
}

impl Strings {
    pub fn new() -> Strings {
        Strings {
            all: vec![String::new()],
            known: HashMap::from([(String::new(), 0)]),
        }
    }

    pub fn index(&mut self, text: &str) -> u32 {
        if let Some(&index) = self.known.get(text) {
            return index;
        }
        self.all.push(text.to_owned());
        let index = self.all.len() as u32 - 1;
        self.known.insert(text.to_owned(), index);
        index
    }
}

/// A frame, as shown to a reader.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub function: u32,
    pub module: u32,
    pub file: u32,
    /// File, relative to the source root.
    pub shown_file: u32,
    pub line: u32,
    pub is_inlined: bool,
    /// Role of the code: see [`Role`].
    pub role: u8,
}

/// The tree. Node 0 is the root, which is not a frame. Each node comes after its parent.
pub(super) struct Calls {
    /// Frames without visible duplicates. Calls on one line are one frame.
    pub places: Vec<Place>,
    pub parent: Vec<u32>,
    /// Place of each node; 0 for the root.
    pub place: Vec<u32>,
    /// Node of the innermost frame of each stack, by stack number.
    pub innermost: Vec<u32>,
}

impl Calls {
    /// Returns the numbers of the names of wrapper functions, in ascending order.
    pub fn wrappers(&self, strings: &Strings) -> impl Iterator<Item = u32> {
        let names: BTreeSet<u32> = self.places.iter().map(|place| place.function).collect();
        let wrappers: Vec<u32> = names
            .into_iter()
            .filter(|&name| is_wrapper(&strings.all[name as usize]))
            .collect();
        wrappers.into_iter()
    }

    pub fn new(profile: &Profile, strings: &mut Strings) -> Calls {
        let root = source_root(profile.frames.iter().map(|frame| &frame.frame));
        let style = Style {
            root: &root,
            ..Style::default()
        };
        let mut places = Vec::new();
        let mut known = FxHashMap::default();
        let mut place_of = |frame: &crate::ProfileFrame| {
            let frame = &frame.frame;
            let place = Place {
                function: strings.index(&name(frame)),
                module: strings.index(frame.module.as_deref().unwrap_or("")),
                file: strings.index(frame.file.as_deref().unwrap_or("")),
                shown_file: strings.index(&shown_file(frame, style)),
                line: frame.line.unwrap_or(0),
                is_inlined: frame.inlined,
                role: Role::of(frame) as u8,
            };
            *known.entry(place).or_insert_with(|| {
                places.push(place);
                places.len() as u32 - 1
            })
        };
        let place_of_frame: Vec<u32> = profile.frames.iter().map(&mut place_of).collect();
        let mut calls = Calls {
            places,
            parent: vec![0],
            place: vec![0],
            innermost: Vec::with_capacity(profile.stacks.len()),
        };
        let kinds = kinds(profile);
        let mut children: FxHashMap<(u32, u32, &str), u32> = FxHashMap::default();
        for stack in 0..profile.stacks.len() as u32 {
            let mut node = 0;
            // The page adds its own frame for missing ones.
            let frames = profile.known_frames(stack);
            for (level, &frame) in frames.iter().enumerate().rev() {
                let place = place_of_frame[frame as usize];
                let kind = kinds.get(&stack).filter(|_| level == 0).unwrap_or(&"");
                node = *children.entry((node, place, kind)).or_insert_with(|| {
                    calls.parent.push(node);
                    calls.place.push(place);
                    calls.parent.len() as u32 - 1
                });
            }
            calls.innermost.push(node);
        }
        calls.in_order_of_descent()
    }

    /// Numbers the nodes in depth-first order. Callees follow their caller, so a walk over the
    /// calls reads memory sequentially.
    fn in_order_of_descent(self) -> Calls {
        let count = self.parent.len();
        let mut starts = vec![0; count + 1];
        for &parent in &self.parent[1..] {
            starts[parent as usize + 1] += 1;
        }
        for node in 0..count {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let mut children = vec![0; count - 1];
        for (node, &parent) in self.parent.iter().enumerate().skip(1) {
            children[next[parent as usize]] = node as u32;
            next[parent as usize] += 1;
        }
        let mut number_of = vec![0; count];
        let mut ordered = Calls {
            places: self.places,
            parent: Vec::with_capacity(count),
            place: Vec::with_capacity(count),
            innermost: self.innermost,
        };
        let mut pending = vec![0];
        while let Some(node) = pending.pop() {
            number_of[node as usize] = ordered.parent.len() as u32;
            // The root is its own parent. The parents of other nodes already have their numbers.
            let parent = self.parent[node as usize];
            ordered.parent.push(number_of[parent as usize]);
            ordered.place.push(self.place[node as usize]);
            let below = starts[node as usize]..starts[node as usize + 1];
            pending.extend(children[below].iter().rev());
        }
        for node in &mut ordered.innermost {
            *node = number_of[*node as usize];
        }
        ordered
    }

    /// Returns the parts that a row of the page shows for a site that ends at a node: the responsible function, its
    /// line, and a few callers. Sites that look alike have equal results.
    pub fn look(&self, node: u32, callers: usize) -> Vec<u32> {
        let above = |&node: &u32| Some(self.parent[node as usize]).filter(|&node| node != 0);
        let nodes = std::iter::successors(Some(node).filter(|&node| node != 0), above);
        let places: Vec<Place> = nodes
            .map(|node| self.places[self.place[node as usize] as usize])
            .collect();
        let has = |role: Role| places.iter().any(|place| place.role == role as u8);
        let is_own = |place: &Place| {
            place.role == Role::Own as u8
                || place.role == Role::Python as u8
                || (place.role == Role::Interpreter as u8 && !has(Role::Python))
        };
        let own = &places[places.iter().position(is_own).unwrap_or(0)..];
        let Some(first) = own.first() else {
            return Vec::new();
        };
        let callers = own[1..].iter().take(callers).map(|place| place.function);
        [first.function, first.shown_file, first.line]
            .into_iter()
            .chain(callers)
            .collect()
    }

    /// Returns the node of a stack's innermost frame, or the root if there is no such stack.
    pub fn node_of(&self, stack: u32) -> u32 {
        self.innermost.get(stack as usize).copied().unwrap_or(0)
    }
}

fn shown_file(frame: &StackFrame, style: Style) -> String {
    let place = place_of(frame, style);
    let line = frame.line.map(|line| format!(":{line}"));
    let file = line.and_then(|line| place.strip_suffix(line.as_str()).map(str::to_owned));
    file.unwrap_or(place)
}

/// Returns the allocating function at the end of each stack, if two runs are compared. malloc and new at the same place
/// are then two sites, as in [`crate::diff()`].
fn kinds(profile: &Profile) -> FxHashMap<u32, &str> {
    let sites = profile.sites.iter().filter(|_| profile.compared.is_some());
    sites.map(|site| (site.stack, site.kind.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ProfileFrame, StackFrame};

    #[test]
    fn stacks_share_frames_and_calls_on_one_line_are_one() {
        let frame = |address: u64, function: &str, line| ProfileFrame {
            address,
            module: None,
            frame: StackFrame {
                address: String::new(),
                module: None,
                offset: None,
                function: Some(function.into()),
                file: Some("a.cc".into()),
                line: Some(line),
                inlined: false,
            },
        };
        let profile = Profile {
            frames: vec![
                frame(1, "main", 3),
                frame(2, "work", 8),
                frame(3, "work", 8),
                frame(4, "work", 9),
            ],
            stacks: vec![vec![1, 0], vec![2, 0], vec![3, 0], vec![3, 1, 0], vec![]],
            ..Profile::default()
        };
        let calls = Calls::new(&profile, &mut Strings::new());
        assert_eq!(calls.places.len(), 3);
        // A callee follows its caller, even if it was found after another call.
        assert_eq!(calls.parent, [0, 0, 1, 2, 1]);
        assert_eq!(calls.innermost, [2, 2, 4, 3, 0]);
        assert_eq!(calls.node_of(9), 0);
    }
}
