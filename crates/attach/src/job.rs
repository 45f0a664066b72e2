//! Work done with a trace beside its upkeep.

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
    /// The process has ended, or executes another program.
    Gone,
    /// We have left a process that goes on.
    Detached(Detached),
    /// A process that was started here executes another program.
    Executed,
    /// A process that was started here has ended, with this wait status.
    Ended(i32),
    /// A process that was started here goes on without us.
    LetGo,
}

/// Work done with a trace: reports, a verdict, a screen. All methods are called on the thread that follows the process.
/// A `dlopen` of the process waits for that thread, so none but `end` should take long.
pub trait Job<O: Observer = ()> {
    /// Called before the first event is taken.
    fn begin(&mut self, _trace: &Trace<O>) {}

    /// Adds channels whose messages end the wait for the next turn. They must be received in `turn`.
    fn listen<'a>(&'a self, _select: &mut Select<'a>) {}

    /// The longest time between two turns. A message that the target needs us ends it, whatever it is, so a longer one only
    /// delays what nobody waits for.
    fn pace(&self) -> Duration {
        Duration::from_millis(10)
    }

    /// Like [`Job::pace`], while the target is quiet and somebody else watches it ([`Trace::watch_from`]), who ends the
    /// wait when there is something to do.
    fn quiet_pace(&self) -> Duration {
        self.pace()
    }

    /// Returns true if a signal that asks this process to end, counted by [`memhook_inject::catch_stops`], also ends
    /// the trace. If not, the job has to ask for the detach itself.
    fn ends_by_signal(&self) -> bool {
        true
    }

    /// Called at that pace, and when a message has come. `Break` asks for the detach; a process that was
    /// started here is followed to its end nevertheless.
    fn turn(&mut self, _trace: &Trace<O>, _turn: &Turn) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Called when the end has been decided, while the process still runs and is traced.
    fn before_detach(&mut self, _trace: &Trace<O>) {}

    /// Called when all events have been taken.
    fn end(&mut self, _trace: &mut Trace<O>, _end: &End) {}

    /// Something that the user should be told, in one line.
    fn notice(&mut self, _text: &str) {}
}

/// Does nothing: for those who only query the ledger afterwards.
impl<O: Observer> Job<O> for () {}
