//! Children that are traced from their first call of an allocator, at no cost for their parent.
//!
//! Regions are mapped in the parent before it forks ([`super::parent`]), and its hook has a list of them. A child
//! inherits both, and its first hooked call claims a region, unmaps the others, which are none of its business, and
//! records into the one (the hook's `birth.hpp`). So children of a child are traced from an attach on. A thread
//! here finds the claims. What it hands on is a session like any other: the child was never stopped.
//!
//! What is left of a child that has ended is taken as well, so one that lives for a few milliseconds is traced
//! as a whole. A child that executes another program soon is let be: that program is a target of its own.
//!
//! When we are killed, what is offered stays offered. A child that claims it fills a ring, takes us for dead as
//! any traced process does, and passes through from then on; a child whose parent has found that out claims
//! nothing. To the next attacher and to `detach` such a child is a process whose attacher was killed.

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

/// Between two looks for claims.
const PAUSE: Duration = Duration::from_millis(2);
/// A child that executes another program has mostly done so by then.
const TIME_TO_EXECUTE: Duration = Duration::from_millis(20);
/// A ring so full (of a thousand) must not wait for that.
const NEARLY_FULL: u64 = 250;
/// A child that takes longer to claim a region was killed meanwhile.
const LONGEST_CLAIM: Duration = Duration::from_secs(1);

/// A child that was found.
pub(super) struct Newborn {
    pub pid: i32,
    pub session: Session,
    /// It had not ended when it was found.
    pub lives: bool,
}

impl Newborn {
    /// Detaches from a child that nobody traces.
    pub fn leave(mut self) {
        if self.lives {
            // What this cannot restore, `detach` can.
            let _ = self.session.detach();
        }
    }
}

/// A region for a child.
struct Spare {
    region: Arc<Region>,
    /// The program of the parent that it is mapped in.
    program: u64,
    /// The gate of that program's hook (avma), which is where it is in every child.
    gate: u64,
    /// Which heritage is written into it.
    generation: u64,
    /// The heritage, with the place of its unwind tables.
    contents: Option<(Arc<Heritage>, UnwindTables)>,
    state: SpareState,
}

enum SpareState {
    /// It waits, or is empty.
    Idle,
    /// A child has claimed it and is looked at.
    Claimed(Child),
    /// Its session has been handed on.
    Handed(Child),
}

#[derive(Clone, Copy)]
struct Child {
    pid: i32,
    /// `None`: it had ended when it was found.
    started: Option<u64>,
    found: Instant,
    /// Nobody knows which process it is, or whether it has ended.
    is_lost: bool,
}

#[derive(Default)]
struct State {
    heritage: Option<Arc<Heritage>>,
    /// Counts the heritages.
    generation: u64,
    /// Counts the programs that the parent has executed.
    program: u64,
    /// The gate of the hook in the present one (avma).
    gate: u64,
    spares: Vec<Spare>,
    /// Children that found no region, as regions had counted them that have had other contents since.
    missed: u64,
    /// Nothing is offered any more.
    is_closed: bool,
}

/// State of births that is shared among the threads that trace a family.
#[derive(Default)]
pub(super) struct Births {
    state: Mutex<State>,
    is_over: AtomicBool,
}

impl Births {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The parent executes a program whose hook has its gate here (avma). What waits in children of the last one
    /// waits no longer, because it would be given the facts of another program.
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

    /// From now on children inherit this.
    pub fn inherit(&self, heritage: Heritage) {
        let mut state = self.lock();
        state.generation += 1;
        state.heritage = Some(Arc::new(heritage));
    }

    /// Returns true if more regions should be mapped in the parent, to have this many waiting at any time.
    pub fn wants_more(&self, waiting: usize, most: usize) -> bool {
        let state = self.lock();
        let idle = |spare: &&Spare| matches!(spare.state, SpareState::Idle);
        !state.is_closed
            && state.heritage.is_some()
            && state.spares.len() < most.min(MOST_SPARES)
            && state.spares.iter().filter(idle).count() < waiting
    }

    /// Takes a region that was just mapped in the parent, and offers it; returns how many bytes it takes before a child
    /// comes. `None`: it cannot be used.
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

    /// No child that is born from now on is traced from its birth.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        for spare in &state.spares {
            // One that a child has taken meanwhile is found by the next look.
            spare.region.withdraw();
        }
    }

    /// Returns true if this process is found here, or is about to be, so that nothing else may attach to it.
    /// `hook_base`: where its parent has the hook.
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
            // Also when its session has been handed on: it may not have been received yet.
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

    /// Children that found no region to claim.
    pub fn missed(&self) -> u64 {
        let state = self.lock();
        let of_head = state.heritage.as_ref().map_or(0, |h| h.births_missed());
        let of_children = state
            .spares
            .iter()
            .map(|spare| spare.region.births_missed());
        state.missed + of_head + of_children.sum::<u64>()
    }

    /// Looks for claims until [`Births::end`].
    fn watch(&self, head: i32, tell: &Sender<Newborn>) {
        while !self.is_over.load(Relaxed) {
            let found = self.lock().look(head);
            for newborn in found {
                // Nobody listens any more: dropping the session would leave the child traced by nobody.
                if let Err(unheard) = tell.send(newborn) {
                    unheard.into_inner().leave();
                }
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl State {
    /// Writes the present heritage into a region that nobody uses, and offers it.
    fn prepare(&mut self, spare: &mut Spare) -> bool {
        let Some(heritage) = self.heritage_for(spare) else {
            return false;
        };
        // What its children have counted would be gone with its contents.
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
        // Nothing will come of what was mapped in an earlier program.
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
                // A child was born below a wrapper, and does not use it.
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
    /// The process with the number `inner` in its own pid namespace.
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
                // The memory of a process that is about to end is gone before the process is.
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

/// Whose region the hook of a process uses; 0 if it has none, as after an execve. `None`: we may not know.
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

/// The thread that looks for claims.
pub(super) struct Watch {
    births: Arc<Births>,
    thread: Option<JoinHandle<()>>,
    pub found: crossbeam_channel::Receiver<Newborn>,
}

impl Watch {
    /// Starts to watch the children of this process. Without a thread nobody is found.
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

    /// Finds no more children. Returns those that nobody has received.
    pub fn end(&mut self) -> Vec<Newborn> {
        self.births.close();
        // Who claimed before that is found by then.
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
