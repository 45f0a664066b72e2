//! Conditions for holding threads of the target, and exchanges of its code while all threads are held.

pub(crate) mod code_exchanges;
mod musl_sleepers;
pub(crate) mod reach;
mod safe_places;
pub(crate) mod safe_point;
