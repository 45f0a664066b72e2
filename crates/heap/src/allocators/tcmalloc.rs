//! Reads the properties of gperftools' tcmalloc (gperftools/malloc_extension.h).

use super::known::Remote;
use super::statistics::{AllocatorStatistics, Counter};
use crate::Error;

const NAME: usize = 8;
/// Upper bound on the length of a name.
const DATA_BYTES: usize = 96;

const LIVE: &str = "generic.current_allocated_bytes";
const HEAP: &str = "generic.heap_size";
const PHYSICAL: &str = "generic.total_physical_bytes";
const FREE_PAGES: &str = "tcmalloc.pageheap_free_bytes";
const GIVEN_BACK: &str = "tcmalloc.pageheap_unmapped_bytes";
/// Properties that report the free blocks kept for later allocations.
const CACHES: [&str; 3] = [
    "tcmalloc.central_cache_free_bytes",
    "tcmalloc.transfer_cache_free_bytes",
    "tcmalloc.thread_cache_free_bytes",
];

/// Returns the allocator's statistics.
pub(super) fn statistics(
    remote: &mut Remote<'_>,
    function: u64,
) -> Result<AllocatorStatistics, Error> {
    let mut counters = Vec::new();
    let mut read = |name: &'static str| {
        let bytes = number(remote, function, name)?;
        counters.push(Counter { name, bytes });
        Ok::<u64, Error>(bytes)
    };
    let live = read(LIVE)?;
    let heap = read(HEAP)?;
    let physical = read(PHYSICAL)?;
    let free = read(FREE_PAGES)?;
    let given_back = read(GIVEN_BACK)?;
    let mut cached = 0u64;
    for name in CACHES {
        cached = cached.saturating_add(read(name)?);
    }
    Ok(AllocatorStatistics {
        allocator: "tcmalloc",
        live_bytes: live,
        overhead_bytes: physical.saturating_sub(heap.saturating_sub(given_back)),
        // A page with one live block and many cached blocks remains assigned to its size class.
        fragmentation_bytes: cached,
        free_bytes: free,
        releasable_bytes: free,
        counters,
        ..AllocatorStatistics::default()
    })
}

fn number(remote: &mut Remote<'_>, function: u64, name: &str) -> Result<u64, Error> {
    let mut data = [0; DATA_BYTES];
    data[NAME..NAME + name.len()].copy_from_slice(name.as_bytes());
    let result = remote.call(function, &mut data, |at| vec![at + NAME as u64, at])?;
    if result as i32 != 1 {
        return Err(remote.refused(&format!("does not know {name}")));
    }
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&data[..8]);
    Ok(u64::from_le_bytes(bytes))
}
