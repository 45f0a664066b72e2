//! Taking a snapshot.

mod allocator_code;
mod areas;
mod copy;
pub(crate) mod core_dump;
mod exit_frames;
pub(crate) mod fork;
pub(crate) mod kernel_words;
pub(crate) mod limits;
mod looking;
pub(crate) mod modules;
mod own_frames;
mod pagemap;
mod pipes;
mod precopy;
mod prepared;
pub(crate) mod residency;
pub(crate) mod settle;
mod shared_pages;
mod shared_segments;
pub(crate) mod sockets;
mod stop;

use crate::arch::native;
use crate::capture::copy::Changes;
use crate::capture::exit_frames::innermost_caller;
use crate::capture::fork::fork;
use crate::capture::limits::Limits;
use crate::capture::looking::look;
use crate::capture::precopy::precopy;
use crate::capture::prepared::Prepared;
use crate::capture::residency::{Look, Residency};
use crate::capture::settle::is_inside;
use crate::capture::stop::{copy_all, stop};
use crate::graph::finder::MarkOptions;
use crate::graph::retained::holding_blocks;
use crate::ranges::Runs;
use crate::snapshot::{Area, CopiedRegion, Method, Snapshot, ThreadState};
use crate::{Error, Types, dissect};
use memhook_inject::{Child, Registers, WriteWatch, may_change};
use memhook_process::{ModuleImage, filter_may_kill, living_thread};
use std::time::Duration;

/// Number of further holds after a hold that was too long.
pub(crate) const HOLDS: usize = 3;

/// A snapshot, and the files of the modules for name lookups.
pub struct Captured {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// The modules with their bytes.
    pub images: Vec<ModuleImage>,
    /// The pages that were resident, if the request asked for them.
    pub residency: Option<Residency>,
}

impl Captured {
    /// Adds the names of all classes in the heap, and of the variables that point to blocks, to the snapshot. The
    /// lookup needs the modules' files, which may be missing on a machine that reads the snapshot later.
    pub fn add_names(&mut self) -> Result<(), Error> {
        let snapshot = &self.snapshot;
        let heap = dissect(snapshot)?;
        let mut types = Types::new(snapshot, &self.images);
        for (_, block) in heap.blocks.iter() {
            if let Some(word) = snapshot.word(block.address) {
                types.class(word);
            }
        }
        let learnt: Vec<_> = types.learnt().collect();
        let variables = holding_blocks(snapshot, &heap, &self.images);
        self.snapshot.meta.classes.extend(learnt);
        self.snapshot.meta.variables = variables;
        Ok(())
    }
}

/// Memory and threads that a method has captured.
pub(crate) struct Shot {
    pub threads: Vec<ThreadState>,
    pub areas: Vec<Area>,
    pub regions: Vec<CopiedRegion>,
    pub held: Duration,
    /// Bytes copied while the threads were held.
    pub held_bytes: u64,
    /// Parts that could not be read.
    pub unread: Runs,
    /// Parts that were read while the threads were running, and that have changed since.
    pub changes: Changes,
}

/// Request for a snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// Capture method. `None` selects, among the methods that work here, the one that holds the threads for the
    /// shortest time.
    pub method: Option<Method>,
    /// Limits on the cost of the snapshot.
    pub limits: Limits,
    /// True to record which pages are in memory.
    pub with_residency: bool,
    /// True to ask each thread, when it runs again, for facts that only the kernel has: its
    /// alternate signal stack, and the word that the kernel clears when the thread ends.
    pub asks_threads: bool,
    /// Options for searching this snapshot, so that it can be compared with the previous one.
    pub search: MarkOptions,
}

impl Request {
    /// Requests a snapshot for a search for unreachable blocks.
    pub fn to_search() -> Request {
        Request {
            asks_threads: true,
            search: MarkOptions::to_report(),
            ..Request::default()
        }
    }
}

/// Takes a snapshot of `pid`. If the requested method does not work, another method is used, and a note says why.
///
/// The work is done in a separate thread. Threads of the process that stop too late can be resumed only by the thread
/// that stopped them, and the work after a snapshot may take long. When the separate thread ends, the kernel resumes
/// all of them (`exit_ptrace` of kernel/ptrace.c).
pub fn capture(pid: i32, request: Request) -> Result<Captured, Error> {
    let bytes = page_bytes();
    if bytes != PAGE_BYTES {
        return Err(Error::LargePages { pid, bytes });
    }
    let mut prepared = Prepared::of(pid, request.limits)?;
    if request.with_residency {
        prepared.look = Look::Takes(Residency::time(prepared.reader)?);
    }
    prepared.asks_threads = request.asks_threads;
    if request.limits.only_looks {
        let (method, shot) = look(&mut prepared)?;
        return Ok(prepared.finish(method, shot, Duration::ZERO));
    }
    std::thread::scope(|scope| {
        let captured = scope.spawn(|| capture_by(prepared, request.method)).join();
        captured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Bytes of a page, in all code of this crate.
const PAGE_BYTES: u64 = 4096;

/// Returns the size of the kernel's pages.
fn page_bytes() -> u64 {
    let bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    bytes.ok().flatten().map_or(0, |bytes| bytes as u64)
}

/// Returns the method to try first if the user names none.
pub fn usual_method(pid: i32) -> Method {
    first_method(pid, living_thread(pid))
}

fn first_method(pid: i32, reader: i32) -> Method {
    match reader != pid || filter_may_kill(reader) {
        true => Method::Stop,
        false => Method::Precopy,
    }
}

fn capture_by(mut prepared: Prepared, method: Option<Method>) -> Result<Captured, Error> {
    let pid = prepared.pid;
    may_change(pid)?;
    let is_filtered = method.is_none() && filter_may_kill(prepared.reader);
    let is_fork_wanted = method == Some(Method::Fork);
    // Once the initial thread has ended, requests that use the process id fail.
    let is_headless = prepared.reader != pid;
    let method = method
        .filter(|_| !is_headless)
        .unwrap_or_else(|| first_method(pid, prepared.reader));
    if is_filtered {
        // A service's seccomp filter usually kills the process on a forbidden system call, and the list of allowed
        // system calls cannot be read.
        prepared.notes.push(
            "all threads held, because a seccomp filter may kill the process for a system call of ours; a filter \
             that only refuses allows precopy or fork"
                .into(),
        );
    }
    if is_headless {
        prepared.notes.push(
            "all threads held, because the initial thread has ended, and the other methods need it"
                .into(),
        );
    }
    if method == Method::Precopy {
        let started = WriteWatch::start(pid).map_err(Error::from);
        let shot = started.and_then(|watch| {
            let shot = precopy(&mut prepared, &watch)?;
            Ok((shot, watch.held_for()))
        });
        match shot {
            Ok((shot, prepare)) => return Ok(prepared.finish(Method::Precopy, shot, prepare)),
            // A fork takes no less of our memory.
            Err(error @ Error::NoRoom { .. }) => return Err(error),
            Err(error) => prepared.fall_back(Method::Precopy, "a fork", error)?,
        }
    }
    // The next write to a huge page that the process shares with a child splits the page
    // (`do_huge_pmd_wp_page` of mm/huge_memory.c), so a fork is made only on request.
    let keeps_huge_pages = !is_fork_wanted && prepared.has_huge_pages();
    if keeps_huge_pages && method != Method::Stop {
        prepared
            .notes
            .push("no fork: it would cost the process its huge pages".into());
    }
    if method != Method::Stop && !keeps_huge_pages {
        match fork(&mut prepared) {
            Ok(shot) => return Ok(prepared.finish(Method::Fork, shot, Duration::ZERO)),
            Err(error) => prepared.fall_back(Method::Fork, "all threads held", error)?,
        }
    }
    match stop(&mut prepared) {
        Ok(shot) => Ok(prepared.finish(Method::Stop, shot, Duration::ZERO)),
        Err(error) => Err(prepared.no_way(error)),
    }
}

/// Takes a snapshot of a process that is ending, with all of its threads stopped at their exit. `images` are its
/// modules. Class names are not looked up.
pub fn capture_ending(
    child: &Child,
    pid: i32,
    images: Vec<ModuleImage>,
) -> Result<Captured, Error> {
    let mut prepared = Prepared::with(pid, images);
    prepared.names_classes = false;
    let threads = child.ending_threads(pid).iter().map(|t| {
        // In a system call, vector registers contain leftovers of the last memcpy: the psABI (3.2.1) makes all of them
        // caller-saved, and libc was called before the system call.
        let is_in_call = native::ends_in_call(&t.registers);
        let extended: &[u8] = if is_in_call { &[] } else { &t.extended };
        (t.tid, &t.registers, extended)
    });
    let malloc = prepared.malloc();
    let inside = threads.clone().filter(|t| is_inside(pid, t.1, &malloc));
    prepared.in_malloc = inside.count() as u32;
    let Some(mut shot) = copy_all(&mut prepared, None)? else {
        return Err(prepared.too_long(prepared.begin.elapsed(), "it was not copied in time".into()));
    };
    shot.threads = thread_states(threads);
    shot.held = prepared.begin.elapsed();
    let mut captured = prepared.finish(Method::Stop, shot, Duration::ZERO);
    let snapshot = &mut captured.snapshot;
    for (index, thread) in child.ending_threads(pid).iter().enumerate() {
        if snapshot.meta.threads[index].is_exiting
            && let Some((rsp, words)) =
                innermost_caller(snapshot, &captured.images, &thread.registers)
        {
            let state = &mut snapshot.meta.threads[index];
            if state.lowest_frame == Some(state.rsp) {
                state.lowest_frame = Some(rsp);
            }
            state.rsp = rsp;
            state.words = words;
            state.words.push(state.fs_base);
        }
    }
    Ok(captured)
}

/// A copy of a process whose initial thread is held by a test, and whose other threads sleep.
#[cfg(test)]
pub(crate) fn stopped(pid: i32, images: &[ModuleImage], registers: &Registers) -> Snapshot {
    let mut prepared = Prepared::with(pid, images.to_vec());
    prepared.names_classes = false;
    let shot = copy_all(&mut prepared, None).expect("it is copied");
    let mut shot = shot.expect("there is no limit");
    shot.threads = thread_states([(pid, registers, &[][..])].into_iter());
    prepared.finish(Method::Stop, shot, Duration::ZERO).snapshot
}

/// The registers of threads.
pub(crate) fn thread_states<'a>(
    threads: impl Iterator<Item = (i32, &'a Registers, &'a [u8])>,
) -> Vec<ThreadState> {
    threads
        .map(|(tid, registers, extended)| native::thread_state(tid, registers, extended))
        .collect()
}
