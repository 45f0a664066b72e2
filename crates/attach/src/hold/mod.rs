//! Where threads of the target may be held, and what is done to its code while all of them are.

pub(crate) mod code_exchanges;
mod musl_sleepers;
pub(crate) mod reach;
mod safe_places;
pub(crate) mod safe_point;
