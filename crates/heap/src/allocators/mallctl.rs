//! Asks jemalloc through mallctl(3).

use super::known::Remote;
use super::statistics::{AllocatorStatistics, Counter};
use crate::Error;

/// Offsets in the data of a call: the value, its length, and the name.
const VALUE: usize = 0;
const LENGTH: usize = 8;
const NAME: usize = 16;
/// Upper bound on the length of a name.
const DATA_BYTES: usize = 96;
/// All arenas (jemalloc/jemalloc.h, MALLCTL_ARENAS_ALL).
const PURGE_ALL: &str = "arena.4096.purge";
const DIRTY_PAGES: [&str; 2] = ["stats.arenas.4096.pdirty", "stats.arenas.4096.pmuzzy"];

/// Returns the allocator's statistics.
pub(super) fn statistics(
    remote: &mut Remote<'_>,
    control: u64,
) -> Result<AllocatorStatistics, Error> {
    // jemalloc updates its statistics when this value is written.
    control_by(remote, control, "epoch", Some(1))?;
    let mut read = |name: &str| number(remote, control, name);
    let allocated = read("stats.allocated")?;
    let active = read("stats.active")?;
    let metadata = read("stats.metadata")?;
    let resident = read("stats.resident")?;
    let retained = read("stats.retained")?;
    let page = read("arenas.page")?;
    let mut free_pages = 0u64;
    for name in DIRTY_PAGES {
        free_pages = free_pages.saturating_add(read(name)?);
    }
    let counter = |name, bytes| Counter { name, bytes };
    Ok(AllocatorStatistics {
        allocator: "jemalloc",
        live_bytes: allocated.min(active),
        overhead_bytes: metadata,
        fragmentation_bytes: active.saturating_sub(allocated),
        free_bytes: resident.saturating_sub(active.saturating_add(metadata)),
        releasable_bytes: free_pages.saturating_mul(page),
        counters: vec![
            counter("stats.allocated", allocated),
            counter("stats.active", active),
            counter("stats.metadata", metadata),
            counter("stats.resident", resident),
            counter("stats.retained", retained),
        ],
        ..AllocatorStatistics::default()
    })
}

/// Returns the unused pages of all arenas to the kernel.
pub(super) fn purge(remote: &mut Remote<'_>, control: u64) -> Result<(), Error> {
    control_by(remote, control, PURGE_ALL, None)
}

/// Reads a number.
fn number(remote: &mut Remote<'_>, control: u64, name: &str) -> Result<u64, Error> {
    let mut data = data_of(name);
    data[LENGTH..LENGTH + 8].copy_from_slice(&8u64.to_le_bytes());
    let args = |at: u64| {
        let value = at + VALUE as u64;
        vec![at + NAME as u64, value, at + LENGTH as u64, 0, 0]
    };
    let result = remote.call(control, &mut data, args)?;
    checked(remote, name, result)?;
    Ok(word(&data, VALUE))
}

/// Writes a value, or runs the command of this name.
fn control_by(
    remote: &mut Remote<'_>,
    control: u64,
    name: &str,
    value: Option<u64>,
) -> Result<(), Error> {
    let mut data = data_of(name);
    data[VALUE..VALUE + 8].copy_from_slice(&value.unwrap_or(0).to_le_bytes());
    let args = |at: u64| {
        let (value, bytes) = value.map_or((0, 0), |_| (at + VALUE as u64, 8));
        vec![at + NAME as u64, 0, 0, value, bytes]
    };
    let result = remote.call(control, &mut data, args)?;
    checked(remote, name, result)
}

fn data_of(name: &str) -> [u8; DATA_BYTES] {
    let mut data = [0; DATA_BYTES];
    data[NAME..NAME + name.len()].copy_from_slice(name.as_bytes());
    data
}

fn word(data: &[u8; DATA_BYTES], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&data[at..at + 8]);
    u64::from_le_bytes(bytes)
}

/// mallctl returns an errno, which is an int.
fn checked(remote: &Remote<'_>, name: &str, result: u64) -> Result<(), Error> {
    match result as i32 {
        0 => Ok(()),
        code => Err(remote.refused(&format!(
            "does not answer mallctl(\"{name}\"): {}",
            std::io::Error::from_raw_os_error(code)
        ))),
    }
}
