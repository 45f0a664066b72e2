//! Structures and offsets of the shared region.

mod control;
mod described;
mod hook;
mod journal;
mod map;
mod marks;
mod probe;
mod python;
mod rings;
mod shared_struct;

pub use control::*;
pub use described::*;
pub use hook::*;
pub use journal::*;
pub use map::*;
pub use marks::*;
pub use probe::*;
pub use python::*;
pub use rings::*;
pub use shared_struct::{Address, Field, Part};
