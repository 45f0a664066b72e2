//! The hook itself: the objects that this crate embeds, and how one of them gets into a process.

pub(crate) mod file;
pub(crate) mod listening;
pub(crate) mod loading;
pub(crate) mod object;
pub(crate) mod passage;
pub(crate) mod presence;
#[cfg(test)]
mod stack_use;
