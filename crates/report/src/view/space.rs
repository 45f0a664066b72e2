//! Addresses of live blocks for the page's script: cells of memory pages at several moments.

use super::packed::Packed;
use crate::Profile;

/// Unit of the ages of blocks.
const NS_OF_A_MILLISECOND: u64 = 1_000_000;

/// Packs the moments, and the cells of all of them, one moment after the other.
pub(super) fn pack_addresses(packed: &mut Packed, profile: &Profile) {
    let maps = &profile.addresses;
    packed.running("space.time_ns", maps.iter().map(|map| map.at_ns));
    packed.plain("space.shift", maps.iter().map(|map| map.shift));
    packed.plain("space.count", maps.iter().map(|map| map.cells.len()));
    let cells = || maps.iter().flat_map(|map| &map.cells);
    packed.running("cells.start", cells().map(|cell| cell.start));
    packed.plain("cells.more", cells().map(|cell| cell.more));
    packed.plain("cells.site", cells().map(|cell| cell.site));
    packed.plain("cells.blocks", cells().map(|cell| cell.blocks));
    packed.plain("cells.bytes", cells().map(|cell| cell.bytes));
    let oldest = cells().map(|cell| cell.oldest_ns / NS_OF_A_MILLISECOND);
    packed.running("cells.oldest", oldest);
}
