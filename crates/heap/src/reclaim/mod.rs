//! Gives leaked blocks of a live process back to its allocator.

mod callbacks;
mod candidates;
pub(crate) mod choose;
mod hold_time;
mod look;
mod refusal;
mod release;
mod unchanged;
mod verdict;

pub use candidates::{Candidates, Reclaimer};
pub use choose::refusal;
pub use refusal::Refusal;
pub(crate) use release::exported;
pub use release::{HoldAtSafePoint, Released, foreign_callback};
pub use verdict::Verdict;
