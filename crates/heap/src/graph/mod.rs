//! Pointers to blocks of a heap: marking, leaks, reasons why a block is alive, and types of blocks.

#[cfg(test)]
mod adjacency_tests;
pub(crate) mod census;
pub(crate) mod declared;
pub(crate) mod finder;
mod foreign_areas;
mod foreign_blocks;
pub(crate) mod leaks;
pub(crate) mod mark;
mod nested_blocks;
pub(crate) mod retained;
pub(crate) mod roots;
#[cfg(test)]
mod tests;
pub(crate) mod twice;
pub(crate) mod types;
mod undissected;
pub(crate) mod unknown_memory;
pub(crate) mod why;
