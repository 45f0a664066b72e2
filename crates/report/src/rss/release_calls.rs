//! Ways in which a program makes its allocator return free pages.

/// Returns the calls and settings of an allocator, if it has any.
pub fn release_call(allocator: &str) -> Option<&'static str> {
    [
        (
            "jemalloc",
            "MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:1000",
        ),
        (
            "tcmalloc",
            "MallocExtension::ReleaseFreeMemory() after a peak, or TCMALLOC_RELEASE_RATE=10",
        ),
        (
            "mimalloc",
            "mi_collect(true) after a peak, or MIMALLOC_PURGE_DELAY=0 (before 2.1, MIMALLOC_PAGE_RESET=1)",
        ),
    ]
    .into_iter()
    .find_map(|(name, call)| (name == allocator).then_some(call))
}
