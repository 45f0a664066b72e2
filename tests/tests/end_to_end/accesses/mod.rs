//! Accesses, scores and staleness of blocks.

mod documented;
mod formulas;
mod growing_mappings;
mod looks;
mod scores;
mod stale;
mod told;
mod userfaults;
mod watching;
