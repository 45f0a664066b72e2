//! Memory that this process itself holds.

/// Buffers of so many bytes and more get mappings of their own, and the end of a heap is given back from so many
/// on. These are what the allocator begins with.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 128 << 10;

/// Arenas for all threads, which seldom allocate at the same moment.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 2;

/// For a process that runs for weeks with hundreds of threads, each of which allocates much for moments and little for
/// long: has the allocator keep little memory that nobody uses. By default it has eight arenas for each
/// processor, in all of which what lives long lies scattered among what does not, and raises both limits up to 32
/// MiB as large buffers come (mallopt(3), M_ARENA_MAX and M_MMAP_THRESHOLD). To be called before other threads are
/// started, which get arenas of their own.
pub fn keep_little_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes integers, and changes how the allocator goes on, not what it has handed out.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
    }
}

/// Forgets what is remembered of threads that have ended, and gives memory back to the system that was released and that
/// the allocator keeps for later, in all of its arenas (malloc_trim(3)). Threads that allocate wait meanwhile, for
/// milliseconds.
pub fn give_memory_back() {
    crate::restarted::forget_ended();
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer, and touches nothing but the allocator's own free memory, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
