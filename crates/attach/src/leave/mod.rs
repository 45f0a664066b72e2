//! What an attach leaves in a process and in its children, and how that is put right.

pub(crate) mod inherited;
pub(crate) mod residue;
pub(crate) mod restore;
