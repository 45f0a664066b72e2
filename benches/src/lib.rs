//! What the benchmarks feed the consumer with: streams of events, and a region to put them into.

mod feeder;
mod streams;

pub use feeder::{Feeder, ToLedger};
pub use streams::{Churn, Pairs, Stream};
