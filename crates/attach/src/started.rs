//! One traced process of a program that was started here: the threads that empty its rings and follow its modules,
//! while another one waits for its stops, because ptrace requests must come from that.

use crate::config::TraceConfig;
use crate::consumer::Consumer;
use crate::error::Error;
use crate::session::Session;
use crate::upkeep::Upkeep;
use memhook_process::ModuleImage;
use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Relaxed, Release},
        },
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

/// How often the follower looks around when nobody wakes it.
const TURN: Duration = Duration::from_millis(10);

/// How a trace ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process executes another program.
    Executed,
    /// The process has ended, with this wait status.
    Ended(i32),
    /// It runs on without us.
    LetGo,
}

/// What is done with a trace besides its upkeep.
pub trait Job: Send {
    /// Before the first event is taken.
    fn begin(&mut self, _session: &Session, _consumer: &Consumer<'_>) {}
    /// About every 10 ms.
    fn turn(&mut self, _session: &Session, _consumer: &Consumer<'_>, _modules_changed: bool) {}
    /// All events are taken, and the process has ended or goes on without us.
    fn end(self: Box<Self>, session: &Session, consumer: &Consumer<'_>, end: End);
}

/// What the follower is told while it is at work.
#[derive(Default)]
struct Course {
    is_over: AtomicBool,
    /// No thread of the process runs any more.
    stands_still: AtomicBool,
}

/// A trace under way.
pub struct Started {
    course: Arc<Course>,
    thread: JoinHandle<()>,
    /// The modules as last seen, when the rings are empty and nothing more is taken.
    modules: Receiver<Vec<ModuleImage>>,
    ends: Sender<End>,
}

impl Started {
    /// Takes the session over.
    pub fn new(
        session: Session,
        config: &TraceConfig,
        job: Box<dyn Job>,
    ) -> Result<Started, Error> {
        let course = Arc::new(Course::default());
        let (tell_modules, modules) = channel();
        let (ends, end) = channel();
        let config = config.clone();
        let told = Arc::clone(&course);
        let work = move || follow(session, &config, job, &told, &tell_modules, &end);
        let builder = std::thread::Builder::new().name("follower".into());
        Ok(Started {
            course,
            thread: builder.spawn(work).map_err(Error::Thread)?,
            modules,
            ends,
        })
    }

    /// Takes what is left in the rings; nothing more is taken afterwards. For a process that stands still.
    pub fn stop(&mut self) -> Vec<ModuleImage> {
        self.finish(true);
        self.modules.recv().unwrap_or_default()
    }

    /// Tells how the trace ended.
    pub fn end(&mut self, end: End) {
        self.finish(end != End::LetGo);
        // Nobody hears it only after a panic, which `join` finds.
        let _ = self.ends.send(end);
    }

    fn finish(&self, stands_still: bool) {
        self.course.stands_still.store(stands_still, Relaxed);
        self.course.is_over.store(true, Release);
        self.thread.thread().unpark();
    }

    /// Waits until its job is done.
    pub fn join(self) {
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

fn follow(
    mut session: Session,
    config: &TraceConfig,
    mut job: Box<dyn Job>,
    course: &Course,
    tell_modules: &Sender<Vec<ModuleImage>>,
    end: &Receiver<End>,
) {
    let region = Arc::clone(session.shared_region());
    let consumer = Consumer::new(&region, config);
    job.begin(&session, &consumer);
    consumer.while_draining(|| {
        let mut upkeep = Upkeep::new(session.pid());
        loop {
            // Once more after the end: the last modules explain the last backtraces.
            let is_last = course.is_over.load(Acquire);
            let turn = upkeep.turn(&mut session, &consumer);
            job.turn(&session, &consumer, turn.modules_changed);
            if is_last {
                break;
            }
            std::thread::park_timeout(TURN);
        }
        if course.stands_still.load(Relaxed) {
            consumer.target_stands_still();
        }
    });
    let _ = tell_modules.send(session.modules.clone());
    let end = end.recv().unwrap_or(End::LetGo);
    job.end(&session, &consumer, end);
}
