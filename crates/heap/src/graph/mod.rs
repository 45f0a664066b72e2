//! The blocks of a heap and what points to what: marking, leaks, what keeps a block alive, what the
//! blocks are.

mod block_sets;
pub(crate) mod blocks;
pub(crate) mod census;
mod foreign_areas;
mod foreign_blocks;
pub(crate) mod leaks;
pub(crate) mod mark;
mod nested_blocks;
pub(crate) mod roots;
mod segment;
#[cfg(test)]
mod tests;
pub(crate) mod twice;
pub(crate) mod types;
mod undissected;
pub(crate) mod why;
