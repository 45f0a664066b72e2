//! The formats of other tools, one file each.

pub(crate) mod flamegraph;
pub(crate) mod folded;
pub(crate) mod heaptrack;
mod heaptrack_events;
pub(crate) mod massif;
pub(crate) mod pprof;
mod pprof_messages;
pub(crate) mod speedscope;
