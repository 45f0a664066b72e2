//! How blocks are used: accesses, scores and staleness.

mod documented;
mod looks;
mod scores;
mod stale;
mod told;
