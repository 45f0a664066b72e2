//! Unreachable blocks: found, judged and released.

mod attach_leaks;
mod calls_back;
mod chunks;
mod declared_types;
mod disguised_pointers;
mod hidden_frees;
mod limits;
mod lsan;
mod not_whole;
mod other_heaps;
mod planted_heaps;
mod plants;
mod read_only;
mod reclaim;
mod reclaim_kernel;
mod retained;
mod rust_services;
mod suspended;
mod trim;
mod unknown_heaps;
mod verdict;
