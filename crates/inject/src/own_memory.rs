//! Memory of this process.

/// Minimum size of buffers that get their own mappings, and minimum size of free memory at the end of a heap that is
/// returned to the system, in bytes. These are the allocator's initial values.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 128 << 10;

/// Number of arenas for all threads. It is small because threads rarely allocate at the same moment.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 2;

/// Makes the allocator keep little unused memory, for a process that runs for weeks with hundreds of threads whose
/// allocations are mostly short-lived. By default, the allocator has eight arenas per processor, each with long-lived
/// blocks scattered among short-lived ones, and raises both limits up to 32 MiB after large buffers (mallopt(3),
/// M_ARENA_MAX and M_MMAP_THRESHOLD). Call this before other threads are started, because they would get their own
/// arenas.
pub fn keep_little_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes integers, and changes only later allocations, not existing ones.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
    }
}

/// Forgets the data of ended threads, and returns free memory in the allocator's arenas to the system (malloc_trim(3)).
/// Meanwhile, threads that allocate wait for some milliseconds.
pub fn give_memory_back() {
    crate::restarted::forget_ended();
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer, and touches only the allocator's own free memory, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
