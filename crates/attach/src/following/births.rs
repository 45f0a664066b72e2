//! Traces children from their first call of an allocator, at no cost for their parent.
//!
//! Regions are mapped in the parent before it forks ([`super::parent`]), and its hook has a list of them. A child
//! inherits both. Its first hooked call claims a region, unmaps the other regions, and records to the claimed one (the
//! hook's `birth.hpp`). Children of a child are therefore traced only after an attach. A thread here finds the claims,
//! and produces a session as for any attach, except that the child was never stopped.
//!
//! The events of a child that has already ended are taken too, so a child that lives for a few milliseconds is traced
//! completely. A child that soon executes another program is not traced: that program is a separate target.
//!
//! If we are killed, the offered regions stay offered. A child that claims one fills a ring, considers us dead as any
//! traced process does, and then passes calls through. A child whose parent has noticed our death claims nothing. For
//! the next attacher and for `detach`, such a child is a process whose attacher was killed.

use crate::hook::object::hook_at;
use crate::session::{Heritage, Session};
use crate::unwinding::tables::UnwindTables;
use crossbeam_channel::Sender;
use memhook_abi::{GATE_BIRTH_OFFSET, MOST_SPARES, SPARES_BEHIND_GATE, gate_birth};
use memhook_process::{
    RemoteAddress, has_ended, inner_tid, mappings, open_memory, process_ids, read_word,
    thread_start_time,
};
use memhook_stream::{Birth, Region};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two searches for claims.
const PAUSE: Duration = Duration::from_millis(2);
/// Time within which a child that executes another program has usually done so.
const TIME_TO_EXECUTE: Duration = Duration::from_millis(20);
/// Fill level of a ring, in thousandths, that ends the wait for an execve.
const NEARLY_FULL: u64 = 250;
/// Time after which a child with an incomplete claim must have been killed.
const LONGEST_CLAIM: Duration = Duration::from_secs(1);

/// Child that was found.
pub(super) struct Newborn {
    pub pid: i32,
    pub session: Session,
    /// True if it was alive when it was found.
    pub lives: bool,
}

impl Newborn {
    /// Detaches from a child that no job traces.
    pub fn leave(mut self) {
        if self.lives {
            // `detach` can restore the rest.
            let _ = self.session.detach();
        }
    }
}

/// Region for a child.
struct Spare {
    region: Arc<Region>,
    /// Number of the parent's program in which it is mapped.
    program: u64,
    /// Address (avma) of the gate of the hook in the parent's program. It is the same in every child.
    gate: u64,
    /// Generation of the heritage in the region.
    generation: u64,
    /// Heritage with the place of its unwind tables.
    contents: Option<(Arc<Heritage>, UnwindTables)>,
    state: SpareState,
}

enum SpareState {
    /// The region waits for a child, or is empty.
    Idle,
    /// A child has claimed the region and is being examined.
    Claimed(Child),
    /// The child's session has been passed on.
    Handed(Child),
}

#[derive(Clone, Copy)]
struct Child {
    pid: i32,
    /// Start time; `None` if it had ended when it was found.
    started: Option<u64>,
    found: Instant,
    /// True if the process, or its end, cannot be determined.
    is_lost: bool,
}

#[derive(Default)]
struct State {
    heritage: Option<Arc<Heritage>>,
    /// Number of heritages so far.
    generation: u64,
    /// Number of programs that the parent has executed.
    program: u64,
    /// Gate of the hook in the current program (avma).
    gate: u64,
    spares: Vec<Spare>,
    /// Number of children that found no region, summed over regions whose contents have since been replaced.
    missed: u64,
    /// True if no more regions are offered.
    is_closed: bool,
}

/// State of the tracing of children, shared by the threads that trace a family of processes.
#[derive(Default)]
pub(super) struct Births {
    state: Mutex<State>,
    is_over: AtomicBool,
}

impl Births {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Registers a new program of the parent, with the hook's gate at this address (avma). Regions still offered in
    /// children of the previous program are withdrawn, because their contents would describe the new program.
    pub fn begin_program(&self, gate: u64) {
        let mut state = self.lock();
        if let Some(last) = state.heritage.take() {
            state.missed += last.births_missed();
        }
        state.program += 1;
        state.gate = gate;
        for spare in &state.spares {
            spare.region.withdraw();
        }
    }

    /// Sets the heritage of future children.
    pub fn inherit(&self, heritage: Heritage) {
        let mut state = self.lock();
        state.generation += 1;
        state.heritage = Some(Arc::new(heritage));
    }

    /// Returns true if more regions must be mapped in the parent so that `most` regions always wait.
    pub fn wants_more(&self, waiting: usize, most: usize) -> bool {
        let state = self.lock();
        let idle = |spare: &&Spare| matches!(spare.state, SpareState::Idle);
        !state.is_closed
            && state.heritage.is_some()
            && state.spares.len() < most.min(MOST_SPARES)
            && state.spares.iter().filter(idle).count() < waiting
    }

    /// Offers a region that was just mapped in the parent. Returns the number of bytes that it occupies before a child
    /// claims it; `None`: it cannot be used.
    pub fn add(&self, region: Region) -> Option<u64> {
        let mut state = self.lock();
        let mut spare = Spare {
            region: Arc::new(region),
            program: state.program,
            gate: state.gate,
            generation: 0,
            contents: None,
            state: SpareState::Idle,
        };
        let is_ready = state.prepare(&mut spare);
        let bytes = is_ready.then(|| spare.region.memory_granted());
        state.spares.push(spare);
        bytes
    }

    /// Ends the tracing of children from their birth.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        for spare in &state.spares {
            // If a child has just claimed the region, the next search finds it.
            spare.region.withdraw();
        }
    }

    /// Returns true if this search has found the process, or will find it. The caller must then not attach to the
    /// process.
    pub fn cover(&self, pid: i32) -> bool {
        let state = self.lock();
        let gate = state.gate;
        let Some(heritage) = &state.heritage else {
            return false;
        };
        if hook_at(pid, heritage.hook_base()).is_none() {
            return false;
        }
        let word = |offset: u64| read_word(pid, RemoteAddress(gate) + offset).unwrap_or(0);
        match word(GATE_BIRTH_OFFSET) as u32 {
            gate_birth::UNDECIDED => !state.is_closed && word(SPARES_BEHIND_GATE) != 0,
            gate_birth::UNDER_WAY => true,
            // The session may have been passed on without having been received yet.
            gate_birth::DONE => {
                let owner = word(8);
                state
                    .spares
                    .iter()
                    .any(|spare| spare.region.owner() == owner)
            }
            _ => false,
        }
    }

    /// Returns true if no child is being examined.
    pub fn is_quiet(&self) -> bool {
        let state = self.lock();
        let is_idle = |spare: &Spare| match spare.state {
            SpareState::Idle => !matches!(spare.region.birth(), Birth::Taken | Birth::Claimed(_)),
            SpareState::Claimed(_) => false,
            SpareState::Handed(_) => true,
        };
        state.spares.iter().all(is_idle)
    }

    /// Returns the number of children that found no region to claim.
    pub fn missed(&self) -> u64 {
        let state = self.lock();
        let of_head = state.heritage.as_ref().map_or(0, |h| h.births_missed());
        let of_children = state
            .spares
            .iter()
            .map(|spare| spare.region.births_missed());
        state.missed + of_head + of_children.sum::<u64>()
    }

    /// Searches for claims until [`Births::end`].
    fn watch(&self, head: i32, tell: &Sender<Newborn>) {
        while !self.is_over.load(Relaxed) {
            let found = self.lock().look(head);
            for newborn in found {
                // The receiver is gone. Dropping the session would leave the child traced without a job.
                if let Err(unheard) = tell.send(newborn) {
                    unheard.into_inner().leave();
                }
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl State {
    /// Writes the current heritage into an unused region, and offers the region.
    fn prepare(&mut self, spare: &mut Spare) -> bool {
        let Some(heritage) = self.heritage_for(spare) else {
            return false;
        };
        // Otherwise, the count of children would be lost with the region's contents.
        self.missed += spare.region.births_missed();
        let tables = heritage.conceive(&spare.region);
        spare.state = SpareState::Idle;
        spare.generation = self.generation;
        spare.contents = tables.ok().map(|tables| (heritage, tables));
        if spare.contents.is_none() {
            return false;
        }
        spare.region.offer();
        true
    }

    /// Returns the heritage to write into a region.
    fn heritage_for(&self, spare: &Spare) -> Option<Arc<Heritage>> {
        let is_of_present = !self.is_closed && spare.program == self.program;
        self.heritage.clone().filter(|_| is_of_present)
    }

    fn look(&mut self, head: i32) -> Vec<Newborn> {
        let mut found = Vec::new();
        let mut spares = std::mem::take(&mut self.spares);
        for spare in &mut spares {
            self.look_at(spare, head, &mut found);
        }
        // Regions from an earlier program are useless.
        let program = self.program;
        spares.retain(|spare| {
            let is_empty = || matches!(spare.region.birth(), Birth::Closed);
            spare.program == program || !matches!(spare.state, SpareState::Idle) || !is_empty()
        });
        self.spares = spares;
        found
    }

    fn look_at(&mut self, spare: &mut Spare, head: i32, found: &mut Vec<Newborn>) {
        let (now, gate) = (Instant::now(), spare.gate);
        if let SpareState::Idle = spare.state {
            match spare.region.birth() {
                Birth::Claimed(inner) => {
                    let child = Child::new(head, inner, gate, &spare.region, now);
                    spare.state = SpareState::Claimed(child);
                }
                // The parent has other modules by now.
                Birth::Offered
                    if spare.generation != self.generation && spare.region.withdraw() =>
                {
                    self.prepare(spare);
                }
                // The child was born inside a wrapper and does not use the region.
                Birth::Closed if !self.is_closed && spare.contents.is_some() => {
                    self.prepare(spare);
                }
                _ => {}
            }
        }
        match &spare.state {
            SpareState::Claimed(child) => {
                let child = *child;
                let age = now - child.found;
                spare.region.set_clock_ns(age.as_nanos() as u64 + 1);
                match child.fate(gate, &spare.region) {
                    Fate::ExecutesAnother => {
                        spare.state = SpareState::Handed(child);
                    }
                    Fate::Lives
                        if age < TIME_TO_EXECUTE
                            && spare.region.fullest_ring() < NEARLY_FULL
                            && spare.region.module_requests() == 0 => {}
                    fate => {
                        if let Some((heritage, tables)) = spare.contents.take() {
                            let lives = matches!(fate, Fate::Lives);
                            let region = Arc::clone(&spare.region);
                            let session =
                                heritage.session(child.pid, region, tables, child.found, lives);
                            found.push(Newborn {
                                pid: child.pid,
                                session,
                                lives,
                            });
                        }
                        spare.state = SpareState::Handed(child);
                    }
                }
            }
            // The session has ended, and so has the only process that could use the region.
            SpareState::Handed(child)
                if !self.is_closed
                    && !child.is_lost
                    && Arc::strong_count(&spare.region) == 1
                    && !matches!(child.fate(gate, &spare.region), Fate::Lives) =>
            {
                self.prepare(spare);
            }
            _ => {}
        }
    }
}

enum Fate {
    Lives,
    HasEnded,
    ExecutesAnother,
}

impl Child {
    /// Creates the record of the process with the pid `inner` in its own pid namespace.
    fn new(head: i32, inner: u32, gate: u64, region: &Region, found: Instant) -> Child {
        let is_same_namespace = inner_tid(head, head).is_none_or(|of_head| of_head == head as u32);
        let pid = if is_same_namespace {
            (inner != 0).then_some(inner as i32)
        } else {
            process_ids().into_iter().find(|&pid| {
                inner_tid(pid, pid) == Some(inner) && owner_of(pid, gate) == Some(region.owner())
            })
        };
        Child {
            pid: pid.unwrap_or(inner as i32),
            started: pid.and_then(|pid| thread_start_time(pid, pid)),
            found,
            is_lost: pid.is_none(),
        }
    }

    fn fate(&self, gate: u64, region: &Region) -> Fate {
        let is_same = || thread_start_time(self.pid, self.pid) == self.started;
        if self.started.is_none() || has_ended(self.pid) || !is_same() {
            return Fate::HasEnded;
        }
        match owner_of(self.pid, gate) {
            Some(owner) if owner != region.owner() => {
                // When a process ends, its memory disappears before the process itself.
                let is_there = mappings(self.pid).is_ok_and(|maps| !maps.is_empty());
                if is_there {
                    Fate::ExecutesAnother
                } else {
                    Fate::HasEnded
                }
            }
            _ => Fate::Lives,
        }
    }
}

/// Returns the owner number of the region that a process's hook uses; 0 if it has no region, as after an execve.
/// `None`: we may not read it.
fn owner_of(pid: i32, gate: u64) -> Option<u64> {
    match open_memory(pid) {
        Ok(memory) => {
            let mut owner = [0; 8];
            let read = memory.read_exact_at(&mut owner, gate + 8);
            Some(read.map_or(0, |()| u64::from_le_bytes(owner)))
        }
        Err(_) => None,
    }
}

/// Thread that searches for claims.
pub(super) struct Watch {
    births: Arc<Births>,
    thread: Option<JoinHandle<()>>,
    pub found: crossbeam_channel::Receiver<Newborn>,
}

impl Watch {
    /// Starts to watch the children of this process. If the thread cannot be started, no child is found.
    pub fn begin(head: i32) -> Watch {
        let births = Arc::new(Births::default());
        let (tell, found) = crossbeam_channel::unbounded();
        let watching = Arc::clone(&births);
        let builder = std::thread::Builder::new().name("births".into());
        let thread = builder.spawn(move || watching.watch(head, &tell)).ok();
        if thread.is_none() {
            births.close();
        }
        Watch {
            births,
            thread,
            found,
        }
    }

    pub fn births(&self) -> &Arc<Births> {
        &self.births
    }

    /// Ends the search. Returns the children that were not received.
    pub fn end(&mut self) -> Vec<Newborn> {
        self.births.close();
        // Earlier claims have been found by then.
        let begin = Instant::now();
        while self.thread.is_some() && !self.births.is_quiet() && begin.elapsed() < LONGEST_CLAIM {
            std::thread::sleep(PAUSE);
        }
        self.births.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.found.try_iter().collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for newborn in self.end() {
            newborn.leave();
        }
    }
}
