#![doc = include_str!("../README.md")]

mod activity;
mod checkpoint;
mod chunk;
mod collector;
mod columns;
mod decode;
mod encode;
mod error;
mod file;
mod flows;
#[cfg(test)]
mod foreign_bytes;
mod format;
mod model;
mod options;
mod part;
mod pipeline;
mod reader;
mod recent;
mod records;
mod replay;
mod restore;
mod sampling;
mod site_sums;
mod spool;
mod stacks;
mod stretch;
mod summary;
mod summary_activity;
mod timeline;
mod varint;
mod writer;

pub use activity::{Activity, Amount, HeapAt, ReleaseFlow, SiteActivity, SiteChange};
pub use decode::Visitor;
pub use error::Error;
pub use format::VERSION;
pub use options::{Mode, Options};
pub use reader::Recording;
pub use records::{ClockPoint, End, Meta, Module, ThreadName};
pub use replay::{Replay, Window};
pub use sampling::sample_weight;
pub use stacks::{StackView, Stacks};
pub use summary::{HISTOGRAM_BUCKETS, Interval, SiteInterval, bucket_of};
pub use writer::{State, Writer};
