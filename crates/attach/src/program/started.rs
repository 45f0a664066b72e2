//! One traced process of a program that was started here. Threads of its own empty its rings and follow its
//! modules, because ptrace requests, and so the wait for its stops, must come from the thread that started it.

use crate::config::TraceConfig;
use crate::error::Error;
use crate::job::{End, Job};
use crate::recording::Recording;
use crate::session::Session;
use crate::trace::Trace;
use crate::turn_loop::Course;
use crossbeam_channel::{Receiver, Sender, bounded};
use memhook_process::ModuleImage;
use std::thread::JoinHandle;

/// A trace under way.
pub struct Started {
    course: Sender<Course>,
    ends: Sender<End>,
    /// The modules as last seen, sent when the rings are empty and nothing more is taken.
    modules: Receiver<Vec<ModuleImage>>,
    thread: JoinHandle<()>,
}

impl Started {
    /// Takes the session over.
    pub fn new(
        session: Session,
        config: &TraceConfig,
        recording: Option<Recording>,
        mut job: Box<dyn Job + Send>,
    ) -> Result<Started, Error> {
        let (course, told) = bounded(1);
        let (tell_modules, modules) = bounded(1);
        let (ends, end) = bounded(1);
        let mut trace = Trace::of(session, config, ());
        if let Some(recording) = recording {
            trace.record(recording);
        }
        let work = move || {
            let left = trace.follow(&told, &mut *job);
            let _ = tell_modules.send(trace.session().modules().to_vec());
            let end = left.unwrap_or_else(|| end.recv().unwrap_or(End::LetGo));
            job.end(&mut trace, &end);
        };
        let builder = std::thread::Builder::new().name("follower".into());
        Ok(Started {
            thread: builder.spawn(work).map_err(Error::Thread)?,
            course,
            ends,
            modules,
        })
    }

    /// Takes what is left in the rings of a process that is stopped; nothing more is taken afterwards. Returns
    /// its modules.
    pub fn stop(&self) -> Vec<ModuleImage> {
        self.tell(Course::StandsStill);
        self.modules.recv().unwrap_or_default()
    }

    /// Tells how the trace ended.
    pub fn end(&self, end: End) {
        self.tell(match end {
            End::LetGo => Course::GoesOn,
            _ => Course::StandsStill,
        });
        // Refused only after a panic, which `join` finds.
        let _ = self.ends.try_send(end);
    }

    /// Has a process that runs on, and that nobody traces by ptrace any more, left as it was.
    pub fn leave(&self) {
        self.tell(Course::Leave);
    }

    fn tell(&self, course: Course) {
        // Refused if it was told already.
        let _ = self.course.try_send(course);
    }

    /// Waits until its job is done.
    pub fn join(self) {
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}
