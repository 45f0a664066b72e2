//! Copies a process that may only be read. Its threads are stopped for the copy, or not stopped at
//! all. The snapshot's notes list everything that the copy therefore lacks.

use crate::Error;
use crate::arch::native;
use crate::capture::copy::Patch;
use crate::capture::prepared::Prepared;
use crate::capture::settle::is_inside;
use crate::capture::stop::{copy_all, speed};
use crate::capture::{HOLDS, Shot, thread_states};
use crate::ranges::{Runs, add_run};
use crate::snapshot::{AreaKind, Method, ThreadState};
use memhook_foreign::size_text;
use memhook_inject::{Error as InjectError, SeenThread, ThreadsSeen, robust_list, see_threads};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::IoSliceMut;
use std::time::{Duration, Instant};

/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(5);
/// Number of bytes at the top of a stack that are read again with the registers. The rest of a
/// larger stack is not read again.
const STACK_BYTES: u64 = 1 << 20;
/// Upper bound on the offset of the list of robust locks in a thread's descriptor (`struct pthread`
/// of glibc's nptl/descr.h, of musl's src/internal/pthread_impl.h).
const DESCRIPTOR_BYTES: usize = 0x600;

/// The first note of every read-only copy.
const READ_ONLY: &str = "read only: nothing was called, written or mapped in the process; the notes below say what \
                         is unknown for that reason";

/// Result of one attempt.
struct Copied {
    /// The copy; `None` if there was none, or if it was late.
    shot: Option<Shot>,
    threads: Vec<ThreadState>,
    held: Duration,
    in_malloc: u32,
    /// Threads that were not stopped and ran during the copy.
    have_run: Vec<i32>,
    not_stopped: Vec<i32>,
}

/// Takes a snapshot by this method.
pub(crate) fn look(prepared: &mut Prepared) -> Result<(Method, Shot), Error> {
    prepared.notes.push(READ_ONLY.into());
    prepared
        .kernel
        .unseen
        .push("values of queued signals".into());
    let needed = speed(prepared)?.time(prepared.populated_bytes);
    if prepared.may_hold(needed)
        && let Some((copied, shot)) = whole(prepared)?
    {
        return Ok(with_notes(prepared, copied, shot));
    }
    let bytes = size_text(prepared.populated_bytes);
    prepared.notes.push(format!(
        "it changed while it was read, because the program kept running: {bytes} cannot be copied within the time \
         for which threads may be held; blocks whose pointers moved meanwhile may look leaked"
    ));
    let Some(mut shot) = copy_all(prepared, None)? else {
        return Err(prepared.too_long(needed, "it was not copied in time".into()));
    };
    for _ in 0..HOLDS {
        if let Some(copied) = once(prepared, Some(&mut shot))? {
            return Ok((Method::Running, with_notes(prepared, copied, shot).1));
        }
    }
    let unseen = "the registers of its threads, which did not stop in time";
    prepared.kernel.unseen.push(unseen.into());
    shot.held = prepared.held_in_vain;
    Ok((Method::Running, shot))
}

/// Copies the memory with all stoppable threads held. Returns the first attempt during which no
/// thread ran.
fn whole(prepared: &mut Prepared) -> Result<Option<(Copied, Shot)>, Error> {
    let mut last = None;
    for attempt in 0..HOLDS {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        let Some(mut copied) = once(prepared, None)? else {
            continue;
        };
        let is_whole = copied.have_run.is_empty() && copied.in_malloc == 0;
        if let Some(shot) = copied.shot.take() {
            last = Some((copied, shot));
            if is_whole {
                break;
            }
        }
    }
    Ok(last)
}

/// Copies all memory while the threads are stopped, or, over an `earlier` copy, only the stacks.
/// Returns `None` if a thread did not stop within the time for which the other threads may be held.
fn once(prepared: &mut Prepared, earlier: Option<&mut Shot>) -> Result<Option<Copied>, Error> {
    let (pid, limit) = (prepared.pid, prepared.limits.hold);
    let malloc = prepared.malloc();
    let seen = see_threads(pid, limit, |seen| {
        let until = limit.map(|limit| Instant::now() + limit.saturating_sub(seen.held_for()));
        let shot = match earlier {
            Some(shot) => {
                read_stacks(prepared, seen, shot, until);
                None
            }
            None => copy_all(prepared, until)?,
        };
        let inside = seen.threads.iter();
        let inside = inside.filter(|thread| is_inside(prepared.reader, &thread.registers, &malloc));
        let in_malloc = inside.count() as u32;
        prepared.look(seen.held_for());
        Ok::<_, Error>(Copied {
            shot,
            threads: states(prepared, &seen.threads),
            held: Duration::ZERO,
            in_malloc,
            have_run: seen.have_run(),
            not_stopped: seen.not_stopped().collect(),
        })
    });
    let seen = match seen {
        Err(InjectError::StopsTooLate { .. } | InjectError::DoesNotStop { .. }) => {
            prepared.held_in_vain = prepared.held_in_vain.max(limit.unwrap_or_default());
            return Ok(None);
        }
        seen => seen?,
    };
    for tid in seen.cut_short {
        prepared.notes.push(format!(
            "thread {tid} had just begun a call that a stop interrupts, and the call returned EINTR"
        ));
    }
    let mut copied = seen.result?;
    copied.held = seen.held;
    prepared.held_in_vain = prepared.held_in_vain.max(seen.held);
    Ok(Some(copied))
}

/// Returns the `Shot` of a copy, with notes about what is missing.
fn with_notes(prepared: &mut Prepared, copied: Copied, mut shot: Shot) -> (Method, Shot) {
    shot.threads = copied.threads;
    shot.held = copied.held;
    prepared.in_malloc = copied.in_malloc;
    if !copied.not_stopped.is_empty() {
        prepared.notes.push(format!(
            "not stopped: {}, in calls that a stop would interrupt",
            listed(&copied.not_stopped)
        ));
        let unseen = "the registers of the threads that were not stopped";
        prepared.kernel.unseen.push(unseen.into());
    }
    if copied.have_run.is_empty() {
        return (Method::Stop, shot);
    }
    prepared.notes.push(format!(
        "it changed while it was read: {} ran; blocks whose pointers moved meanwhile may look leaked",
        listed(&copied.have_run)
    ));
    (Method::Running, shot)
}

/// Lists thread ids as text. If there are many, lists only the first ones.
fn listed(threads: &[i32]) -> String {
    const SHOWN: usize = 4;
    let ids: Vec<String> = threads.iter().take(SHOWN).map(i32::to_string).collect();
    let more = match threads.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let word = if threads.len() == 1 {
        "thread"
    } else {
        "threads"
    };
    format!("{word} {}{more}", ids.join(", "))
}

/// Reads the stacks of the threads again, as far as the time allows.
fn read_stacks(prepared: &Prepared, seen: &ThreadsSeen, shot: &mut Shot, until: Option<Instant>) {
    let mut stacks = Runs::new();
    let mut pointers: Vec<u64> = seen
        .threads
        .iter()
        .map(|t| native::stack_pointer(&t.registers))
        .collect();
    pointers.sort_unstable();
    for rsp in pointers {
        let area = shot.areas.iter().find(|a| (a.start..a.end).contains(&rsp));
        let Some(area) = area.filter(|area| area.kind != AreaKind::File) else {
            continue;
        };
        let start = (rsp & !4095).max(stacks.last().map_or(0, |last| last.end));
        let end = area.end.min(start.saturating_add(STACK_BYTES));
        let part = crate::snapshot::Area {
            start,
            end: end.max(start),
            ..area.clone()
        };
        let mut found = Runs::new();
        prepared.populated(&part, &mut found);
        for run in found {
            add_run(&mut stacks, run);
        }
    }
    let mut patch = Patch::with_room(0);
    // Stacks that cannot be read keep their old contents.
    if patch.read(prepared.reader, &stacks, &mut Runs::new(), until) {
        patch.apply(&mut shot.regions);
    }
    shot.held_bytes = patch.len();
}

fn states(prepared: &Prepared, threads: &[SeenThread]) -> Vec<ThreadState> {
    let mut states = thread_states(
        threads
            .iter()
            .map(|thread| (thread.tid, &thread.registers, thread.extended.as_slice())),
    );
    let read = |from: u64, into: &mut [u8]| read(prepared.reader, from, into);
    for (state, thread) in states.iter_mut().zip(threads) {
        state.is_in_call = native::system_call(&thread.registers, read).is_some();
        if !thread.is_stopped {
            // Frames cannot be followed without the other registers.
            state.registers = None;
            state.fs_base = thread_pointer(prepared, thread.tid).unwrap_or(0);
            state.words.push(state.fs_base);
        }
    }
    states
}

/// Returns the thread pointer of a thread that is not stopped. The kernel knows the thread's list
/// of robust locks, which is in its descriptor.
fn thread_pointer(prepared: &Prepared, tid: i32) -> Option<u64> {
    let read = |from: u64, into: &mut [u8]| read(prepared.reader, from, into) == into.len();
    native::thread_pointer_near(robust_list(tid)?, DESCRIPTOR_BYTES, read, &prepared.images)
}

/// Reads memory of the process, and returns how much was read.
fn read(reader: i32, from: u64, into: &mut [u8]) -> usize {
    let remote = [RemoteIoVec {
        base: from as usize,
        len: into.len(),
    }];
    let local = &mut [IoSliceMut::new(into)];
    process_vm_readv(Pid::from_raw(reader), local, &remote).unwrap_or(0)
}
