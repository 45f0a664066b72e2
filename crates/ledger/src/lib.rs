//! Live blocks, allocation sites, per-frame sums.
