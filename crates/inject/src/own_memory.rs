//! What this process itself holds.

/// Buffers of so many bytes and more get mappings of their own, and the end of a heap is given back from so many
/// on. These are what the allocator begins with.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 128 << 10;

/// For a process that runs for weeks and makes large buffers for moments: has the allocator give them back at once.
/// By default it raises both limits up to 32 MiB as such buffers come (mallopt(3), M_MMAP_THRESHOLD), and then keeps
/// them in the arenas of all threads.
pub fn give_large_buffers_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes integers, and changes how the allocator goes on, not what it has handed out.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
    }
}

/// Gives memory back to the system that was released and that the allocator keeps for later, in all of its arenas
/// (malloc_trim(3)). Threads that allocate wait meanwhile, for milliseconds.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer, and touches nothing but the allocator's own free memory, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
