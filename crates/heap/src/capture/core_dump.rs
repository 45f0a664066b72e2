//! A snapshot from a core dump.
//!
//! A core has the memory and registers that the search needs, but neither the kind of each mapping
//! nor the code of its modules. This module derives the kinds from other data, and reads the code
//! from the files that the core names.

use crate::arch::native;
use crate::capture::Captured;
use crate::capture::areas::{MAX_AREA_BYTES, is_in_heap, kind};
use crate::capture::copy::regions_for;
use crate::capture::modules::{module_info, vtable_names};
use crate::capture::own_frames::follow;
use crate::capture::settle::{MallocPlaces, is_inside_by};
use crate::capture::thread_states;
use crate::glibc::arenas::{brk_starts, find_parameters};
use crate::glibc::layout::{Layout, NEWEST};
use crate::ranges::{Runs, add_run, run_bytes};
use crate::room::Room;
use crate::snapshot::inside_malloc_note;
use crate::snapshot::{Area, AreaKind, CopiedRegion, Meta, Method, ModuleInfo, Snapshot};
use crate::{Error, dissect};
use memhook_foreign::size_text;
use memhook_inject::Registers;
use memhook_process::{CoreFile, CoreSegment, Mapping, MissingModule, is_ours};
use std::collections::BTreeMap;
use std::time::Instant;

const PAGE_BYTES: usize = 4096;
/// Bytes read at a time.
const BATCH_BYTES: u64 = 1 << 20;
/// Minor version of the oldest glibc whose heap layout is known, 2.26. For this version, all
/// layouts are tried.
const OLDEST_MINOR: u32 = 26;

/// Reads a core dump. `memory` limits the memory of the copy; `None` allows all that is available.
pub fn capture_core(core: &CoreFile, memory: Option<u64>) -> Result<Captured, Error> {
    let begin = Instant::now();
    let unusable = |reason: String| Error::Saved {
        file: core.name().to_owned(),
        reason,
    };
    let found = core.modules();
    let mut modules: Vec<ModuleInfo> = found.images.iter().map(module_info).collect();
    modules.extend(found.missing.iter().map(without_file));
    let (areas, mut unsearched) = areas(core, &modules);
    unsearched.push(
        "data that the kernel held for it (user data of epoll and of timers, pipes), which core dumps do not contain".into(),
    );
    let wanted = |s: &&CoreSegment| areas.iter().any(|a| a.start == s.mapping.start);
    let segments: Vec<&CoreSegment> = core.segments.iter().filter(wanted).collect();
    let stored: Vec<Runs> = segments.iter().map(|s| core.stored(s)).collect();
    let bytes: u64 = stored.iter().map(|runs| run_bytes(runs)).sum();
    if let Some(room) = Room::for_copy(memory)
        && room.bytes < bytes.saturating_add(bytes / 4)
    {
        let needed = size_text(bytes.saturating_add(bytes / 4));
        return Err(unusable(format!(
            "its memory would take about {needed}, and {room}"
        )));
    }
    let mut regions = regions_for(core.pid, &areas)
        .map_err(|_| unusable("there is no address space for the memory that it lists".into()))?;
    for runs in stored {
        if !read_into(core, &runs, &mut regions) {
            return Err(unusable("its memory cannot be read".into()));
        }
    }
    let mut classes = BTreeMap::new();
    for image in &found.images {
        vtable_names(image, &mut classes);
    }
    let threads: Vec<(i32, Registers, &[u8])> = core
        .threads
        .iter()
        .map(|t| (t.tid, native::of_core(t.registers), t.extended.as_slice()))
        .collect();
    let mut snapshot = Snapshot {
        meta: Meta {
            pid: core.pid,
            processor: std::env::consts::ARCH.to_owned(),
            identity: None,
            method: Method::Core,
            held_ms: 0.0,
            prepare_held_ms: 0.0,
            taken_ms: 0.0,
            held_bytes: 0,
            in_malloc: 0,
            notes: Vec::new(),
            threads: thread_states(threads.iter().map(|(tid, r, x)| (*tid, r, *x))),
            areas,
            modules,
            kernel_words: Vec::new(),
            changed: Runs::new(),
            changed_words: Vec::new(),
            unsearched: Vec::new(),
            classes,
            variables: Vec::new(),
            earlier: None,
            unmoved: 0,
            emulated: None,
        },
        regions,
    };
    mark_brk(&mut snapshot, &found.images);
    follow(&mut snapshot, &found.images);
    find_version(core, &mut snapshot, &found.missing)?;
    let notes = &mut snapshot.meta.notes;
    let missing = found.missing.iter();
    notes.extend(
        missing.map(|m| format!("names and classes of {} are missing: {}", m.path, m.reason)),
    );
    let what_it_hides =
        |what: &String| format!("not searched: {what}; blocks without another pointer look leaked");
    notes.extend(unsearched.iter().map(what_it_hides));
    snapshot.meta.unsearched = unsearched;
    count_inside_malloc(&mut snapshot, &threads);
    snapshot.meta.taken_ms = begin.elapsed().as_secs_f64() * 1e3;
    Ok(Captured {
        snapshot,
        images: found.images,
        residency: None,
    })
}

/// Counts the threads that were inside malloc when the process ended.
fn count_inside_malloc(snapshot: &mut Snapshot, threads: &[(i32, Registers, &[u8])]) {
    let malloc = MallocPlaces::of(&snapshot.meta.modules);
    let is_inside = |registers: &Registers| {
        is_inside_by(registers, &malloc, |at, into| {
            let found = snapshot.bytes(at, into.len() as u64);
            found.map_or(0, |bytes| {
                into.copy_from_slice(bytes);
                bytes.len()
            })
        })
    };
    let inside = threads.iter().filter(|(_, r, _)| is_inside(r)).count();
    snapshot.meta.in_malloc = inside as u32;
    if inside > 0 {
        snapshot.meta.notes.push(inside_malloc_note(inside as u32));
    }
}

fn without_file(module: &MissingModule) -> ModuleInfo {
    ModuleInfo {
        path: module.path.clone(),
        base: module.base,
        start: module.start,
        end: module.end,
        data: module.data.clone(),
        // If the file of the C library is missing, its version is unknown.
        glibc_minor: is_libcs(&module.path).then_some(OLDEST_MINOR),
        ..ModuleInfo::default()
    }
}

fn is_libcs(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name == "libc.so.6" || name.starts_with("libc-2.")
}

/// Finds the version of a C library whose file is missing. The heap is accepted only if one of the
/// known layouts fits all of it.
fn find_version(
    core: &CoreFile,
    snapshot: &mut Snapshot,
    missing: &[MissingModule],
) -> Result<(), Error> {
    let Some(module) = missing.iter().find(|m| is_libcs(&m.path)) else {
        return Ok(());
    };
    for minor in (OLDEST_MINOR..=NEWEST).rev() {
        let mut modules = snapshot.meta.modules.iter_mut();
        if let Some(libc) = modules.find(|info| info.start == module.start) {
            libc.glibc_minor = Some(minor);
        }
        if dissect(snapshot).is_ok_and(|heap| heap.is_whole() && !heap.caches.is_empty()) {
            return Ok(());
        }
    }
    Err(Error::Saved {
        file: core.name().to_owned(),
        reason: format!(
            "its heap cannot be read without {}, which shows the version of glibc: {}",
            module.path, module.reason
        ),
    })
}

/// Returns the mappings to search, in address order, and descriptions of the mappings that could
/// hold pointers but are not in the core.
fn areas(core: &CoreFile, modules: &[ModuleInfo]) -> (Vec<Area>, Vec<String>) {
    let maps: Vec<&Mapping> = core.segments.iter().map(|s| &s.mapping).collect();
    let (mut areas, mut unsearched) = (Vec::new(), Vec::new());
    for (i, (segment, m)) in core.segments.iter().zip(&maps).enumerate() {
        let area = |kind| Area {
            start: m.start,
            end: m.end,
            kind,
            name: m.path.clone(),
        };
        let has_contents = segment.file_bytes > 0;
        let is_data = || {
            let mut data = modules.iter().flat_map(|module| &module.data);
            data.any(|data| m.start < data.end && m.end > data.start)
        };
        let neighbours = (i.checked_sub(1).and_then(|i| maps.get(i)), maps.get(i + 1));
        match kind(m, modules) {
            _ if is_ours(m) => {}
            Some(kind) if m.end - m.start <= MAX_AREA_BYTES => {
                let is_of_file = matches!(kind, AreaKind::Shared | AreaKind::File);
                if has_contents || !is_of_file {
                    areas.push(area(kind));
                } else if m.write && !is_data() {
                    // Module data that was never written is equal to the file's, and no heap is
                    // known there.
                    unsearched.push(describe(m));
                }
            }
            None if !m.write && is_in_heap(m, neighbours.0.copied(), neighbours.1.copied()) => {
                areas.push(area(AreaKind::Hidden));
            }
            // Pages of a module other than the first are in the core only if they were written to.
            None if !m.write
                && segment.file_bytes > PAGE_BYTES as u64
                && !m.path.starts_with("[v") =>
            {
                areas.push(area(AreaKind::Hidden));
            }
            None if !m.write && !m.path.starts_with("/secretmem") => {}
            _ => unsearched.push(describe(m)),
        }
    }
    (areas, unsearched)
}

fn describe(mapping: &Mapping) -> String {
    let name = if mapping.path.is_empty() {
        "memory"
    } else {
        &mapping.path
    };
    format!("{name} at {:#x}-{:#x}", mapping.start, mapping.end)
}

/// Copies ranges of addresses. Pages of zeros are skipped, so that they take no memory. A core that
/// went through a pipe has no holes.
fn read_into(core: &CoreFile, runs: &Runs, regions: &mut [CopiedRegion]) -> bool {
    let mut buffer = Vec::new();
    for run in runs {
        let mut at = run.start;
        while at < run.end {
            let bytes = (run.end - at).min(BATCH_BYTES);
            buffer.resize(bytes as usize, 0);
            if !core.read(at, &mut buffer) {
                return false;
            }
            let after = regions.partition_point(|r| r.start <= at);
            let Some(region) = after.checked_sub(1).and_then(|i| regions.get_mut(i)) else {
                return false;
            };
            for (i, page) in buffer.chunks(PAGE_BYTES).enumerate() {
                if page.iter().all(|&byte| byte == 0) {
                    continue;
                }
                let from = at + (i * PAGE_BYTES) as u64;
                let offset = (from - region.start) as usize;
                let Some(place) = region.bytes.get_mut(offset..offset + page.len()) else {
                    return false;
                };
                place.copy_from_slice(page);
                add_run(&mut region.runs, from..from + PAGE_BYTES as u64);
            }
            at += bytes;
        }
    }
    true
}

/// Finds the memory from brk(2). The kernel puts it after the executable (load_elf_binary in
/// fs/binfmt_elf.c), and malloc knows where it begins.
fn mark_brk(snapshot: &mut Snapshot, images: &[memhook_process::ModuleImage]) {
    let is_memory = |area: &Area| {
        area.name.is_empty() && matches!(area.kind, AreaKind::Anonymous | AreaKind::Hidden)
    };
    let main_end = images.iter().find(|m| m.is_main).map(|m| m.end);
    let areas = &snapshot.meta.areas;
    let behind = main_end.and_then(|end| areas.iter().position(|a| a.start >= end && is_memory(a)));
    if let Some(guess) = behind {
        snapshot.meta.areas[guess].kind = AreaKind::Brk;
    }
    let Some(libc) = snapshot.libc() else {
        return;
    };
    let mut layouts = Layout::candidates(libc.glibc_minor.unwrap_or(OLDEST_MINOR));
    let told =
        layouts.find_map(|layout| find_parameters(snapshot, &layout, libc, &brk_starts(snapshot)));
    let start = told.map(|p| p.brk_start).filter(|&start| start != 0);
    let areas = &mut snapshot.meta.areas;
    if let Some(guess) = behind {
        areas[guess].kind = AreaKind::Anonymous;
    }
    let first = match start {
        Some(start) => areas.iter().position(|a| (a.start..a.end).contains(&start)),
        None => behind,
    };
    let Some(first) = first else {
        return;
    };
    let mut end = areas[first].start;
    for area in &mut areas[first..] {
        if area.start != end || !is_memory(area) {
            break;
        }
        area.kind = AreaKind::Brk;
        end = area.end;
    }
}
