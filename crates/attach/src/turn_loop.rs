//! The loop that follows a traced process from the first event to the last.

use crate::job::{End, Job};
use crate::trace::Trace;
use crossbeam_channel::{Receiver, Select, TryRecvError, never};
use memhook_ledger::Observer;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Messages to the follower of a process that memhook-rs started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// No thread of the process runs any more.
    StandsStill,
    /// The process continues without us, and its threads cannot be reached.
    GoesOn,
    /// The process continues, and must be detached in the same way as any running process.
    Leave,
}

/// Condition that ends the turns.
enum Until<'a> {
    /// The end of the process or of the time, or a request.
    Over { duration: Option<Duration> },
    /// Only a message.
    Told(&'a Receiver<Course>),
}

/// Reason why the turns ended.
enum Over {
    Gone,
    Asked,
    Told(Course),
}

/// Longest wait at the end for threads that were told to stop but are in an uninterruptible sleep.
const LATE_PATIENCE: Duration = Duration::from_secs(2);

impl<O: Observer + Send> Trace<O> {
    /// Follows a running process. Detaches when `duration` is over, the job requests it, or a signal counted by
    /// [`memhook_inject::catch_stops`] arrives. Returns when the job has ended.
    pub fn run(&mut self, duration: Option<Duration>, job: &mut dyn Job<O>) -> End {
        job.begin(self);
        let consumer = Arc::clone(&self.consumer);
        let end = consumer.while_draining(|news| {
            match self.turns(news, &Until::Over { duration }, job) {
                Over::Gone => End::Gone,
                _ => self.leave(job),
            }
        });
        self.has_ended = true;
        self.ending = matches!(end, End::Gone).then(|| self.upkeep.ending());
        self.session.region().give_rings_back();
        job.end(self, &end);
        end
    }

    /// Follows a process that memhook-rs started, until a message about its end or its release arrives. Returns the
    /// result of a detach if a detach was requested.
    pub(crate) fn follow(
        &mut self,
        course: &Receiver<Course>,
        job: &mut dyn Job<O>,
    ) -> Option<End> {
        job.begin(self);
        let consumer = Arc::clone(&self.consumer);
        let left = consumer.while_draining(|news| {
            match self.turns(news, &Until::Told(course), job) {
                Over::Told(Course::StandsStill) => {
                    self.upkeep.last_look(&mut self.session);
                    consumer.target_stands_still();
                }
                Over::Told(Course::Leave) => return Some(self.leave(job)),
                _ => {}
            }
            None
        });
        self.has_ended = true;
        if left.is_some() {
            self.session.region().give_rings_back();
        }
        left
    }

    /// Detaches from a running process.
    fn leave(&mut self, job: &mut dyn Job<O>) -> End {
        tracing::debug!(pid = self.session.pid(), "the trace ends");
        self.upkeep.last_look(&mut self.session);
        job.before_detach(self);
        let detached = self.upkeep.detach(&mut self.session);
        // The report that follows may take long, and only this thread can release threads that stop too late.
        memhook_inject::wait_for_late_threads(LATE_PATIENCE);
        End::Detached(detached)
    }

    /// Returns true if a running process is to be left.
    fn is_over(&self, duration: Option<Duration>, job: &dyn Job<O>) -> bool {
        duration.is_some_and(|duration| self.consumer.elapsed() >= duration)
            || job.ends_by_signal() && memhook_inject::stops() > 0
    }

    /// Returns the time until the next turn without messages.
    fn pause(&self, job: &dyn Job<O>) -> Duration {
        // A thread that stops late stays stopped until a turn releases it.
        let is_quiet = self.consumer.is_asleep()
            && self.upkeep.is_settled()
            && !memhook_inject::has_late_threads();
        if is_quiet {
            // Otherwise each target would have an idle watchdog process.
            memhook_inject::hold_nothing_for_long();
            job.quiet_pace()
        } else {
            job.pace()
        }
    }

    fn turns(&mut self, news: &Receiver<()>, until: &Until<'_>, job: &mut dyn Job<O>) -> Over {
        let nobody = never();
        let course = match until {
            Until::Told(course) => course,
            Until::Over { .. } => &nobody,
        };
        loop {
            let begin = Instant::now();
            // The message is received before the turn, so that one more turn follows the message: the last modules are
            // needed to resolve the last backtraces.
            let told = match course.try_recv() {
                Ok(course) => Some(course),
                Err(TryRecvError::Disconnected) => Some(Course::GoesOn),
                Err(TryRecvError::Empty) => None,
            };
            if told == Some(Course::StandsStill) {
                // A short run may end before the search for generated code was due.
                self.session.look_at_made_code(Duration::MAX);
            }
            let mut turn = self.upkeep.turn(&mut self.session, &self.consumer);
            turn.is_last = match *until {
                Until::Over { duration } => turn.gone || self.is_over(duration, job),
                Until::Told(_) => told.is_some(),
            };
            let facts = self.facts.iter_mut();
            let ended = facts.filter_map(|facts| {
                facts.follow(&self.session, &self.consumer, turn.modules_changed)
            });
            let ended: Vec<String> = ended.collect();
            for notice in turn.notices.iter().chain(&ended) {
                job.notice(notice);
            }
            let flow = job.turn(self, &turn);
            if let Some(course) = told {
                return Over::Told(course);
            }
            if let Until::Over { .. } = until {
                if turn.gone {
                    return Over::Gone;
                }
                if turn.is_last || flow.is_break() {
                    return Over::Asked;
                }
            }
            let mut select = Select::new();
            select.recv(news);
            select.recv(course);
            job.listen(&mut select);
            // The next turn checks everything, regardless of the reason why the wait ended.
            let _ = select.ready_deadline(begin + self.pause(job));
            let _ = news.try_recv();
        }
    }
}
