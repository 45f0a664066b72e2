//! Variables of modules by address, from the modules' symbols.

use crate::dissect::Heap;
use crate::graph::finder::{Finder, MarkOptions};
use crate::graph::roots::{RootKind, root_ranges};
use crate::snapshot::{Snapshot, Variable, words};
use goblin::elf::{Elf, sym};
use memhook_foreign::demangle;
use memhook_process::ModuleImage;
use std::cmp::Reverse;

/// The variables of all modules in address order.
pub(crate) struct Variables {
    all: Vec<Variable>,
}

impl Variables {
    /// Collects the variables that the snapshot names, and those that the modules' symbols name.
    pub fn of(snapshot: &Snapshot, images: &[ModuleImage]) -> Variables {
        let mut all = snapshot.meta.variables.clone();
        for image in images {
            add_symbols(image, &mut all);
        }
        // If a variable has several names, the shortest is used, because the others are internal to
        // the library.
        all.sort_by_key(|v| (v.start, Reverse(v.end), v.name.len()));
        all.dedup_by_key(|v| v.start);
        Variables { all }
    }

    /// Returns the variable that holds an address.
    pub fn find(&self, address: u64) -> Option<&Variable> {
        let after = self.all.partition_point(|v| v.start <= address);
        let variable = self.all.get(after.checked_sub(1)?)?;
        (address < variable.end).then_some(variable)
    }
}

/// Returns the variables that hold addresses of blocks, to save them with the snapshot.
pub(crate) fn holding_blocks(
    snapshot: &Snapshot,
    heap: &Heap,
    images: &[ModuleImage],
) -> Vec<Variable> {
    let variables = Variables::of(snapshot, images);
    let finder = Finder::new(snapshot, &heap.blocks, MarkOptions::to_report());
    let mut found: Vec<&Variable> = Vec::new();
    for root in root_ranges(snapshot, heap) {
        if !matches!(root.kind, RootKind::Module(_)) {
            continue;
        }
        finder.root_pieces(root.start, root.end, |piece| {
            for (word, at) in words(piece.bytes()).zip((piece.address()..).step_by(8)) {
                if finder.kept_by(word).is_some() {
                    found.extend(variables.find(at));
                }
            }
        });
    }
    found.dedup_by_key(|variable| variable.start);
    found.into_iter().cloned().collect()
}

fn add_symbols(image: &ModuleImage, all: &mut Vec<Variable>) {
    let Ok(elf) = Elf::parse(&image.bytes) else {
        return;
    };
    for (symbols, names) in [(&elf.syms, &elf.strtab), (&elf.dynsyms, &elf.dynstrtab)] {
        for symbol in symbols.iter() {
            let start = image.base.wrapping_add(symbol.st_value);
            let end = start.saturating_add(symbol.st_size);
            let is_inside = start >= image.start && end <= image.end;
            let is_variable = symbol.st_type() == sym::STT_OBJECT && symbol.st_shndx != 0;
            if !is_variable || symbol.st_size == 0 || !is_inside {
                continue;
            }
            if let Some(name) = names.get_at(symbol.st_name).filter(|name| !name.is_empty()) {
                let name = demangle(name);
                all.push(Variable { start, end, name });
            }
        }
    }
}
