//! Remains of ours in a process before an attach and after it: regions, the hook, pads, and those of probes; and how
//! they are cleared there and in its children.

mod closed_region;
pub(crate) mod guided;
pub(crate) mod inherited;
pub(crate) mod pad_areas;
pub(crate) mod probe_areas;
pub(crate) mod residue;
mod rest;
pub(crate) mod restore;
