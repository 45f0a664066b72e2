//! One traced process of a program that memhook-rs started. Separate threads empty its rings and follow its modules.
//! The thread that started the program has no time for that: only this thread may make ptrace requests and wait for
//! stops.

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

/// Running trace.
pub struct Started {
    course: Sender<Course>,
    ends: Sender<End>,
    /// Last known modules, sent once the rings are empty and the drain has ended.
    modules: Receiver<Vec<ModuleImage>>,
    thread: JoinHandle<()>,
}

impl Started {
    /// Takes over the session, and starts the trace's threads.
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

    /// Drains the remaining events of a stopped process, and ends the drain. Returns the process's modules.
    pub fn stop(&self) -> Vec<ModuleImage> {
        self.tell(Course::StandsStill);
        self.modules.recv().unwrap_or_default()
    }

    /// Reports how the trace ended.
    pub fn end(&self, end: End) {
        self.tell(match end {
            End::LetGo => Course::GoesOn,
            _ => Course::StandsStill,
        });
        // This fails only after a panic, which `join` reports.
        let _ = self.ends.try_send(end);
    }

    /// Detaches from a process that is still running and no longer has a ptrace tracer.
    pub fn leave(&self) {
        self.tell(Course::Leave);
    }

    fn tell(&self, course: Course) {
        // This fails if an end was sent already.
        let _ = self.course.try_send(course);
    }

    /// Waits until the job is done.
    pub fn join(self) {
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}
