//! Heaps of other allocators, mappings, and resident memory.

mod allocators;
mod described_allocators;
mod described_heaps;
mod mappings;
mod rss;
mod versions;
