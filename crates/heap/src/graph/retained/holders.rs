//! Holders of blocks outside the heap, named as a developer of the program would name them:
//! variables of modules, threads, the kernel, other memory.

use super::variables::Variables;
use crate::blocks::SegmentKind;
use crate::dissect::Heap;
use crate::graph::finder::Finder;
use crate::graph::roots::{RootKind, RootRange, root_ranges};
use crate::snapshot::Snapshot;
use memhook_process::ModuleImage;
use rustc_hash::FxHashMap;
use serde::Serialize;

/// Maximum size of a mapping that counts as a thread's memory because it contains the thread's
/// control block. The loader creates such a mapping for the initial thread.
const THREAD_BYTES: u64 = 64 << 10;
/// Minimum number of consecutive words with pointers that count as one array variable.
const ARRAY_WORDS: usize = 64;

/// Kind of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HolderKind {
    /// The whole process, which is the top of the tree.
    Process,
    /// The data of a module.
    Module,
    /// A variable of a module.
    Variable,
    /// A thread: its stack, registers and thread-local variables.
    Thread,
    /// The kernel: user data of epoll and of timers, contents of pipes.
    Kernel,
    /// Memory that belongs to no known heap, module or thread.
    Memory,
    /// No holder: the block is leaked.
    Leaked,
}

impl HolderKind {
    /// Returns true if the holder counts only for blocks that no other kind of holder holds. The
    /// process is at the top of the tree, and counts as the holder of everything that no other
    /// holder holds.
    fn is_searched_later(self) -> bool {
        use HolderKind::*;
        matches!(self, Process | Thread | Kernel | Leaked)
    }
}

/// One holder.
#[derive(Clone, Debug)]
pub struct Holder {
    /// Kind of the holder.
    pub kind: HolderKind,
    /// Name of the holder. For a variable, it does not include the module.
    pub name: String,
    /// Address of a variable; 0 for other holders.
    pub address: u64,
    /// Number of the module that a variable belongs to.
    pub of: Option<u32>,
}

/// All holders, and the blocks that each one points to.
pub(crate) struct Holders {
    /// The holders. The process comes first and the leaked blocks last.
    pub all: Vec<Holder>,
    /// Index into `targets` of each holder's first target, followed by the end of the last holder's
    /// targets.
    starts: Vec<u32>,
    /// Nodes: blocks by their number, then holders.
    targets: Vec<u32>,
}

/// Number of the process holder.
pub(crate) const PROCESS: u32 = 0;

impl Holders {
    /// Collects the holders of a snapshot. The holder of leaked blocks has no targets at first.
    pub fn of(
        snapshot: &Snapshot,
        heap: &Heap,
        finder: &Finder,
        images: &[ModuleImage],
    ) -> Holders {
        let mut found = Found {
            finder,
            variables: Variables::of(snapshot, images),
            all: Vec::new(),
            by_name: FxHashMap::default(),
            edges: Vec::new(),
        };
        found.add(HolderKind::Process, String::new(), 0, None);
        for thread in &snapshot.meta.threads {
            let holder = found.thread(thread.tid);
            // A register may contain any address of a block, regardless of which addresses count in
            // memory.
            for &word in &thread.words {
                found.point(holder, heap.blocks.find(word).map(|(block, _)| block));
            }
        }
        if !snapshot.meta.kernel_words.is_empty() {
            let kernel = RootKind::Kernel.to_string();
            let holder = found.named(HolderKind::Kernel, &kernel);
            for &word in &snapshot.meta.kernel_words {
                found.point(holder, heap.blocks.find(word).map(|(block, _)| block));
            }
        }
        for root in root_ranges(snapshot, heap) {
            found.range(snapshot, &root);
        }
        if !heap.mmapped_exact {
            let name = "large blocks that malloc's own count does not confirm";
            let holder = found.named(HolderKind::Memory, name);
            for segment in heap.blocks.segments() {
                if matches!(segment.kind, SegmentKind::Mapped { .. }) {
                    let blocks = segment.first..segment.first + segment.count;
                    found.edges.extend(blocks.map(|block| (holder, block)));
                }
            }
        }
        found.add(HolderKind::Leaked, "nothing (leaked)".into(), 0, None);
        found.finish(heap.blocks.len())
    }

    /// Returns the number of holders.
    pub fn len(&self) -> u32 {
        self.all.len() as u32
    }

    /// Returns the holders that hold blocks only briefly.
    pub fn passing(&self) -> impl Iterator<Item = u32> + '_ {
        let is_passing =
            |holder: &Holder| matches!(holder.kind, HolderKind::Thread | HolderKind::Kernel);
        let all = (0u32..).zip(&self.all);
        all.filter(move |(_, holder)| is_passing(holder))
            .map(|(number, _)| number)
    }

    /// Returns the number of the holder of leaked blocks.
    pub fn leaked(&self) -> u32 {
        self.len() - 1
    }

    /// Returns the blocks that a holder points to.
    pub fn targets(&self, holder: u32) -> &[u32] {
        let holder = holder as usize;
        &self.targets[self.starts[holder] as usize..self.starts[holder + 1] as usize]
    }

    /// Returns the holders that point to each of these blocks. A module appears as its variables.
    pub fn pointing_to(&self, blocks: &[u32]) -> FxHashMap<u32, Vec<u32>> {
        let mut found: FxHashMap<u32, Vec<u32>> =
            blocks.iter().map(|&block| (block, Vec::new())).collect();
        for holder in 0..self.len() {
            for block in self.targets(holder) {
                if let Some(holders) = found.get_mut(block) {
                    holders.push(holder);
                }
            }
        }
        found
    }

    /// Sets the leaked blocks.
    pub fn set_leaked(&mut self, blocks: impl Iterator<Item = u32>) {
        self.targets.extend(blocks);
        if let Some(end) = self.starts.last_mut() {
            *end = self.targets.len() as u32;
        }
    }
}

struct Found<'a> {
    finder: &'a Finder<'a>,
    variables: Variables,
    all: Vec<Holder>,
    by_name: FxHashMap<(HolderKind, String, u64), u32>,
    /// Pairs of a holder and a block that it points to.
    edges: Vec<(u32, u32)>,
}

impl Found<'_> {
    fn add(&mut self, kind: HolderKind, name: String, address: u64, of: Option<u32>) -> u32 {
        self.all.push(Holder {
            kind,
            name,
            address,
            of,
        });
        self.all.len() as u32 - 1
    }

    fn named(&mut self, kind: HolderKind, name: &str) -> u32 {
        let key = (kind, name.to_owned(), 0);
        match self.by_name.get(&key) {
            Some(&holder) => holder,
            None => {
                let holder = self.add(kind, name.to_owned(), 0, None);
                self.by_name.insert(key, holder);
                holder
            }
        }
    }

    fn thread(&mut self, tid: i32) -> u32 {
        self.named(HolderKind::Thread, &format!("thread {tid}"))
    }

    fn point(&mut self, holder: u32, block: Option<u32>) {
        self.edges.extend(block.map(|block| (holder, block)));
    }

    /// Adds the pointers of a range of memory.
    fn range(&mut self, snapshot: &Snapshot, root: &RootRange) {
        let area = root.start..root.end;
        let own = |fs_base: u64| area.contains(&fs_base) && root.end - root.start <= THREAD_BYTES;
        let thread = snapshot.meta.threads.iter().find(|t| own(t.fs_base));
        let holder = match &root.kind {
            RootKind::Module(path) => {
                let module = self.named(HolderKind::Module, path);
                return self.module(snapshot, root, module);
            }
            RootKind::Stack(tid) | RootKind::Register(tid) => self.thread(*tid),
            RootKind::Memory(_) if thread.is_some() => {
                let tid = thread.map_or(0, |thread| thread.tid);
                self.thread(tid)
            }
            RootKind::Memory(name) => self.named(HolderKind::Memory, name),
            RootKind::Kernel => self.named(HolderKind::Kernel, &root.kind.to_string()),
        };
        let mut found = Vec::new();
        let finder = self.finder;
        finder.root_pieces(root.start, root.end, |piece| {
            finder.in_piece(&piece, |block| found.push((holder, block)));
        });
        // Memory of other allocators may be large, and may point to a block many times.
        found.sort_unstable();
        found.dedup();
        self.edges.extend(found);
    }

    /// Adds the pointers in the data of a module, by variable.
    fn module(&mut self, snapshot: &Snapshot, root: &RootRange, module: u32) {
        let mut pointers: Vec<(u64, u32)> = Vec::new();
        let finder = self.finder;
        finder.root_pieces(root.start, root.end, |piece| {
            for index in 0..piece.words() {
                let at = piece.address() + index as u64 * 8;
                finder.at_word(&piece, index, |block| pointers.push((at, block)));
            }
        });
        let mut nameless = Vec::new();
        for (at, block) in pointers {
            match self.variables.find(at) {
                Some(variable) => {
                    let (start, name) = (variable.start, variable.name.clone());
                    let holder = self.variable(module, start, name);
                    self.edges.push((holder, block));
                }
                None => nameless.push((at, block)),
            }
        }
        let base = base_of(snapshot, &self.all[module as usize].name);
        // Each word is a separate variable, unless it is part of an array.
        let is_next = |a: &(u64, u32), b: &(u64, u32)| b.0 - a.0 <= 8;
        for row in nameless.chunk_by(is_next) {
            let is_array = row.len() >= ARRAY_WORDS;
            for &(at, block) in row {
                let start = if is_array { row[0].0 } else { at };
                let name = format!("data at +{:#x}", start.wrapping_sub(base));
                let holder = self.variable(module, start, name);
                self.edges.push((holder, block));
            }
        }
    }

    fn variable(&mut self, module: u32, start: u64, name: String) -> u32 {
        let key = (HolderKind::Variable, String::new(), start);
        if let Some(&holder) = self.by_name.get(&key) {
            return holder;
        }
        let holder = self.add(HolderKind::Variable, name, start, Some(module));
        self.by_name.insert(key, holder);
        holder
    }

    fn finish(mut self, blocks: u32) -> Holders {
        // The process holds everything that no other holder does, and a module holds its variables.
        for (number, holder) in self.all.iter().enumerate() {
            let by = match (holder.kind, holder.of) {
                // These holders are searched after all others.
                (kind, _) if kind.is_searched_later() => continue,
                (_, Some(module)) => module,
                _ => PROCESS,
            };
            self.edges.push((by, blocks + number as u32));
        }
        self.edges.sort_unstable();
        self.edges.dedup();
        let mut starts = Vec::with_capacity(self.all.len() + 1);
        for holder in 0..=self.all.len() as u32 {
            starts.push(self.edges.partition_point(|e| e.0 < holder) as u32);
        }
        let targets = self.edges.iter().map(|edge| edge.1).collect();
        Holders {
            all: self.all,
            starts,
            targets,
        }
    }
}

fn base_of(snapshot: &Snapshot, path: &str) -> u64 {
    let mut modules = snapshot.meta.modules.iter();
    modules.find(|m| m.path == path).map_or(0, |m| m.base)
}
