//! Resident pages that contain only zeros.

use crate::resident::pages::PAGE_BYTES;
use crate::snapshot::Snapshot;
use std::ops::Range;

/// Returns the number of bytes in all-zero pages in these ranges. Memory that was not copied does
/// not count.
pub fn zero_bytes(snapshot: &Snapshot, ranges: &[Range<u64>]) -> u64 {
    let pages = ranges
        .iter()
        .flat_map(|range| (range.start..range.end).step_by(PAGE_BYTES as usize));
    let is_zero = |page: &u64| {
        let bytes = snapshot.bytes(*page, PAGE_BYTES);
        bytes.is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0))
    };
    pages.filter(is_zero).count() as u64 * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::snapshot;

    #[test]
    fn only_whole_pages_of_zeros_count() {
        let mut bytes = vec![0; 4 * PAGE_BYTES as usize];
        bytes[PAGE_BYTES as usize - 1] = 1;
        bytes[2 * PAGE_BYTES as usize] = 1;
        let snapshot = snapshot(vec![(0x10_0000, bytes)]);
        let (start, end) = (0x10_0000, 0x10_0000 + 4 * PAGE_BYTES);
        assert_eq!(zero_bytes(&snapshot, &[start..end]), 2 * PAGE_BYTES);
        // Memory beyond the copy is unknown.
        let beyond = [end - PAGE_BYTES..end + PAGE_BYTES];
        assert_eq!(zero_bytes(&snapshot, &beyond), PAGE_BYTES);
    }
}
