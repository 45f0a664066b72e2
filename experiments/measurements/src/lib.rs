//! Code for the benchmarks that keep their figures, in addition to the code that is shared with `cargo bench` of the
//! product.
//!
//! [`Figures`] passes the rounds of an [`alternate`] run to criterion. [`Conditions`] stores data that criterion does
//! not store: lost events, the attacher's share of a processor, growth of the target. `cargo experiment bench-report`
//! reads both.
//!
//! The consumer is measured without a target: [`Feeder`] fills a region with a [`Stream`], or with [`Recorded`] events.

mod band_plot;
mod callbacks;
mod conditions;
mod feeder;
mod figures;
mod function_probes;
mod gdbserver;
mod goals;
mod machine;
mod peers;
mod phase;
mod recorded;
mod streams;

pub use band_plot::{Band, band_plot};
pub use callbacks::CALLBACKS;
pub use conditions::{Condition, Conditions};
pub use feeder::{Feeder, ToLedger};
pub use figures::{Figures, Nanoseconds, criterion};
pub use function_probes::{FunctionProbe, Placed, place_many};
pub use gdbserver::{FastTracepoint, in_process_agent};
pub use goals::{GOALS, times_goal};
pub use machine::Machine;
pub use memhook_benches::*;
pub use peers::{Peer, Way, peers};
pub use phase::Phase;
pub use recorded::{Pass, Recorded};
pub use streams::{Churn, Pairs, Stream};
