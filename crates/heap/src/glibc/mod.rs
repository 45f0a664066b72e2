//! The heap of glibc's malloc, dissected: arenas, chunks, free lists, mapped chunks.

pub(crate) mod arenas;
pub(crate) mod dissect;
pub(crate) mod free_lists;
pub(crate) mod given_out;
pub(crate) mod layout;
pub(crate) mod live;
pub(crate) mod mmapped;
pub(crate) mod walk;
