//! What the benchmarks feed the consumer with: streams of events, and a region to put them into.

mod cpu_time;
mod feeder;
mod streams;

pub use cpu_time::timed;
pub use feeder::{Feeder, ToLedger};
pub use streams::{Churn, Pairs, Stream};
