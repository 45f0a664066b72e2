//! What this process itself holds.

/// Gives memory back to the system that was released and that the allocator keeps for later, in all of its arenas
/// (malloc_trim(3)). Threads that allocate wait meanwhile, for milliseconds.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer, and touches nothing but the allocator's own free memory, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
