//! Blocks of described heaps: from the keys that their events have back to addresses.

use crate::Region;
use memhook_abi::{HEAP_WINDOWS, WINDOWS_OFFSET, address_of_key, heap_of};
use std::sync::atomic::Ordering::Relaxed;

impl Region {
    /// The address of a block of a described heap by its key, if the target has given the key's window an address.
    pub fn address_of_described(&self, key: u64) -> Option<u64> {
        let heap = heap_of(key).checked_sub(1)?;
        address_of_key(key, |window| {
            let number = heap * HEAP_WINDOWS + window;
            self.memory.u32(WINDOWS_OFFSET + number * 4).load(Relaxed)
        })
    }
}
