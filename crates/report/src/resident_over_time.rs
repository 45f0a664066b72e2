//! Resident memory of a run, as the kernel and the heap walk report it.

use serde::Serialize;

/// The kernel's memory counters for the process at one moment.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ResidentPoint {
    /// Milliseconds since the attach.
    pub time_ms: u64,
    /// Resident bytes of anonymous memory.
    pub anonymous_bytes: u64,
    /// Resident bytes of files.
    pub file_bytes: u64,
    /// Resident bytes of shared memory.
    pub shared_bytes: u64,
    /// Bytes swapped out.
    pub swap_bytes: u64,
}

/// Resident part of an arena of glibc's malloc.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ArenaResident {
    /// Address of the arena's `malloc_state`. It is in the arena's first heap, or, for the main
    /// arena, in the C library.
    pub address: u64,
    /// All resident bytes of the arena.
    pub resident_bytes: u64,
    /// Resident bytes of live blocks.
    pub live_bytes: u64,
}

impl ResidentPoint {
    /// Returns the sum of all resident bytes.
    pub fn rss_bytes(&self) -> u64 {
        let parts = [self.anonymous_bytes, self.file_bytes, self.shared_bytes];
        parts.iter().fold(0, |sum, part| sum.saturating_add(*part))
    }
}
