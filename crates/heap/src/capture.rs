//! Taking a snapshot.

use crate::Error;
use crate::areas::areas;
use crate::copy::{self, Patch, Runs};
use crate::modules::{module_info, vtable_names};
use crate::snapshot::{
    Area, AreaKind, Meta, Method, ModuleInfo, Region, Snapshot, ThreadState, words,
};
use memhook_inject::{AllHeld, PageScan, PageState, Registers, WriteWatch, hold_all};
use memhook_process::{Mapping, ModuleImage, mappings, modules};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::collections::{BTreeMap, HashMap};
use std::io::IoSliceMut;
use std::time::{Duration, Instant};

/// Rounds of copying before the hold; each is shorter than the one before, or it is the last.
const ROUNDS: usize = 6;
/// Little enough to be copied while the threads are held (about 0.3 ms).
const SMALL_BYTES: u64 = 1 << 20;
/// How long threads inside malloc are let run at a time, first and at most, and in all.
const SETTLE_STEP: Duration = Duration::from_micros(30);
const SETTLE_STEP_MAX: Duration = Duration::from_micros(200);
const SETTLE_LIMIT: Duration = Duration::from_millis(4);
/// The system calls of malloc: mmap, mprotect, munmap, brk, mremap, madvise, futex
/// (arch/x86/entry/syscalls/syscall_64.tbl).
const MALLOC_CALLS: [u64; 7] = [9, 10, 11, 12, 25, 28, 202];
/// Words at the top of a stack that may be return addresses into malloc.
const STACK_WORDS: usize = 48;

/// A larger mapping is a sanitizer's shadow or the like, reserved but never filled.
const MAX_AREA_BYTES: u64 = 256 << 30;

/// A snapshot, and the files of the modules for looking up names.
pub struct Captured {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// The modules with their bytes.
    pub images: Vec<ModuleImage>,
}

/// What is known of the target before any thread is held.
struct Prepared {
    pid: i32,
    begin: Instant,
    images: Vec<ModuleImage>,
    modules: Vec<ModuleInfo>,
    pages: Option<PageScan>,
    notes: Vec<String>,
    /// Mappings left out.
    too_large: Vec<Area>,
    /// Threads inside malloc at the hold.
    in_malloc: u32,
}

impl Prepared {
    /// Pages with contents. Without the scan call of Linux 6.7, all of them.
    fn populated(&self, area: &Area, found: &mut Runs) {
        let (start, end) = (area.start, area.end);
        let before = found.len();
        let scanned = match &self.pages {
            // A private file page that nobody touched has contents all the same: those of the file.
            Some(pages) if area.kind != AreaKind::File => {
                pages.find(start, end, PageState::Populated, found).is_ok()
            }
            _ => false,
        };
        if !scanned {
            found.truncate(before);
            found.push((start, end));
        }
    }

    fn areas(&mut self) -> Result<Vec<Area>, Error> {
        let mut all = areas(&self.maps()?, &self.modules);
        self.too_large = all
            .iter()
            .filter(|a| a.end - a.start > MAX_AREA_BYTES)
            .cloned()
            .collect();
        all.retain(|a| a.end - a.start <= MAX_AREA_BYTES);
        Ok(all)
    }

    fn maps(&self) -> Result<Vec<Mapping>, Error> {
        Ok(mappings(self.pid)?)
    }

    /// Holds all threads, none of them inside malloc if possible: the heap is whole then. A thread
    /// that is inside runs on by itself until it is out; it is never long.
    fn hold(&mut self) -> Result<AllHeld, Error> {
        let code = self.modules.iter().find(|m| m.glibc_minor.is_some());
        let code = code.map_or((0, 0), |m| m.malloc_code);
        let mut held = hold_all(self.pid)?;
        let mut step = SETTLE_STEP;
        loop {
            let inside: Vec<i32> = held
                .threads()
                .filter(|(_, r, _)| is_inside(self.pid, r, code))
                .map(|(tid, ..)| tid)
                .collect();
            self.in_malloc = inside.len() as u32;
            if inside.is_empty() || held.held_for() > SETTLE_LIMIT {
                return Ok(held);
            }
            held.let_run(&inside, step)?;
            step = (step * 2).min(SETTLE_STEP_MAX);
        }
    }

    fn finish(mut self, method: Method, shot: Shot, prepare: Duration) -> Captured {
        let mut classes = BTreeMap::new();
        for image in &self.images {
            vtable_names(image, &mut classes);
        }
        if self.in_malloc > 0 {
            self.notes.push(format!(
                "{} threads were inside malloc: what they were changing may look damaged",
                self.in_malloc
            ));
        }
        for area in &self.too_large {
            self.notes.push(format!(
                "{} {:#x}-{:#x} is too large to be searched: what only it points to looks leaked",
                area.name, area.start, area.end
            ));
        }
        let meta = Meta {
            pid: self.pid,
            method,
            held_ms: shot.held.as_secs_f64() * 1e3,
            prepare_held_ms: prepare.as_secs_f64() * 1e3,
            taken_ms: self.begin.elapsed().as_secs_f64() * 1e3,
            held_bytes: shot.held_bytes,
            in_malloc: self.in_malloc,
            notes: self.notes,
            threads: shot.threads,
            areas: shot.areas,
            modules: self.modules,
            classes,
        };
        Captured {
            snapshot: Snapshot {
                meta,
                regions: shot.regions,
            },
            images: self.images,
        }
    }
}

/// What a method brings back.
struct Shot {
    threads: Vec<ThreadState>,
    areas: Vec<Area>,
    regions: Vec<Region>,
    held: Duration,
    held_bytes: u64,
}

/// Whether a thread is in the middle of malloc or free: by its program counter, or because it is in
/// a system call that those make or was interrupted in something called from there.
fn is_inside(pid: i32, registers: &Registers, code: (u64, u64)) -> bool {
    let is_code = |w: u64| w >= code.0 && w < code.1;
    if is_code(registers.rip) {
        return true;
    }
    if registers.orig_rax as i64 >= 0 && !MALLOC_CALLS.contains(&registers.orig_rax) {
        return false;
    }
    let mut stack = [0u8; STACK_WORDS * 8];
    let remote = [RemoteIoVec {
        base: registers.rsp as usize,
        len: stack.len(),
    }];
    let mut local = [IoSliceMut::new(&mut stack)];
    let read = process_vm_readv(Pid::from_raw(pid), &mut local, &remote).unwrap_or(0);
    words(&stack[..read]).any(is_code)
}

/// Takes a snapshot of `pid`: by the method asked for, else by one that works, with a note why.
pub fn capture(pid: i32, method: Method) -> Result<Captured, Error> {
    let begin = Instant::now();
    let maps = mappings(pid)?;
    let images = modules(pid, &maps, &mut HashMap::new())?;
    let mut prepared = Prepared {
        pid,
        begin,
        modules: images.iter().map(module_info).collect(),
        images,
        pages: PageScan::open(pid).ok(),
        notes: Vec::new(),
        too_large: Vec::new(),
        in_malloc: 0,
    };
    if method == Method::Precopy {
        match WriteWatch::start(pid) {
            Ok(watch) => {
                let prepare = watch.held_for();
                let shot = precopy(&mut prepared, &watch)?;
                drop(watch);
                return Ok(prepared.finish(Method::Precopy, shot, prepare));
            }
            Err(memhook_inject::Error::TargetGone { pid }) => {
                return Err(memhook_inject::Error::TargetGone { pid }.into());
            }
            Err(error) => prepared
                .notes
                .push(format!("no precopy, all threads held instead: {error}")),
        }
    }
    let shot = stop(&mut prepared)?;
    Ok(prepared.finish(Method::Stop, shot, Duration::ZERO))
}

/// Takes a snapshot of a process whose threads all stand still already: id, general registers and
/// extended state of each. `images`: its modules. Names of classes are not looked up.
pub fn capture_standing<'a>(
    pid: i32,
    images: Vec<ModuleImage>,
    threads: impl Iterator<Item = (i32, &'a Registers, &'a [u8])>,
) -> Result<Captured, Error> {
    let mut prepared = Prepared {
        pid,
        begin: Instant::now(),
        modules: images.iter().map(module_info).collect(),
        images: Vec::new(),
        pages: PageScan::open(pid).ok(),
        notes: Vec::new(),
        too_large: Vec::new(),
        in_malloc: 0,
    };
    let code = prepared.modules.iter().find(|m| m.glibc_minor.is_some());
    let code = code.map_or((0, 0), |m| m.malloc_code);
    let threads: Vec<_> = threads.collect();
    let inside = threads.iter().filter(|t| is_inside(pid, t.1, code));
    prepared.in_malloc = inside.count() as u32;
    let (areas, regions, held_bytes) = copy_all(&mut prepared)?;
    let shot = Shot {
        threads: thread_states(threads.into_iter()),
        areas,
        regions,
        held: prepared.begin.elapsed(),
        held_bytes,
    };
    let mut captured = prepared.finish(Method::Stop, shot, Duration::ZERO);
    captured.images = images;
    Ok(captured)
}

fn thread_states<'a>(
    threads: impl Iterator<Item = (i32, &'a Registers, &'a [u8])>,
) -> Vec<ThreadState> {
    threads
        .map(|(tid, r, extended)| {
            let mut all = vec![
                r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11,
                r.r12, r.r13, r.r14, r.r15, r.orig_rax, r.fs_base, r.gs_base,
            ];
            all.extend(words(extended));
            all.retain(|&word| word >= 4096);
            ThreadState {
                tid,
                rsp: r.rsp,
                rip: r.rip,
                fs_base: r.fs_base,
                words: all,
            }
        })
        .collect()
}

/// Everything at once, of a process that stands still; the areas, their bytes, and how many.
fn copy_all(prepared: &mut Prepared) -> Result<(Vec<Area>, Vec<Region>, u64), Error> {
    let areas = prepared.areas()?;
    let mut regions = copy::regions_for(&areas);
    let mut runs = Runs::new();
    for area in &areas {
        prepared.populated(area, &mut runs);
    }
    copy::copy_into(prepared.pid, &runs, &mut regions);
    Ok((areas, regions, copy::run_bytes(&runs)))
}

fn stop(prepared: &mut Prepared) -> Result<Shot, Error> {
    let held = prepared.hold()?;
    let (areas, regions, held_bytes) = copy_all(prepared)?;
    let threads = thread_states(held.threads());
    Ok(Shot {
        threads,
        areas,
        held: held.release(),
        held_bytes,
        regions,
    })
}

fn precopy(prepared: &mut Prepared, watch: &WriteWatch) -> Result<Shot, Error> {
    let pid = prepared.pid;
    let areas = prepared.areas()?;
    let mut watched = Vec::new();
    let mut runs = Runs::new();
    for area in &areas {
        let can = matches!(
            area.kind,
            AreaKind::Brk | AreaKind::Stack | AreaKind::Anonymous
        );
        let count = runs.len();
        // The first round gives everything there is.
        let armed = can
            && watch.add(area.start, area.end).is_ok()
            && watch.written(area.start, area.end, &mut runs).is_ok();
        if !armed {
            runs.truncate(count);
        }
        if armed {
            watched.push(area.clone());
        }
    }
    let mut regions = copy::regions_for(&areas);
    copy::copy_into(pid, &runs, &mut regions);
    let mut before = copy::run_bytes(&runs);
    for _ in 0..ROUNDS {
        let mut runs = Runs::new();
        for area in &watched {
            // Fails where the target has unmapped it meanwhile.
            let _ = watch.written(area.start, area.end, &mut runs);
        }
        let bytes = copy::run_bytes(&runs);
        copy::copy_into(pid, &runs, &mut regions);
        if bytes < SMALL_BYTES || bytes * 2 > before {
            break;
        }
        before = bytes;
    }
    let held = prepared.hold()?;
    let areas = prepared.areas()?;
    let mut runs = Runs::new();
    for area in &areas {
        let count = runs.len();
        if watch.written(area.start, area.end, &mut runs).is_err() {
            runs.truncate(count);
            prepared.populated(area, &mut runs);
        }
    }
    let patch = Patch::read(pid, runs);
    let threads = thread_states(held.threads());
    let held = held.release();
    let mut regions = copy::relaid(regions, &areas);
    patch.apply(&mut regions);
    Ok(Shot {
        threads,
        areas,
        regions,
        held,
        held_bytes: patch.len(),
    })
}
