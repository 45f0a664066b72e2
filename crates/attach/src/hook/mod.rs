//! The hook itself: the object files that this crate embeds, and how one of them is loaded into a
//! process.

pub(crate) mod file;
pub(crate) mod listening;
pub(crate) mod loading;
pub(crate) mod object;
pub(crate) mod passage;
pub(crate) mod presence;
#[cfg(test)]
mod stack_use;
