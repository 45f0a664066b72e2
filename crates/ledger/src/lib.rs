//! Live blocks with one exact order out of many rings, and what each allocation site holds.
//!
//! Feed it events ring by ring, end passes, ask for totals and sites at any time. It does no I/O and
//! knows no symbols: sites are stack ids.

mod ledger;
mod live_map;
mod order;
mod sites;

pub use ledger::{Ledger, LiveBlock, Totals};
pub use sites::{Site, SiteLive};
