//! Resident memory outside the heap: stacks, mappings, files, shared memory.

use crate::dissect::Heap;
use crate::ranges::{Runs, intersection, run_bytes, without};
use crate::resident::account::{Account, Holding, Part};
use crate::resident::stacks::StackOwner;
use crate::snapshot::ModuleInfo;
use memhook_process::{Mapping, MappingUse, is_ours, thread_name};
use std::collections::BTreeMap;
use std::ops::Range;

/// Size below which a mapping without a name is grouped with others.
const LISTED_BYTES: u64 = 1 << 20;

/// Known facts about the mappings.
pub struct Mappings<'a> {
    /// The resident pages of private memory without a file, in order.
    pub resident: &'a Runs,
    /// Ranges of the heap, which the account already includes.
    pub heap: Runs,
    /// Stacks, sorted and disjoint.
    pub stacks: Vec<(Range<u64>, StackOwner)>,
    /// Id of the process.
    pub pid: i32,
    /// The modules.
    pub modules: &'a [ModuleInfo],
    /// The heap, with the heaps of other allocators that the account already includes.
    pub dissected: Option<&'a Heap>,
    /// False if the heap is unknown, because the memory was not copied.
    pub is_copied: bool,
}

/// Bytes by part and name.
type Found = BTreeMap<(Part, String), u64>;

impl Mappings<'_> {
    /// Adds the memory outside the heap.
    pub fn add_to(&self, account: &mut Account, mappings: &[MappingUse]) {
        let mut found = Found::new();
        for used in mappings.iter().filter(|used| used.memory.rss > 0) {
            let mapping = &used.mapping;
            let mut add = |part, name: String, bytes| {
                *found.entry((part, name)).or_default() += bytes;
            };
            match part_of_file(mapping) {
                Some(part) => add(part, file_name(mapping), used.memory.rss),
                None => self.add_private(mapping, &mut add),
            }
        }
        for ((part, name), bytes) in found.into_iter().filter(|(_, bytes)| *bytes > 0) {
            *account.parts.entry(part).or_default() += bytes;
            account.holdings.push(Holding { part, name, bytes });
        }
        for module in self.modules {
            if let Some(allocator) = self.undissected(module) {
                account.notes.push(format!(
                    "the process has {allocator} ({}): its heap is not split, and is counted with the mappings",
                    module.name()
                ));
            }
        }
        let undissected = self.dissected.map_or(&[][..], |heap| &heap.undissected);
        let has_module = |name: &str| {
            let mut modules = self.modules.iter();
            modules.any(|module| module.allocator.as_deref() == Some(name))
        };
        for undissected in undissected.iter().filter(|u| !has_module(u.allocator)) {
            account.notes.push(format!(
                "{undissected}: it is not split, and is counted with the mappings"
            ));
        }
    }

    /// Returns the allocator in a module, if its heap was not dissected.
    fn undissected<'a>(&self, module: &'a ModuleInfo) -> Option<&'a str> {
        let allocator = module.allocator.as_deref()?;
        let is_dissected = |heap: &Heap| heap.allocator_of(module).is_some();
        (!self.dissected.is_some_and(is_dissected)).then_some(allocator)
    }

    /// Adds private memory without a file: stacks, and memory of unknown purpose.
    fn add_private(&self, mapping: &Mapping, add: &mut impl FnMut(Part, String, u64)) {
        let outside = without(mapping.start, mapping.end, &self.heap);
        let outside = intersection(&outside, self.resident);
        let mut rest = run_bytes(&outside);
        let first = self
            .stacks
            .partition_point(|(stack, _)| stack.end <= mapping.start);
        let stacks = self.stacks[first..].iter();
        for (stack, owner) in stacks.take_while(|(stack, _)| stack.start < mapping.end) {
            let stack = stack.start.max(mapping.start)..stack.end.min(mapping.end);
            let bytes = run_bytes(&intersection(&outside, &[stack]));
            rest -= bytes;
            add(Part::Stacks, self.owner_name(*owner), bytes);
        }
        if mapping.path == "[stack]" {
            add(Part::Stacks, "stack of the initial thread".into(), rest);
            return;
        }
        let part = if !self.is_copied {
            Part::NotCopied
        } else if self
            .modules
            .iter()
            .any(|module| self.undissected(module).is_some())
        {
            Part::ForeignHeap
        } else {
            Part::Mappings
        };
        add(part, self.private_name(mapping, rest), rest);
    }

    fn owner_name(&self, owner: StackOwner) -> String {
        let StackOwner::Thread(tid) = owner else {
            return "stacks kept of threads that have ended".into();
        };
        match thread_name(self.pid, tid) {
            Some(name) => format!("thread {name}"),
            None => "threads that have ended meanwhile".into(),
        }
    }

    fn private_name(&self, mapping: &Mapping, bytes: u64) -> String {
        let data = |module: &&ModuleInfo| {
            let mut data = module.data.iter();
            data.any(|data| mapping.start < data.end && mapping.end > data.start)
        };
        if mapping.path == "[heap]" && !self.heap.is_empty() {
            "[heap], outside of malloc".into()
        } else if !mapping.path.is_empty() {
            mapping.path.clone()
        } else if let Some(module) = self.modules.iter().find(data) {
            format!("zeroed data of {}", module.name())
        } else if bytes >= LISTED_BYTES {
            format!("anonymous, {:#x}-{:#x}", mapping.start, mapping.end)
        } else {
            "anonymous, each below 1 MiB".into()
        }
    }
}

/// Returns the part of the account that a mapping belongs to; `None` for private memory without a
/// file.
pub(super) fn part_of_file(mapping: &Mapping) -> Option<Part> {
    let path = &mapping.path;
    if is_ours(mapping) {
        return Some(Part::Ourselves);
    }
    let is_memory = [
        "/dev/zero",
        "/dev/shm/",
        "/SYSV",
        "/memfd:",
        "/anon_hugepage",
    ];
    if mapping.shared && (path.is_empty() || is_memory.iter().any(|name| path.starts_with(name))) {
        return Some(Part::Shared);
    }
    // A private mapping of this device is memory without a file (mem(4)).
    if path == "/dev/zero" {
        return None;
    }
    // Mappings such as [vdso] belong to the kernel.
    let is_file = mapping.file_id.2 != 0 || mapping.shared || path.starts_with("[v");
    is_file.then_some(Part::Files)
}

pub(super) fn file_name(mapping: &Mapping) -> String {
    if mapping.path.is_empty() {
        "shared, without a name".into()
    } else if mapping.deleted && !mapping.path.starts_with("/memfd:") {
        format!("{} (deleted)", mapping.path)
    } else {
        mapping.path.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_process::parse_maps;

    #[test]
    fn parts_by_mapping() {
        let part = |line: &str| part_of_file(&parse_maps(line)[0]);
        for (line, expected) in [
            ("1000-2000 rw-p 0 00:00 0 [heap]", None),
            ("1000-2000 rw-p 0 00:00 0", None),
            ("1000-2000 r-xp 0 fe:01 4 /lib/x.so", Some(Part::Files)),
            ("1000-2000 rw-s 0 fe:01 4 /data/x", Some(Part::Files)),
            (
                "1000-2000 rw-s 0 00:01 4 /dev/zero (deleted)",
                Some(Part::Shared),
            ),
            (
                "1000-2000 rw-s 0 00:01 4 /memfd:x (deleted)",
                Some(Part::Shared),
            ),
            (
                "1000-2000 rw-p 0 00:01 4 /memfd:x (deleted)",
                Some(Part::Files),
            ),
            (
                "1000-2000 rw-s 0 00:01 4 /memfd:memhook-rs (deleted)",
                Some(Part::Ourselves),
            ),
            ("1000-2000 rw-p 0 00:05 4 /dev/zero", None),
            ("1000-2000 r-xp 0 00:00 0 [vdso]", Some(Part::Files)),
        ] {
            assert_eq!(part(line), expected, "{line}");
        }
    }

    #[test]
    fn a_mapping_may_hold_heap_stacks_and_more() {
        let mapping = &parse_maps("10000-20000 rw-p 0 00:00 0")[0];
        let resident = vec![0x10000..0x14000, 0x18000..0x20000];
        let mappings = Mappings {
            resident: &resident,
            heap: vec![0x10000..0x12000],
            stacks: vec![(0x16000..0x1a000, StackOwner::Ended)],
            pid: 1,
            modules: &[],
            dissected: None,
            is_copied: true,
        };
        let mut found = Vec::new();
        mappings.add_private(mapping, &mut |part, _, bytes| found.push((part, bytes)));
        assert_eq!(found, [(Part::Stacks, 0x2000), (Part::Mappings, 0x8000)]);
    }
}
