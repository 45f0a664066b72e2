//! Individually stored chunks, which the page draws.

use memhook_abi::Accesses;

/// Reads and writes of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkAccesses {
    /// Time of the first access in nanoseconds since the attach. If there was none, the time of the
    /// allocation.
    pub first_ns: u64,
    /// Time of the last access.
    pub last_ns: u64,
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
    /// True if more than one thread accessed the chunk.
    pub by_several: bool,
}

/// A chunk: one block from its allocation to its release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Number of the chunk at its site, in the order in which chunks became known.
    pub number: u64,
    /// Time of the allocation in nanoseconds since the attach.
    pub start_ns: u64,
    /// Time of the release.
    pub end_ns: u64,
    /// Size in bytes.
    pub size: u64,
    /// True if the chunk was live at the end.
    pub is_live: bool,
    /// Reads and writes of the chunk; `None` if unknown. Boxed to save space, because there are
    /// many chunks, and most recordings contain no accesses.
    pub accesses: Option<Box<ChunkAccesses>>,
}

impl ChunkAccesses {
    /// Returns the accesses of a chunk with this lifetime.
    pub(super) fn new(accesses: &Accesses, (start_ns, end_ns): (u64, u64)) -> Self {
        // Clocks of two processors may differ slightly.
        let first_ns = accesses.first_ns.clamp(start_ns, end_ns);
        Self {
            first_ns,
            last_ns: accesses.last_ns.clamp(first_ns, end_ns),
            reads: accesses.reads,
            writes: accesses.writes,
            by_several: accesses.by_several,
        }
    }
}

/// The stored chunks of a site: all of them or, if there are too many, every second, every fourth,
/// and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptChunks {
    /// Sampling interval: one in this many chunks is stored; 0 if none are.
    pub step: u64,
    /// Chunks, sorted by the time of their allocation.
    pub chunks: Vec<Chunk>,
}

impl KeptChunks {
    /// Creates an empty list. `is_on` is true if chunks are stored.
    pub(super) fn new(is_on: bool) -> Self {
        Self {
            step: u64::from(is_on),
            chunks: Vec::new(),
        }
    }

    /// Returns true if the chunk with this number is stored.
    pub(super) fn keeps(&self, number: u64) -> bool {
        self.step > 0 && number.is_multiple_of(self.step)
    }

    /// Drops every second chunk. Returns the number of dropped chunks.
    pub(super) fn thin_out(&mut self) -> usize {
        let before = self.chunks.len();
        if before <= 1 {
            // There are more sites than the maximum number of stored chunks.
            *self = KeptChunks::new(false);
            return before;
        }
        self.step *= 2;
        let step = self.step;
        self.chunks
            .retain(|chunk| chunk.number.is_multiple_of(step));
        before - self.chunks.len()
    }

    /// Drops reads and writes that turn out to be unknown.
    pub(super) fn forget_accesses(&mut self) {
        let chunks = self.chunks.iter_mut();
        chunks.for_each(|chunk| chunk.accesses = None);
    }

    pub(super) fn sort(&mut self) {
        self.chunks
            .sort_unstable_by_key(|chunk| (chunk.start_ns, chunk.number));
    }
}
