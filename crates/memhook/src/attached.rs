//! A process that a profiler is attached to.

use crate::block::{BacktraceId, Block, ThreadId, WatchId};
use crate::error::{Error, in_words};
use crate::follower::{Ask, Course, Follower};
use crate::heap::{Heap, Told, panic_text};
use crate::names::{Backtrace, Frame, Names};
use crate::options::Options;
use crate::profiler::Profiler;
use crate::watches::{Touch, Watch, Watches};
use crossbeam_channel::{Sender, bounded, unbounded};
use memhook_attach::{Consumer, Trace};
use memhook_gate::{Search as Rules, reached};
use memhook_heap::{Request, capture};
use memhook_ledger::LiveWalk;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limit for past events to arrive.
const ARRIVAL: Duration = Duration::from_secs(2);

/// End of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// The library has detached from the process, which continues as before.
    Detached,
    /// The process has ended or executed another program.
    Gone,
    /// A callback panicked, and the library has detached from the process.
    Panicked(String),
    /// The library has detached, but some functions of the process may still lead to the hook, which passes calls
    /// through.
    NotRestored {
        /// Reason of the failure.
        why: String,
    },
}

/// Sums of a trace, and what it missed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Number of allocations, including successful reallocations.
    pub allocations: u64,
    /// Number of requested bytes.
    pub allocated_bytes: u64,
    /// Number of releases, including releases of blocks from before the attach.
    pub frees: u64,
    /// Number of live blocks.
    pub live_blocks: u64,
    /// Number of live bytes.
    pub live_bytes: u64,
    /// Number of lost events.
    pub lost: u64,
    /// Number of libraries that the process opened and used before they were traced.
    pub unwatched_libraries: u64,
    /// Number of times that the process ran untraced.
    pub gaps: u64,
    /// True if every event was passed to a callback: nothing was lost, and the memory limit was not reached.
    pub is_complete: bool,
    /// Notices for the user of a profiler, in whole sentences.
    pub notices: Vec<String>,
}

/// A thread of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Thread {
    /// Thread id in the PID namespace of the process; 0 if unknown.
    pub tid: u32,
    /// Name of the thread, if it still runs.
    pub name: String,
}

/// Result of a search for unreachable blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Search {
    /// Number of blocks for which [`Profiler::on_unreachable`] was called.
    pub blocks: u64,
    /// Reasons why parts of the memory were not searched.
    pub gaps: Vec<String>,
}

/// Process to which a profiler is attached. Dropping it detaches from the process.
pub struct Attached<P: Profiler> {
    pid: i32,
    consumer: Arc<Consumer<Told<P>>>,
    asks: Option<Sender<Ask<P>>>,
    follower: Option<JoinHandle<()>>,
    course: Arc<Course>,
    names: Mutex<Names>,
}

/// Reports the end of the trace if nothing else has, for example because the follower panicked. Otherwise a caller
/// would wait forever.
struct EndAtLast(Arc<Course>);

impl Drop for EndAtLast {
    fn drop(&mut self) {
        self.0.end(Ending::Gone);
    }
}

/// Attaches a profiler to a running process. After this returns, every allocation is reported.
///
/// # Errors
/// The process cannot be traced, and is unchanged.
pub fn attach<P: Profiler>(pid: i32, options: &Options, profiler: P) -> Result<Attached<P>, Error> {
    let config = options.config().clone();
    let (asks, inbox) = unbounded();
    let (tell, told) = bounded(1);
    let course = Arc::new(Course::default());
    let of_follower = Arc::clone(&course);
    let follow = move || {
        let _end = EndAtLast(Arc::clone(&of_follower));
        let heap = Heap::new(profiler, config.sampled_allocations());
        let (observer, region) = memhook_attach::moves(heap);
        let mut trace = match Trace::observed(pid, config, observer) {
            Ok(trace) => trace,
            Err(error) => return drop(tell.send(Err(error))),
        };
        region.set(trace.session());
        let names = Names::of(trace.session());
        let _ = tell.send(Ok((trace.shared_consumer(), names)));
        Follower::new(inbox, &of_follower).follow(&mut trace);
    };
    let follower = std::thread::Builder::new().name("memhook".into());
    let follower = follower.spawn(follow).map_err(Error::Thread)?;
    match told.recv() {
        Ok(Ok((consumer, names))) => Ok(Attached {
            pid,
            consumer,
            asks: Some(asks),
            follower: Some(follower),
            course,
            names: Mutex::new(names),
        }),
        Ok(Err(error)) => {
            let _ = follower.join();
            Err(Error::of_attach(pid, &error))
        }
        Err(_) => match follower.join() {
            Err(payload) => std::panic::resume_unwind(payload),
            Ok(()) => Err(Error::Over { pid }),
        },
    }
}

impl<P: Profiler> Attached<P> {
    /// Returns the process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the time since the attach, on the clock of blocks and accesses.
    pub fn elapsed(&self) -> Duration {
        self.consumer.elapsed()
    }

    /// Calls `look` with the profiler and the live blocks. No events are processed during the call, and threads of the
    /// process whose buffers are full wait. So `look` must be short, and must not call other methods of this type.
    pub fn with<T>(&self, look: impl FnOnce(&mut Heap<P>) -> T) -> T {
        let mut state = self.consumer.lock();
        look(state.ledger.observer_mut().blocks_mut())
    }

    /// Returns how the trace ended, or `None` if it is still running.
    pub fn ending(&self) -> Option<Ending> {
        self.course.ending()
    }

    /// Waits until the trace has ended, for at most `most`.
    pub fn wait(&self, most: Duration) -> Option<Ending> {
        self.course.wait(most)
    }

    /// Waits until everything that has happened in the process so far has been reported.
    pub fn catch_up(&self) {
        // Events from before the start of a pass have arrived by the end of the next pass.
        let enough = self.consumer.passes() + 3;
        let begin = Instant::now();
        while self.consumer.passes() < enough
            && self.course.ending().is_none()
            && begin.elapsed() < ARRIVAL
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Makes the follower run a closure on the trace.
    fn ask<T: Send + 'static>(
        &self,
        what: impl FnOnce(&Trace<Told<P>>, &mut Watches) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let over = || Error::Over { pid: self.pid };
        let (tell, told) = bounded(1);
        let ask: Ask<P> = Box::new(move |trace, watches| {
            let _ = tell.send(what(trace, watches));
        });
        let asks = self.asks.as_ref().ok_or_else(over)?;
        asks.send(ask).map_err(|_| over())?;
        told.recv().map_err(|_| over())
    }

    /// Calls [`Profiler::on_access`] at the next access to a block. The watch ends with the block.
    ///
    /// A processor has four watchpoints of eight bytes each, so [`Watch::range`] may be only the beginning of the
    /// block. Accesses by the allocator are reported too: `free` writes to the block that it releases.
    ///
    /// # Errors
    /// The machine has no watchpoints, none is free, or the trace is over.
    pub fn watch_block(&self, block: &Block, touch: Touch) -> Result<Watch, Error> {
        self.watch_of(block.range(), touch, Some(*block))
    }

    /// Calls [`Profiler::on_access`] at the next access to some memory, by any thread.
    ///
    /// # Errors
    /// The same as for [`Attached::watch_block`].
    pub fn watch(&self, range: Range<u64>, touch: Touch) -> Result<Watch, Error> {
        self.watch_of(range, touch, None)
    }

    fn watch_of(
        &self,
        range: Range<u64>,
        touch: Touch,
        block: Option<Block>,
    ) -> Result<Watch, Error> {
        let pid = self.pid;
        if self.course.ending().is_some() {
            return Err(Error::Over { pid });
        }
        self.ask(move |_, watches| watches.add(pid, range, touch, block))?
    }

    /// Ends a watch. Returns true if it was still active, which means that there was no access.
    pub fn unwatch(&self, watch: WatchId) -> bool {
        self.ask(move |trace, watches| {
            // Past accesses are reported first.
            watches.turn(trace);
            watches.remove(watch)
        })
        .unwrap_or(false)
    }

    /// Returns the frames of a call stack with their names. Searches files for names, so the first call takes some
    /// time.
    ///
    /// # Errors
    /// The follower has ended.
    pub fn backtrace(&self, id: BacktraceId) -> Result<Backtrace, Error> {
        let found = self.ask(move |trace, _| {
            let session = trace.session();
            let stack = session.region().stack(id.0);
            let is_cut = stack.is_some_and(|stack| stack.truncated);
            (session.stack(id.0), is_cut, session.module_files())
        });
        let (stack, is_cut, modules) = found?;
        let (function, addresses) = stack.unwrap_or_default();
        let mut names = self.names.lock().unwrap_or_else(|e| e.into_inner());
        Ok(names.backtrace(function, &addresses, is_cut, modules))
    }

    /// Returns the names of return addresses, such as [`Access::frames`](crate::Access::frames). There are more frames
    /// than addresses if functions were inlined.
    ///
    /// # Errors
    /// The follower has ended.
    pub fn names(&self, addresses: &[u64]) -> Result<Vec<Frame>, Error> {
        let modules = self.ask(|trace, _| trace.session().module_files())?;
        let mut names = self.names.lock().unwrap_or_else(|e| e.into_inner());
        Ok(names.frames(addresses, modules))
    }

    /// Returns a thread of the process.
    pub fn thread(&self, id: ThreadId) -> Thread {
        let tid = self.consumer.lock().ledger.tid_of(id.0);
        let name = memhook_process::thread_name(self.pid, tid as i32);
        Thread {
            tid,
            name: name.unwrap_or_default(),
        }
    }

    /// Returns the sums of the trace.
    pub fn summary(&self) -> Summary {
        let losses = self.consumer.region().losses();
        let lost = losses.events();
        let gaps = self.consumer.gaps(self.elapsed()).len() as u64;
        let state = self.consumer.lock();
        let totals = state.ledger.totals();
        Summary {
            allocations: totals.allocations,
            allocated_bytes: totals.allocated_bytes,
            frees: totals.releases,
            live_blocks: totals.live_blocks,
            live_bytes: totals.live_bytes,
            lost,
            gaps,
            unwatched_libraries: losses.unwatched_libraries,
            is_complete: lost == 0
                && losses.unwatched_libraries == 0
                && gaps == 0
                && state.ledger.bounded().is_none(),
            notices: self.course.notices(),
        }
    }

    /// Copies the memory of the process, and calls [`Profiler::on_unreachable`] for each live block that no pointer
    /// leads to. The process is stopped for at most 50 ms.
    ///
    /// # Errors
    /// Its memory cannot be copied within these limits, or the trace is over.
    pub fn search_unreachable(&self) -> Result<Search, Error> {
        let pid = self.pid;
        if self.course.ending().is_some() {
            return Err(Error::Over { pid });
        }
        let moment_ns = self.consumer.moment_ns();
        let captured = capture(pid, Request::to_search()).map_err(|error| Error::Search {
            pid,
            why: in_words(&error),
        })?;
        self.catch_up();
        let (mut walk, mut blocks) = (LiveWalk::default(), Vec::new());
        self.consumer.in_slices(|state| {
            state
                .ledger
                .walk_blocks(&mut walk, |block| blocks.push(block))
        });
        let rules = Rules {
            before_ns: Some(moment_ns),
            ..Rules::default()
        };
        let found = reached(&captured.snapshot, blocks.into_iter(), rules);
        let told = self.with(|heap| {
            let addresses = found.unreachable.iter();
            addresses
                .filter(|&&address| heap.unreachable(address, moment_ns))
                .count()
        });
        Ok(Search {
            blocks: told as u64,
            gaps: found.gaps,
        })
    }

    /// Detaches from the process, and waits until that is done. The results remain available.
    pub fn leave(&self) -> Ending {
        self.course.leave();
        // An empty request wakes the follower.
        let _ = self.ask(|_, _| ());
        let ending = self.course.wait(Duration::MAX);
        ending.unwrap_or(Ending::Gone)
    }

    /// Detaches from the process, and returns the profiler.
    ///
    /// # Errors
    /// [`Error::Panicked`] if a callback panicked, and [`Error::Detach`] if functions of the process may still lead to
    /// the hook.
    pub fn detach(mut self) -> Result<P, Error> {
        let pid = self.pid;
        let panic = self.end();
        match self.course.ending() {
            _ if panic.is_some() => Err(Error::Panicked(panic.unwrap_or_default())),
            Some(Ending::Panicked(text)) => Err(Error::Panicked(text)),
            Some(Ending::NotRestored { why }) => Err(Error::Detach { pid, why }),
            _ => {
                let consumer = Arc::clone(&self.consumer);
                drop(self);
                let consumer = Arc::into_inner(consumer).ok_or(Error::Over { pid })?;
                Ok(consumer.into_observer().into_blocks().into_profiler())
            }
        }
    }

    /// Detaches from the process, and waits for the follower. Returns the message if the follower panicked.
    fn end(&mut self) -> Option<String> {
        self.course.leave();
        self.asks = None;
        let payload = self.follower.take()?.join().err()?;
        Some(panic_text(&*payload))
    }
}

impl<P: Profiler> Drop for Attached<P> {
    fn drop(&mut self) {
        self.end();
    }
}
