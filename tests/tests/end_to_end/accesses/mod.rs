//! How blocks are used: accesses, scores and staleness.

mod looks;
mod scores;
mod stale;
mod told;
