//! Use of blocks: accesses, scores and staleness.

mod documented;
mod formulas;
mod growing_mappings;
mod looks;
mod scores;
mod stale;
mod told;
mod userfaults;
mod watching;
