//! Which blocks of a live process are not touched, though they are reachable: evidence, what to look at next
//! within a budget, and estimates.
//!
//! The parts that decide and estimate are pure: [`Controller`], [`stale_share`], [`Census`]. What asks the
//! kernel is [`Watcher`].

mod controller;
mod pages;
mod random;
#[cfg(test)]
mod simulator;
mod spending;
mod survival;

pub use controller::{Controller, Costs, PagePlan, Policy, Settings};
pub use pages::{PAGE_BYTES, Pages, THRESHOLDS_MS, Writes};
pub use random::Random;
pub use survival::{Share, Watched, stale_share};
