//! Heaps of other allocators, mappings, and where the resident memory is.

mod allocators;
mod described_allocators;
mod described_heaps;
mod mappings;
mod rss;
mod versions;
