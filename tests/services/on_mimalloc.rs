//! A Rust service with mimalloc linked in as its heap.

mod planted;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn usable(block: *const u8) -> usize {
    // SAFETY: this allocator returned the block, which was not released.
    unsafe { ALLOCATOR.usable_size(block) }
}

fn main() {
    planted::serve(usable);
}
