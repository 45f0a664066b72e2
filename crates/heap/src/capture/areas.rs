//! Selects the mappings that can hold pointers to heap blocks.

use crate::capture::pagemap;
use crate::glibc::layout::HEAP_MAX_BYTES;
use crate::ranges::Runs;
use crate::snapshot::{Area, AreaKind, ModuleInfo};
use memhook_inject::{PageScan, PageState};
use memhook_process::{Mapping, is_ours};
use std::io;
use std::ops::Range;

/// Maximum size of a mapping that is copied. Larger mappings, such as a sanitizer's shadow memory,
/// are reserved but never filled.
pub(super) const MAX_AREA_BYTES: u64 = 256 << 30;
/// Maximum size of a shared file mapping that is searched. Shared file mappings cannot be watched
/// for writes, so they are copied with all threads held.
const MAX_SHARED_FILE_BYTES: u64 = 1 << 20;

/// Returns the mappings to copy, in address order, and the mappings that could contain pointers but
/// cannot be copied.
///
/// The mappings to copy are writable mappings, and private read-only mappings that were once
/// writable: RELRO data of modules, and anonymous memory, including memory that the program has
/// temporarily made inaccessible. Devices are left out, because reading them may have side effects,
/// and so is our own memory in the target.
pub fn areas(
    pid: i32,
    maps: &[Mapping],
    modules: &[ModuleInfo],
    pages: Option<&PageScan>,
) -> (Vec<Area>, Vec<Area>) {
    let (mut areas, mut unsearched) = (Vec::new(), Vec::new());
    for (i, m) in maps.iter().enumerate() {
        let area = |kind| Area {
            start: m.start,
            end: m.end,
            kind,
            name: m.path.clone(),
        };
        match kind(m, modules) {
            Some(kind) if m.end - m.start <= MAX_AREA_BYTES => areas.push(area(kind)),
            Some(kind) => unsearched.push(area(kind)),
            None if is_ours(m) => {}
            // Only the process itself can read memfd_secret(2) memory.
            None if m.write || m.path.starts_with("/secretmem") => {
                unsearched.push(area(AreaKind::Shared))
            }
            None if is_in_heap(
                m,
                i.checked_sub(1).and_then(|i| maps.get(i)),
                maps.get(i + 1),
            ) =>
            {
                areas.push(area(if m.path == "[heap]" {
                    AreaKind::Brk
                } else {
                    AreaKind::Hidden
                }));
            }
            None => match hidden(pid, m, pages) {
                Ok(runs) => areas.extend(runs.into_iter().map(|Range { start, end }| Area {
                    start,
                    end,
                    kind: AreaKind::Hidden,
                    name: m.path.clone(),
                })),
                Err(_) => unsearched.push(area(AreaKind::Hidden)),
            },
        }
    }
    (areas, unsearched)
}

/// Returns true if these pages may belong to a block that the program has made inaccessible. The
/// whole mapping is then copied, including pages that were never touched, so that the heap around
/// it has no gap. Memory that could never be accessed reads as zeros. The reserved remainder of an
/// arena's heap is not included; it is recognized by its end, where the next heap could begin.
pub(super) fn is_in_heap(m: &Mapping, before: Option<&Mapping>, behind: Option<&Mapping>) -> bool {
    let is_memory = |m: &Mapping| !m.shared && m.file_id.2 == 0 && !m.path.starts_with("[v");
    let is_open = |m: &Mapping| m.read && m.write && is_memory(m) && m.path != "[stack]";
    is_memory(m)
        && !m.read
        && m.end - m.start <= HEAP_MAX_BYTES
        && !m.end.is_multiple_of(HEAP_MAX_BYTES)
        && before.is_some_and(|before| before.end == m.start && is_open(before))
        && behind.is_some_and(|behind| behind.start == m.end && is_open(behind))
}

/// Returns the pages that the program wrote to before it changed their protection, if the mapping
/// no longer shows this. That is the case for memory that is inaccessible or execute-only, and for
/// private file mappings that have become read-only.
fn hidden(pid: i32, m: &Mapping, pages: Option<&PageScan>) -> io::Result<Runs> {
    let is_device = m.path.starts_with("/dev/") && !is_memory(&m.path);
    let is_kernels = m.path.starts_with("[v");
    let is_disk_file = m.shared && (m.read || !is_memory(&m.path));
    if is_kernels || is_device || is_disk_file {
        return Ok(Runs::new());
    }
    let state = if m.shared {
        PageState::Populated
    } else {
        PageState::Own
    };
    let mut runs = Runs::new();
    if let Some(Ok(())) = pages.map(|p| p.find(m.start..m.end, state, &mut runs)) {
        return Ok(runs);
    }
    // Kernels before Linux 6.7.
    if m.shared {
        pagemap::populated(pid, m.start, m.end)
    } else {
        pagemap::own(pid, m.start, m.end)
    }
}

/// Returns true if shared memory of this name is not a file on a disk.
fn is_memory(path: &str) -> bool {
    let names = [
        "/dev/zero",
        "/dev/shm/",
        "/SYSV",
        "/memfd:",
        "/anon_hugepage",
    ];
    path.is_empty() || names.iter().any(|name| path.starts_with(name))
}

pub(super) fn kind(m: &Mapping, modules: &[ModuleInfo]) -> Option<AreaKind> {
    if !m.read || is_ours(m) || m.path.starts_with("[v") {
        return None;
    }
    if m.shared {
        if m.path.starts_with("/secretmem") {
            return None;
        }
        // Read-only memory is included, because it may have been written before an mprotect or
        // through another mapping.
        if is_memory(&m.path) {
            return Some(AreaKind::Shared);
        }
        if !m.write {
            return None;
        }
        // The kernel's own rings (`/[aio]`, `anon_inode:[io_uring]`) look like files too.
        let is_file = m.path.starts_with('/') && !m.path.starts_with("/[");
        let fits = m.end - m.start <= MAX_SHARED_FILE_BYTES;
        return (is_file && fits && !m.path.starts_with("/dev/")).then_some(AreaKind::File);
    }
    if m.path == "[heap]" {
        return Some(AreaKind::Brk);
    }
    if m.path == "[stack]" {
        return Some(AreaKind::Stack);
    }
    if m.file_id.2 == 0 {
        let is_name = m.path.is_empty() || m.path.starts_with("[anon");
        return (is_name || m.write).then_some(AreaKind::Anonymous);
    }
    if m.path.starts_with("/dev/") && !m.path.starts_with("/dev/zero") {
        return None;
    }
    let was_writable = modules
        .iter()
        .flat_map(|module| &module.data)
        .any(|data| m.start < data.end && m.end > data.start);
    (m.write || was_writable).then_some(AreaKind::File)
}
