//! Work with a trace, apart from its upkeep.

use crate::{
    running::upkeep::{Detached, Turn},
    trace::Trace,
};
use crossbeam_channel::Select;
use memhook_ledger::Observer;
use std::{ops::ControlFlow, time::Duration};

/// End of a trace.
#[derive(Debug)]
pub enum End {
    /// The process has ended or executes another program.
    Gone,
    /// The trace has detached from a process that continues.
    Detached(Detached),
    /// A process that memhook-rs started executes another program.
    Executed,
    /// A process that memhook-rs started has ended with this wait status.
    Ended(i32),
    /// A process that memhook-rs started continues untraced.
    LetGo,
}

/// Work with a trace: reports, a verdict, a screen. All methods run on the thread that follows the process. Because a
/// `dlopen` of the process waits for that thread, only `end` may take long.
pub trait Job<O: Observer = ()> {
    /// Called before the first event is taken.
    fn begin(&mut self, _trace: &Trace<O>) {}

    /// Adds channels whose messages end the wait for the next turn. `turn` must receive them.
    fn listen<'a>(&'a self, _select: &mut Select<'a>) {}

    /// Returns the longest time between two turns. A message from the target always ends the wait, so a longer time
    /// delays only the job.
    fn pace(&self) -> Duration {
        Duration::from_millis(10)
    }

    /// Like [`Job::pace`], while the target is quiet and a lookout watches it ([`Trace::watch_from`]). The lookout ends
    /// the wait when there is work.
    fn quiet_pace(&self) -> Duration {
        self.pace()
    }

    /// Returns true if a termination signal to this process, counted by [`memhook_inject::catch_stops`], ends the
    /// trace. Otherwise the job must request the detach.
    fn ends_by_signal(&self) -> bool {
        true
    }

    /// Called every `pace()` and on each message. `Break` requests the detach; a process that memhook-rs started is
    /// followed to its end nevertheless.
    fn turn(&mut self, _trace: &Trace<O>, _turn: &Turn) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Called when the trace is about to end, while the process still runs and is traced.
    fn before_detach(&mut self, _trace: &Trace<O>) {}

    /// Called when all events have been taken.
    fn end(&mut self, _trace: &mut Trace<O>, _end: &End) {}

    /// Receives one line for the user.
    fn notice(&mut self, _text: &str) {}
}

/// Job that does nothing, for callers that only query the ledger afterwards.
impl<O: Observer> Job<O> for () {}
