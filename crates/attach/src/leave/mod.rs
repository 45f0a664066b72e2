//! Our leftovers in a process before and after an attach (regions, the hook, pads and probes), and
//! their removal from the process and its children.

mod closed_region;
pub(crate) mod guided;
pub(crate) mod inherited;
pub(crate) mod pad_areas;
pub(crate) mod probe_areas;
pub(crate) mod residue;
mod rest;
pub(crate) mod restore;
