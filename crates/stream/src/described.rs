//! Converts the keys in the events of described heaps to addresses of blocks.

use crate::Region;
use memhook_abi::{HEAP_WINDOWS, WINDOWS_OFFSET, address_of_key, heap_of};
use std::sync::atomic::Ordering::Relaxed;

impl Region {
    /// Returns the address of a described heap's block from its key, if the target has assigned addresses to the key's
    /// window.
    pub fn address_of_described(&self, key: u64) -> Option<u64> {
        let heap = heap_of(key).checked_sub(1)?;
        address_of_key(key, |window| {
            let number = heap * HEAP_WINDOWS + window;
            self.memory.u32(WINDOWS_OFFSET + number * 4).load(Relaxed)
        })
    }
}
