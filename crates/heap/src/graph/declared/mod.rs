//! Types of blocks, from the declarations of the program. A variable of a known type points to a
//! block, a member of that block points to the next one, and so on.
//!
//! A declaration is less certain evidence than the contents of a block: a pointer may be stale, or
//! may point to the beginning of something larger. So a block gets a type only if it is large
//! enough for that type and has pointers where the type has them. If several types fit, and none of
//! them begins with the other types, the block gets all their names.

mod containers;
mod layout;
mod names;
mod settled;
mod walks;

use self::containers::is_node;
use self::layout::{Elements, Layout, Layouts};
use crate::dissect::Heap;
use crate::graph::roots::{RootKind, root_ranges};
use crate::graph::types::Types;
use crate::ranges::{Runs, joined};
use crate::snapshot::{Snapshot, words};
use crate::{Block, BlockTable};
use memhook_symbols::{DeclaredFiles, DeclaredKind, DeclaredTypes, TypeId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::{Duration, Instant};

/// Limits of the search for types.
#[derive(Clone, Copy, Debug)]
pub struct DeclaredLimits {
    /// Maximum bytes of debug information to read.
    pub bytes: u64,
    /// Time limit of the whole search.
    pub time: Duration,
}

impl Default for DeclaredLimits {
    fn default() -> Self {
        DeclaredLimits {
            bytes: 512 << 20,
            time: Duration::from_secs(10),
        }
    }
}

/// The names that declarations give to blocks.
#[derive(Debug, Default)]
pub struct DeclaredBlocks {
    names: Vec<String>,
    /// Index of the name, by block.
    of: Vec<u32>,
    /// Parts that were left out, with the reasons.
    pub notes: Vec<String>,
}

const NONE: u32 = u32::MAX;
/// Number of steps between two checks of the time.
const STEPS_A_LOOK: u32 = 1 << 14;
/// Largest difference between the size of a block and the requested size. malloc rounds up, and
/// keeps a remainder that is too small for a chunk.
const MOST_ROUNDING: u64 = 31;
/// Maximum number of elements to check before a block is called an array.
const ELEMENTS_CHECKED: u64 = 1024;
/// Lowest address that programs use. Smaller words are numbers.
const LOWEST_ADDRESS: u64 = 1 << 16;
/// Distance from known memory within which a word may be an address.
const NEAR: u64 = 1 << 30;

impl DeclaredBlocks {
    /// Finds the types of a heap's blocks.
    pub fn find(
        snapshot: &Snapshot,
        heap: &Heap,
        types: &mut Types,
        files: &DeclaredFiles,
        limits: DeclaredLimits,
    ) -> DeclaredBlocks {
        if files.is_empty() || heap.blocks.is_empty() {
            return DeclaredBlocks::default();
        }
        let until = Instant::now() + limits.time;
        let sections = files.read(limits.bytes);
        let mut notes: Vec<String> = sections.left_out().to_vec();
        let declared = DeclaredTypes::of(&sections, until);
        if declared.unread().is_some() {
            notes.push(format!(
                "not all debug information was read for types within {} s",
                limits.time.as_secs()
            ));
        }
        let mut claims = Claims::new(snapshot, heap, declared, until);
        claims.add_variables(snapshot, heap);
        claims.add_classes(types);
        if claims.is_late {
            notes.push(format!(
                "not all pointers were followed for types within {} s",
                limits.time.as_secs()
            ));
        }
        let mut found = claims.settle(types);
        found.notes = notes;
        found
    }

    /// Returns the name of a block's type.
    pub fn name(&self, block: u32) -> Option<&str> {
        self.numbered(block).map(|(_, name)| name)
    }

    /// Returns the name of a block's type, with its number.
    pub fn numbered(&self, block: u32) -> Option<(u32, &str)> {
        let number = *self.of.get(block as usize)?;
        Some((number, self.names.get(number as usize)?))
    }
}

/// Interpretation of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    /// One object.
    One(TypeId),
    /// A larger object that begins with this type.
    Beginning(TypeId),
    /// An array of objects.
    Row(TypeId),
    /// Part of a container, with the container's type and the type of its elements.
    Part(Part, TypeId, Option<TypeId>),
}

/// Role of a block in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Elements,
    Bits,
    Text,
    Node,
    Buckets,
    Chunk,
    Chunks,
}

/// Type claims that the search has made.
struct Claims<'a, 's> {
    snapshot: &'a Snapshot,
    blocks: &'a BlockTable,
    declared: DeclaredTypes<'s>,
    layouts: Layouts,
    known: Vec<What>,
    numbers: FxHashMap<What, u32>,
    /// First claim of each block.
    first: Vec<u32>,
    /// Further claims of each block.
    more: FxHashMap<u32, Vec<u32>>,
    /// Objects that have yet to be followed.
    waiting: Vec<(u64, Elements)>,
    /// Memory to which pointers may lead.
    memory: Runs,
    most_rounding: u64,
    until: Instant,
    steps: u32,
    is_late: bool,
}

impl<'a, 's> Claims<'a, 's> {
    fn new(
        snapshot: &'a Snapshot,
        heap: &'a Heap,
        declared: DeclaredTypes<'s>,
        until: Instant,
    ) -> Self {
        let areas = snapshot.meta.areas.iter().map(|a| a.start..a.end);
        let modules = snapshot.meta.modules.iter().map(|m| m.start..m.end);
        let around = areas
            .chain(modules)
            .map(|r| r.start.saturating_sub(NEAR)..r.end.saturating_add(NEAR));
        Claims {
            snapshot,
            blocks: &heap.blocks,
            declared,
            layouts: Layouts::default(),
            known: Vec::new(),
            numbers: FxHashMap::default(),
            first: vec![NONE; heap.blocks.len() as usize],
            more: FxHashMap::default(),
            waiting: Vec::new(),
            memory: joined(around.collect()),
            // Size classes of other allocators can be a quarter apart, and are not known here.
            most_rounding: match heap.others.is_empty() {
                true => MOST_ROUNDING,
                false => MOST_ROUNDING * 2,
            },
            until,
            steps: 0,
            is_late: false,
        }
    }

    /// Starts with the variables that hold addresses of blocks.
    fn add_variables(&mut self, snapshot: &Snapshot, heap: &Heap) {
        let variables = self.declared.variables();
        let mut holding: Vec<usize> = Vec::new();
        for root in root_ranges(snapshot, heap) {
            if !matches!(root.kind, RootKind::Module(_)) {
                continue;
            }
            let Some(bytes) = snapshot.bytes(root.start, root.end - root.start) else {
                continue;
            };
            for (index, word) in words(bytes).enumerate() {
                if !self.blocks.may_be(word) || self.blocks.find(word).is_none() {
                    continue;
                }
                let address = root.start + index as u64 * 8;
                let after = variables.partition_point(|v| v.address <= address);
                let Some(last) = after.checked_sub(1) else {
                    continue;
                };
                // Each compilation unit that declares a variable has an entry for it.
                let address = variables[last].address;
                let first = variables.partition_point(|v| v.address < address);
                if holding.last() != Some(&(after - 1)) {
                    holding.extend(first..after);
                }
            }
        }
        holding.sort_unstable();
        holding.dedup();
        let variables: Vec<_> = holding.into_iter().map(|i| variables[i]).collect();
        let mut seen: FxHashSet<(u64, TypeId)> = FxHashSet::default();
        for variable in variables {
            if let Some(id) = self.declared.resolve(variable.of)
                && seen.insert((variable.address, id))
            {
                self.wait(variable.address, id, 1);
                self.work();
            }
        }
    }

    /// Starts with the blocks whose contents reveal their class.
    fn add_classes(&mut self, types: &mut Types) {
        let mut by_word: FxHashMap<u64, Option<TypeId>> = FxHashMap::default();
        for (_, block) in self.blocks.iter() {
            let Some(word) = self.snapshot.word(block.address) else {
                continue;
            };
            if word < LOWEST_ADDRESS || self.has_no_time() {
                continue;
            }
            let Some(class) = types.class(word) else {
                continue;
            };
            let declared = &mut self.declared;
            let id = by_word
                .entry(word)
                .or_insert_with(|| declared.by_name(&class));
            if let Some(id) = *id
                && self.declared.get(id).bytes <= block.bytes
            {
                self.wait(block.address, id, 1);
                self.work();
            }
        }
    }

    /// Returns true if the time limit is exceeded.
    fn has_no_time(&mut self) -> bool {
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(STEPS_A_LOOK) {
            self.is_late |= Instant::now() >= self.until;
        }
        self.is_late
    }

    /// Queues `count` objects for a later step.
    fn wait(&mut self, address: u64, of: TypeId, count: u64) {
        let bytes = self.declared.get(of).bytes;
        if bytes > 0 && !self.layouts.of(&mut self.declared, of).is_leaf() {
            self.waiting.push((address, Elements { of, bytes, count }));
        }
    }

    fn work(&mut self) {
        while let Some((address, elements)) = self.waiting.pop() {
            let layout = self.layouts.of(&mut self.declared, elements.of);
            let mut at = address;
            for _ in 0..elements.count {
                if self.has_no_time() {
                    self.waiting.clear();
                    return;
                }
                if self.snapshot.bytes(at, elements.bytes).is_none() {
                    break;
                }
                self.object(at, &layout);
                let Some(next) = at.checked_add(elements.bytes) else {
                    break;
                };
                at = next;
            }
        }
    }

    /// Follows the pointers of an object.
    fn object(&mut self, address: u64, layout: &Layout) {
        let at = |offset: u64| address.wrapping_add(offset);
        for &(offset, to) in &layout.pointers {
            if let Some(word) = self.snapshot.word(at(offset)) {
                self.point(word, to);
            }
        }
        for (offset, contained) in &layout.containers {
            self.container(at(*offset), contained);
        }
        for &(offset, elements) in &layout.arrays {
            self.waiting.push((at(offset), elements));
        }
    }

    /// Records the interpretation of a block. Returns true if it is new.
    fn claim(&mut self, block: u32, what: What) -> bool {
        let next = self.known.len() as u32;
        let number = *self.numbers.entry(what).or_insert(next);
        if number == next {
            self.known.push(what);
        }
        let first = &mut self.first[block as usize];
        if *first == NONE {
            *first = number;
            return true;
        }
        if *first == number {
            return false;
        }
        let more = self.more.entry(block).or_default();
        let is_new = !more.contains(&number) && more.len() < 8;
        if is_new {
            more.push(number);
        }
        is_new
    }

    /// Returns the block that begins at an address.
    fn starting_at(&self, address: u64) -> Option<(u32, Block)> {
        let (number, offset) = self.blocks.find(address)?;
        (offset == 0).then(|| (number, self.blocks.get(number)))
    }

    /// Follows a pointer to an object of a type.
    fn point(&mut self, word: u64, to: TypeId) {
        if word < LOWEST_ADDRESS {
            return;
        }
        let Some((number, offset)) = self.blocks.find(word) else {
            return;
        };
        let block = self.blocks.get(number);
        let bytes = self.declared.get(to).bytes;
        if bytes == 0 || bytes > block.bytes {
            return;
        }
        match &self.declared.get(to).kind {
            DeclaredKind::Structure(_) => {
                if is_node(&self.declared.get(to).name) {
                    return;
                }
            }
            // A pointer to bytes may point to any object.
            DeclaredKind::Plain if bytes > 1 && offset == 0 => {
                self.claim(number, What::Row(to));
                return;
            }
            DeclaredKind::Pointer(Some(_)) if offset == 0 => {
                let layout = self.layouts.of(&mut self.declared, to);
                let count = block.bytes / 8;
                let is_right = !layout.is_leaf() && self.look_right(word, to, count, &layout);
                if is_right && self.claim(number, What::Row(to)) {
                    self.wait(word, to, count);
                }
                return;
            }
            _ => return,
        }
        let layout = self.layouts.of(&mut self.declared, to);
        if offset != 0 {
            self.point_behind_count(number, block, offset, to, &layout);
            return;
        }
        if !self.looks_right(word, &layout) {
            return;
        }
        let (count, rest) = (block.bytes / bytes, block.bytes % bytes);
        let what = if self.declared.get(to).name.is_empty() {
            What::Beginning(to)
        } else if block.bytes - bytes <= self.most_rounding || layout.is_open_ended {
            What::One(to)
        } else if self.links_itself(&layout, to) || self.declared.is_beginning(to) {
            What::Beginning(to)
        } else if rest <= self.most_rounding && self.look_right(word, to, count, &layout) {
            What::Row(to)
        } else {
            What::One(to)
        };
        if self.claim(number, what) {
            let is_row = matches!(what, What::Row(_));
            self.wait(word, to, if is_row { count } else { 1 });
        }
    }

    /// Follows a pointer to an array that is preceded by its length: `new T[n]` writes n before the
    /// elements if they have a destructor (Itanium C++ ABI 2.7).
    fn point_behind_count(
        &mut self,
        number: u32,
        block: Block,
        offset: u64,
        to: TypeId,
        layout: &Layout,
    ) {
        let bytes = self.declared.get(to).bytes;
        let before = layout.alignment.max(8);
        let count = self.snapshot.word(block.address + offset.saturating_sub(8));
        let Some(count) = count.filter(|&count| offset == before && count > 0) else {
            return;
        };
        let all = count
            .checked_mul(bytes)
            .and_then(|all| all.checked_add(before));
        let is_all =
            all.is_some_and(|all| all <= block.bytes && block.bytes - all <= self.most_rounding);
        let start = block.address + offset;
        if is_all && self.look_right(start, to, count, layout) && self.claim(number, What::Row(to))
        {
            self.wait(start, to, count);
        }
    }

    /// Returns true if objects of a type point to other objects of the same type, as list nodes do.
    /// A larger block behind such a pointer is then more likely one derived object than an array.
    fn links_itself(&self, layout: &Layout, of: TypeId) -> bool {
        layout.pointers.iter().any(|&(_, to)| to == of)
    }

    /// Returns true if this may be an object of this type: the words at its pointer members are
    /// addresses.
    fn looks_right(&self, address: u64, layout: &Layout) -> bool {
        let pointers = layout.pointers.iter().map(|&(offset, _)| offset);
        let containers = layout.containers.iter().map(|&(offset, _)| offset);
        pointers.chain(containers).all(|offset| {
            let word = self.snapshot.word(address.wrapping_add(offset));
            word.is_some_and(|word| self.may_be_address(word))
        })
    }

    /// Like [`Self::looks_right`], for an array of objects.
    fn look_right(&self, address: u64, of: TypeId, count: u64, layout: &Layout) -> bool {
        let bytes = self.declared.get(of).bytes;
        let mut all = 0..count.min(ELEMENTS_CHECKED);
        all.all(|i| self.looks_right(address.wrapping_add(i * bytes), layout))
    }

    fn may_be_address(&self, word: u64) -> bool {
        // Many programs mark unset pointers with -1, or with a small number.
        if word < LOWEST_ADDRESS || word == u64::MAX {
            return true;
        }
        let after = self.memory.partition_point(|run| run.start <= word);
        let run = after.checked_sub(1).and_then(|i| self.memory.get(i));
        run.is_some_and(|run| word < run.end)
    }
}
