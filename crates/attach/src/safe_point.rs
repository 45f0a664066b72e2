//! Code in which a thread may hold a lock that `dlopen` needs.

use crate::reach::Reach;
use crate::unwind_tables::UnwindTables;
use memhook_inject::{Error, Held, HoldOptions, Registers};
use memhook_process::{ElfView, ModuleImage};
use memhook_unwind::{TableModule, walk};
use std::time::Duration;

/// Where a thread of one process may be made to call the loader.
pub struct SafePoints {
    modules: Vec<TableModule>,
    ranges: Vec<(u64, u64)>,
}

impl SafePoints {
    /// In a process with these modules, whose tables are compiled.
    pub fn new(tables: &UnwindTables, modules: &[ModuleImage]) -> SafePoints {
        SafePoints {
            modules: tables.table_modules(modules),
            ranges: unsafe_ranges(modules),
        }
    }

    /// Holds a thread at one.
    pub fn hold(&self, reach: &mut Reach<'_>, pid: i32, deadline: Duration) -> Result<Held, Error> {
        let unwind = |registers: &Registers, read: &dyn Fn(u64) -> Option<u64>| {
            let start = (registers.rip, registers.rsp, registers.rbp);
            unwind_for_safety(&self.modules, &self.ranges, start, read)
        };
        let options = HoldOptions {
            need_safe_point: true,
            thread: None,
            deadline,
            unsafe_ranges: self.ranges.clone(),
            unwind: Some(&unwind),
        };
        reach.hold(pid, &options)
    }
}

/// How much of the stack above a lost frame is searched, in bytes.
const SEARCH_BYTES: u64 = 16 * 1024;

/// The frames of a thread that has stopped with (pc, sp, rbp). Where unwinding loses its way, every
/// word further up that points into `ranges` counts as a frame: it may be one.
pub fn unwind_for_safety(
    modules: &[TableModule],
    ranges: &[(u64, u64)],
    start: (u64, u64, u64),
    read: &dyn Fn(u64) -> Option<u64>,
) -> Vec<u64> {
    let (mut frames, complete) = walk(modules, start, read, 256);
    if !complete {
        let words = (0..SEARCH_BYTES / 8).map_while(|i| read((start.1 & !7).checked_add(i * 8)?));
        frames.extend(words.filter(|w| ranges.iter().any(|r| *w >= r.0 && *w < r.1)));
    }
    frames
}

/// Ranges (avma): the loader, the allocator, fork, which holds the allocator's locks, and what holds
/// the loader's.
///
/// libc's allocator is one object file, but its static functions have no dynamic symbols: the range
/// from its first to its last public function is widened by what they take in the glibc builds
/// looked at (2.31 to 2.41: `_int_malloc` and friends lie within 24 KiB before `malloc`).
pub fn unsafe_ranges(modules: &[ModuleImage]) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    for module in modules {
        let Ok(elf) = ElfView::parse(&module.bytes) else {
            continue;
        };
        let is_libc = module.name().starts_with("libc.so") || module.name().starts_with("libc-2");
        if module.is_loader {
            ranges.push((module.start, module.end));
        } else if is_libc {
            let functions: Vec<u64> = [
                "malloc",
                "free",
                "calloc",
                "realloc",
                "memalign",
                "malloc_trim",
            ]
            .iter()
            .filter_map(|name| elf.exported(name).map(|e| module.base.wrapping_add(e.svma)))
            .collect();
            if let (Some(low), Some(high)) = (functions.iter().min(), functions.iter().max()) {
                ranges.push((low.saturating_sub(24 * 1024), high.saturating_add(8 * 1024)));
            }
            for name in [
                "fork",
                "vfork",
                "_Fork",
                "dl_iterate_phdr",
                "pthread_create",
            ] {
                if let Some(e) = elf.exported(name) {
                    let start = module.base.wrapping_add(e.svma);
                    ranges.push((start, start.saturating_add(e.size.max(1))));
                }
            }
        } else if elf.exported("malloc").is_some() && !module.is_main {
            ranges.push((module.start, module.end)); // an allocator of its own
        }
    }
    ranges
}
