//! The `.mhk` file: its layout, the coding of events, writing and reading.

pub(crate) mod accesses;
pub(crate) mod checkpoint;
pub(crate) mod chunk;
pub(crate) mod chunk_file;
pub(crate) mod columns;
pub(crate) mod decode;
pub(crate) mod encode;
#[cfg(test)]
mod foreign_bytes;
pub(crate) mod format;
pub(crate) mod gaps;
pub(crate) mod heap_notes;
pub(crate) mod marks;
pub(crate) mod meter;
pub(crate) mod model;
pub(crate) mod options;
pub(crate) mod part;
pub(crate) mod reader;
pub(crate) mod records;
pub(crate) mod resident;
pub(crate) mod sampled_stacks;
pub(crate) mod samples;
pub(crate) mod spool;
pub(crate) mod stacks;
pub(crate) mod summary;
pub(crate) mod varint;
pub(crate) mod writer;
