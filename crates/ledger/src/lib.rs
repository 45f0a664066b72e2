//! Live blocks, allocation sites and sums, from the events of many threads.
//!
//! Feed a [`Ledger`] with consumer passes: [`begin_ring`](Ledger::begin_ring) and [`event`](Ledger::event) for each
//! ring that has events, then [`end_pass`](Ledger::end_pass). Rings may come in any order, and the events of one
//! address may be in any rings: the live set and all sums are exact when all events have arrived (`order` has the rules
//! and the proof).
//!
//! This crate does not read rings, symbols or files. A ledger does no I/O and cannot fail.
//!
//! ```
//! use memhook_abi::{Op, RawEvent};
//! use memhook_ledger::{Ledger, LedgerOptions};
//!
//! let event = |op, sequence| RawEvent::pack(op, 0x1000, sequence, 64, 7).unpack().unwrap();
//! let mut ledger = Ledger::new(LedgerOptions::default());
//! // The release comes first: its ring is emptied earlier.
//! ledger.begin_ring(0, 100);
//! ledger.event(event(Op::Release, 1), 0, 0);
//! ledger.begin_ring(1, 101);
//! ledger.event(event(Op::Allocation, 0), 64, 0);
//! ledger.end_pass(0);
//! assert_eq!(ledger.totals().live_blocks, 0);
//! assert_eq!(ledger.totals().released_bytes, 64);
//! ```

mod batch;
mod bound;
mod call_times;
mod contests;
mod entry;
mod estimate;
mod live_map;
mod mappings;
mod moves;
mod observer;
mod order;
mod partners;
mod queries;
mod reallocs;
mod segment;
mod shards;
mod sites;
mod slices;
mod thinning;
mod totals;

pub use bound::LEAST_BYTES;
pub use call_times::{CallTime, CallTimes, TimeTaken};
pub use estimate::{Estimate, Estimator, MOST_LEVELS, SampledAllocations, standard_error};
pub use mappings::{Discarded, MappingChange, MappingLedger};
pub use moves::{Blocks, Moves};
pub use observer::{BlockOf, CountedSite, Observer, ReleaseBy};
pub use order::Ledger;
pub use shards::{MOST_SHARDS, OpenReallocs, Router};
pub use slices::{LiveWalk, SiteWalk};
pub use totals::{Bounded, LedgerOptions, LiveBlock, SiteLive, SiteTotals, Totals};
