//! Events of a traced process as lines of JSON, for other programs.
//!
//! The thread that takes the events puts them into a [queue](queue) and never waits. Another
//! thread, the [writer](writer), resolves the symbols of call stacks and writes the lines. If the
//! reader is slow, the queue fills up. Separate [records](record) count the events that did not
//! fit.

mod queue;
mod record;
mod tap;
mod writer;

pub use queue::EventQueue;
pub use record::{EventsBegin, EventsEnd};
pub use tap::EventTap;
pub use writer::{EventSource, EventsWritten, write_events};

#[cfg(test)]
mod tests;
