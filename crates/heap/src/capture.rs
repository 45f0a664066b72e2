//! Taking a snapshot.

use crate::Error;
use crate::areas::areas;
use crate::copy::{self, Runs};
use crate::fork::fork;
use crate::kernel_words::{KernelWords, kernel_words};
use crate::modules::{module_info, vtable_names};
use crate::precopy::precopy;
use crate::settle::{hold_settled, is_inside};
use crate::snapshot::{
    Area, AreaKind, Meta, Method, ModuleInfo, Region, Snapshot, ThreadState, words,
};
use memhook_inject::{AllHeld, PageScan, PageState, Registers, WriteWatch, memory_sharers};
use memhook_process::{ModuleImage, filter_may_kill, mappings, modules};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// A snapshot, and the files of the modules for looking up names.
pub struct Captured {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// The modules with their bytes.
    pub images: Vec<ModuleImage>,
}

/// What is known of the target before any thread is held.
pub(crate) struct Prepared {
    pub pid: i32,
    begin: Instant,
    images: Vec<ModuleImage>,
    modules: Vec<ModuleInfo>,
    pub pages: Option<PageScan>,
    kernel: KernelWords,
    pub notes: Vec<String>,
    /// Mappings left out.
    unsearched: Vec<Area>,
    /// Threads inside malloc at the hold.
    in_malloc: u32,
}

impl Prepared {
    fn of(pid: i32) -> Result<Prepared, Error> {
        let begin = Instant::now();
        let images = modules(pid, &mappings(pid)?, &mut HashMap::new())?;
        Ok(Prepared {
            begin,
            ..Prepared::with(pid, images)
        })
    }

    fn with(pid: i32, images: Vec<ModuleImage>) -> Prepared {
        Prepared {
            pid,
            begin: Instant::now(),
            modules: images.iter().map(module_info).collect(),
            images,
            pages: PageScan::open(pid).ok(),
            // Before and after the hold: an entry that is there at the hold is in one of the two,
            // or comes and goes meanwhile.
            kernel: kernel_words(pid),
            notes: Vec::new(),
            unsearched: Vec::new(),
            in_malloc: 0,
        }
    }

    fn malloc_code(&self) -> (u64, u64) {
        let libc = self.modules.iter().find(|m| m.glibc_minor.is_some());
        libc.map_or((0, 0), |m| m.malloc_code)
    }

    /// Says why another method is taken; an error if none can help.
    fn fall_back(
        &mut self,
        method: &str,
        instead: &str,
        error: memhook_inject::Error,
    ) -> Result<(), Error> {
        if let memhook_inject::Error::TargetGone { .. } = error {
            return Err(error.into());
        }
        self.notes
            .push(format!("no {method}, {instead} instead: {error}"));
        Ok(())
    }

    /// Pages with contents. Without the scan call of Linux 6.7, all of them.
    pub fn populated(&self, area: &Area, found: &mut Runs) {
        let (start, end) = (area.start, area.end);
        let before = found.len();
        let scanned = match &self.pages {
            // A file page that nobody touched has contents all the same: those of the file.
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

    /// The mappings to be copied, as they are now.
    pub fn areas(&mut self) -> Result<Vec<Area>, Error> {
        let maps = mappings(self.pid)?;
        let (areas, unsearched) = areas(self.pid, &maps, &self.modules, self.pages.as_ref());
        self.unsearched = unsearched;
        Ok(areas)
    }

    /// Holds all threads, outside malloc if possible.
    pub fn hold(&mut self) -> Result<AllHeld, Error> {
        let (held, in_malloc) = hold_settled(self.pid, self.malloc_code())?;
        self.in_malloc = in_malloc;
        self.kernel.words.extend(held.queued_values());
        Ok(held)
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
        let after = kernel_words(self.pid);
        self.kernel.words.extend(after.words);
        self.kernel.unseen.extend(after.unseen);
        let mut unsearched: Vec<String> = self.unsearched.iter().map(describe).collect();
        unsearched.extend(
            shot.unread
                .iter()
                .map(|(start, end)| format!("memory at {start:#x}-{end:#x}, which can't be read")),
        );
        self.kernel.unseen.sort_unstable();
        self.kernel.unseen.dedup();
        unsearched.extend(self.kernel.unseen.iter().map(|&what| what.to_owned()));
        let sharers = memory_sharers(self.pid);
        unsearched.extend(
            sharers
                .iter()
                .map(|other| format!("process {other}, which runs in the same memory")),
        );
        self.notes.extend(
            unsearched
                .iter()
                .map(|what| format!("not searched: {what}; what only it points to looks leaked")),
        );
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
            kernel_words: self.kernel.words,
            unsearched,
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

fn describe(area: &Area) -> String {
    let name = if area.name.is_empty() {
        "memory"
    } else {
        &area.name
    };
    format!("{name} at {:#x}-{:#x}", area.start, area.end)
}

/// What a method brings back.
pub(crate) struct Shot {
    pub threads: Vec<ThreadState>,
    pub areas: Vec<Area>,
    pub regions: Vec<Region>,
    pub held: Duration,
    /// Bytes copied while the threads were held.
    pub held_bytes: u64,
    /// What could not be read.
    pub unread: Runs,
}

/// Takes a snapshot of `pid`: by the method asked for, else by one that works, with a note why. `None`:
/// the one that holds its threads for the shortest time.
pub fn capture(pid: i32, method: Option<Method>) -> Result<Captured, Error> {
    let mut prepared = Prepared::of(pid)?;
    let is_filtered = method.is_none() && filter_may_kill(pid);
    let method = method.unwrap_or(if is_filtered {
        Method::Stop
    } else {
        Method::Precopy
    });
    if is_filtered {
        // Filters of services kill as a rule, and nothing tells which system calls they know.
        prepared.notes.push(
            "all threads held, as a seccomp filter may end the process for a system call of ours; \
             one that only refuses allows --snapshot precopy or fork"
                .into(),
        );
    }
    if method == Method::Precopy {
        match WriteWatch::start(pid) {
            Ok(watch) => {
                let prepare = watch.held_for();
                let shot = precopy(&mut prepared, &watch)?;
                drop(watch);
                return Ok(prepared.finish(Method::Precopy, shot, prepare));
            }
            Err(error) => prepared.fall_back("precopy", "a fork", error)?,
        }
    }
    if method != Method::Stop {
        match fork(&mut prepared) {
            Ok(shot) => return Ok(prepared.finish(Method::Fork, shot, Duration::ZERO)),
            Err(Error::Inject(error)) => {
                prepared.fall_back("fork", "all threads held", error)?;
            }
            Err(error) => return Err(error),
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
    let mut prepared = Prepared::with(pid, Vec::new());
    prepared.modules = images.iter().map(module_info).collect();
    let threads: Vec<_> = threads.collect();
    let code = prepared.malloc_code();
    let inside = threads.iter().filter(|t| is_inside(pid, t.1, code));
    prepared.in_malloc = inside.count() as u32;
    let mut shot = copy_all(&mut prepared)?;
    shot.threads = thread_states(threads.into_iter());
    shot.held = prepared.begin.elapsed();
    let mut captured = prepared.finish(Method::Stop, shot, Duration::ZERO);
    captured.images = images;
    Ok(captured)
}

/// The registers of threads.
pub(crate) fn thread_states<'a>(
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

/// The memory of a process that stands still, all at once.
fn copy_all(prepared: &mut Prepared) -> Result<Shot, Error> {
    let areas = prepared.areas()?;
    let mut regions = copy::regions_for(&areas);
    let mut runs = Runs::new();
    for area in &areas {
        prepared.populated(area, &mut runs);
    }
    let mut unread = Runs::new();
    copy::copy_into(prepared.pid, &runs, &mut regions, &mut unread);
    Ok(Shot {
        threads: Vec::new(),
        areas,
        held: Duration::ZERO,
        held_bytes: copy::run_bytes(&runs),
        regions,
        unread,
    })
}

fn stop(prepared: &mut Prepared) -> Result<Shot, Error> {
    let held = prepared.hold()?;
    let mut shot = copy_all(prepared)?;
    shot.threads = thread_states(held.threads());
    shot.held = held.release();
    Ok(shot)
}
