//! What of ours is in a process before an attach and after it: regions, the hook, pads, and those of probes; how
//! that is put right in it and in its children.

mod closed_region;
pub(crate) mod guided;
pub(crate) mod inherited;
pub(crate) mod pad_areas;
pub(crate) mod probe_areas;
pub(crate) mod residue;
mod rest;
pub(crate) mod restore;
