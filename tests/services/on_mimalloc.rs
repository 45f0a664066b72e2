//! A Rust service whose heap is mimalloc's, which is linked in.

mod planted;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn usable(block: *const u8) -> usize {
    // SAFETY: the block is one of this allocator's, and was not released.
    unsafe { ALLOCATOR.usable_size(block) }
}

fn main() {
    planted::serve(usable);
}
