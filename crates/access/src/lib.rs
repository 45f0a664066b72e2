//! Finds blocks of a live process that are reachable but not touched: collects evidence, chooses
//! what to watch next within a budget, and computes estimates.
//!
//! The modules that decide and estimate are pure: [`Controller`], [`answer()`] and [`Census`]. Only
//! [`Watcher`] calls the kernel.

// A list of memory areas often has a single range.
#![allow(clippy::single_range_in_vec_init)]

#[cfg(test)]
mod adversary;
mod ages;
mod answer;
#[cfg(target_arch = "x86_64")]
mod birth_looks;
#[cfg(test)]
mod classes;
#[cfg(target_arch = "x86_64")]
mod clearing;
#[cfg(target_arch = "x86_64")]
mod compared;
mod controller;
#[cfg(target_arch = "x86_64")]
mod earlier;
mod error;
#[cfg(target_arch = "x86_64")]
mod lock_slices;
mod looks;
#[cfg(test)]
mod many_sites;
#[cfg(target_arch = "x86_64")]
mod marked_pages;
#[cfg(target_arch = "x86_64")]
mod measure;
#[cfg(target_arch = "x86_64")]
mod next_accesses;
#[cfg(target_arch = "x86_64")]
mod page_accesses;
mod page_watch;
mod pages;
mod random;
#[cfg(test)]
mod simulator;
mod sites;
mod spending;
mod survival;
mod switches;
#[cfg(target_arch = "x86_64")]
mod watched_threads;
#[cfg(target_arch = "x86_64")]
mod watcher;
#[cfg(target_arch = "x86_64")]
mod word_watch;

pub use ages::{AGES_MS, AgeHistory, AgePoint};
pub use answer::{Evidence, SiteAnswer, State, answer};
#[cfg(target_arch = "x86_64")]
pub use birth_looks::{BirthLooks, SeenLook, SeenLooks, SeenWord};
#[cfg(target_arch = "x86_64")]
pub use compared::{Compared, Contents};
pub use controller::{Controller, Costs, PagePlan, Settings};
#[cfg(target_arch = "x86_64")]
pub use earlier::{EarlierBlocks, Kind};
pub use error::Error;
pub use looks::{Look, Looks};
#[cfg(target_arch = "x86_64")]
pub use next_accesses::NextAccesses;
pub use page_accesses::PageAccesses;
pub use pages::{PAGE_BYTES, Pages, THRESHOLDS_MS, Writes};
pub use random::Random;
pub use sites::{Census, LiveBlock, Part, Site, SiteBlocks, Stratum};
pub use survival::{Share, Watched};
#[cfg(target_arch = "x86_64")]
pub use watcher::{SeenAccess, Watcher, usual_duration};
