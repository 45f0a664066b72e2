#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

#[cfg(target_arch = "x86_64")]
mod attached;
#[cfg(target_arch = "x86_64")]
mod block;
#[cfg(target_arch = "x86_64")]
mod error;
#[cfg(target_arch = "x86_64")]
mod follower;
#[cfg(target_arch = "x86_64")]
mod heap;
#[cfg(target_arch = "x86_64")]
mod names;
#[cfg(target_arch = "x86_64")]
mod options;
#[cfg(target_arch = "x86_64")]
mod profiler;
#[cfg(target_arch = "x86_64")]
mod watches;

#[cfg(target_arch = "x86_64")]
pub use attached::{Attached, Ending, Search, Summary, Thread, attach};
#[cfg(target_arch = "x86_64")]
pub use block::{Access, BacktraceId, Block, Free, ThreadId, WatchId};
#[cfg(target_arch = "x86_64")]
pub use error::Error;
#[cfg(target_arch = "x86_64")]
pub use heap::Heap;
#[cfg(target_arch = "x86_64")]
pub use names::{Backtrace, Frame};
#[cfg(target_arch = "x86_64")]
pub use options::Options;
#[cfg(target_arch = "x86_64")]
pub use profiler::{Next, Profiler};
#[cfg(target_arch = "x86_64")]
pub use watches::{Touch, Watch};
