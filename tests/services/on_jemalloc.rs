//! A Rust service with jemalloc linked in as its heap.

mod planted;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn usable(block: *const u8) -> usize {
    // SAFETY: this allocator returned the block, which was not released.
    unsafe { tikv_jemallocator::usable_size(block) }
}

fn main() {
    planted::serve(usable);
}
