#![doc = include_str!("../README.md")]

mod child;
mod comparison;
mod error;
mod operations;
mod page;
mod recorded;
mod threads;
mod truth;
mod variants;
mod whatif;

pub use comparison::{Comparison, Recommendation, ReplayRow, Truth};
pub use error::Error;
pub use variants::Variant;
pub use whatif::{WhatIf, what_if};
