//! Events of a traced process as lines of JSON, for other programs.
//!
//! The thread that takes the events puts them into a [queue](queue) and waits for nobody. Another one, the
//! [writer](writer), names call stacks and writes. Where a reader is slow, the queue fills up, and what finds no room is
//! counted in [records](record) of its own.

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
