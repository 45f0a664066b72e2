//! Traced process with the results of its events.

use crate::config::TraceConfig;
use crate::drain::consumer::Consumer;
use crate::drain::lookout::Lookout;
use crate::error::Error;
use crate::recording::Recording;
use crate::recording::run_facts::{Facts, Recorded};
use crate::running::ending::Ending;
use crate::running::upkeep::Upkeep;
use crate::session::Session;
use crate::survey::known_files::SharedFiles;
use memhook_ledger::{LiveBlock, LiveWalk, Observer, SiteTotals, SiteWalk};
use std::sync::Arc;
use std::time::Instant;

/// Traced process. Dropping this value detaches from the process.
pub struct Trace<O: Observer = ()> {
    pub(crate) session: Session,
    pub(crate) consumer: Arc<Consumer<O>>,
    pub(crate) upkeep: Upkeep,
    /// Facts for each recording: of the heap, and of the mappings.
    pub(crate) facts: Vec<Facts>,
    /// True if we have detached, or the process has ended or continues untraced.
    pub(crate) has_ended: bool,
    /// See [`Trace::ending`].
    pub(crate) ending: Option<Ending>,
}

impl Trace {
    /// Attaches to a running process. When this function returns, every slot that can be patched is patched.
    ///
    /// # Errors
    /// Fails for a process that cannot be traced, like [`refuse`](crate::refuse), before anything is touched.
    pub fn start(pid: i32, config: TraceConfig) -> Result<Trace, Error> {
        Trace::observed(pid, config, ())
    }
}

impl<O: Observer + Send> Trace<O> {
    /// Like [`Trace::start`], with an observer that sees each block in order, on the thread that drains the events.
    pub fn observed(pid: i32, config: TraceConfig, observer: O) -> Result<Trace<O>, Error> {
        let session = Session::start(pid, &config)?;
        Ok(Trace::of(session, &config, observer))
    }

    /// Like [`Trace::observed`], for one of many processes that share most of their files.
    pub fn observed_sharing(
        pid: i32,
        config: TraceConfig,
        observer: O,
        files: &SharedFiles,
    ) -> Result<Trace<O>, Error> {
        let session = Session::start_sharing(pid, &config, files)?;
        Ok(Trace::of(session, &config, observer))
    }

    pub(crate) fn of(session: Session, config: &TraceConfig, observer: O) -> Trace<O> {
        let region = Arc::clone(session.shared_region());
        Trace {
            upkeep: Upkeep::new(session.pid()),
            consumer: Arc::new(Consumer::since(
                session.found().unwrap_or_else(Instant::now),
                session.pid(),
                region,
                config,
                observer,
            )),
            session,
            facts: Vec::new(),
            has_ended: false,
            ending: None,
        }
    }

    /// The attach.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Lets a lookout, which is shared by many traces, watch the process while it is idle. Call this before
    /// [`Trace::run`].
    pub fn watch_from(&self, lookout: &Lookout) {
        lookout.add(&self.consumer.watched);
    }

    /// Returns how the process ended, if the trace ended with [`crate::End::Gone`].
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Returns the results of the events.
    pub fn consumer(&self) -> &Consumer<O> {
        &self.consumer
    }

    /// Returns the consumer for another thread.
    pub fn shared_consumer(&self) -> Arc<Consumer<O>> {
        Arc::clone(&self.consumer)
    }

    /// Returns the thread with this observer index: its id in the process's namespace, and its name if it still runs.
    pub fn thread(&self, index: u16) -> (u32, String) {
        let tid = self.consumer.lock().ledger.tid_of(index);
        (tid, self.session.thread_name(tid))
    }

    /// Returns the allocated and live sums of each call stack, ordered by its id.
    pub fn sites(&self) -> Vec<SiteTotals> {
        let samples = self.consumer.lock().counts;
        let mut walk = SiteWalk::estimating(&samples);
        self.consumer
            .in_slices(|state| state.ledger.walk_sites(&mut walk));
        walk.into_sites()
    }

    /// Returns all live blocks in no particular order.
    pub fn live_blocks(&self) -> Vec<LiveBlock> {
        let (mut walk, mut blocks) = (LiveWalk::default(), Vec::new());
        self.consumer.in_slices(|state| {
            let ledger = &state.ledger;
            ledger.walk_blocks(&mut walk, |block| blocks.push(block))
        });
        blocks
    }

    /// Records the events. The recording includes the first event if this is called before [`Trace::run`].
    pub fn record(&mut self, recording: Recording) {
        self.facts = recording.begin(&self.session, &self.consumer);
    }

    /// Returns true if events are recorded to a file.
    pub fn is_recorded(&self) -> bool {
        !self.facts.is_empty()
    }

    /// Ends the recordings, if there are any. Call this when all events have been drained. `notes`: facts of the last
    /// report, by name. The first result is the recording of the heap. The second is the recording of the mappings, if
    /// mappings are traced.
    pub fn finish_recordings(&mut self, notes: &[(&str, String)]) -> Vec<Recorded> {
        let (session, consumer) = (&self.session, &self.consumer);
        let finish = |mut facts: Facts| facts.finish(session, consumer, notes);
        self.facts.drain(..).filter_map(finish).collect()
    }
}

/// The detach also happens after a panic in the job: the target must not keep calling wrappers whose events nobody
/// drains.
impl<O: Observer> Drop for Trace<O> {
    fn drop(&mut self) {
        if !self.has_ended {
            // `recover` can restore the rest.
            let _ = self.session.detach();
        }
    }
}
