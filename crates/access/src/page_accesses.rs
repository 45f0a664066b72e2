//! Memory that was not accessed, according to the marks in the page tables. The kernel combines the
//! marks of each mapping, and reports only whether any part of it was accessed since the marks were
//! cleared.

use std::ops::Range;

/// Observed accesses.
#[derive(Clone, Debug, Default)]
pub struct PageAccesses {
    /// Time at which the marks were last cleared.
    cleared_ms: Option<u32>,
    looked_ms: u32,
    /// Memory that was idle at the last look, with the start of its idle time. Sorted by address
    /// and disjoint.
    idle: Vec<(Range<u64>, u32)>,
}

impl PageAccesses {
    /// Records that the marks were cleared just after a look.
    pub fn cleared(&mut self, now_ms: u32) {
        self.cleared_ms = Some(now_ms);
    }

    /// Returns the time of the last clearing.
    pub fn cleared_ms(&self) -> Option<u32> {
        self.cleared_ms
    }

    /// Drops all observations, because another program may have cleared marks.
    pub fn forget(&mut self) {
        *self = PageAccesses::default();
    }

    /// Records the mappings that have no mark at this look, sorted by address. Memory that was
    /// already idle at the previous look keeps its earlier start.
    pub fn looked(&mut self, unmarked: &[Range<u64>], now_ms: u32) {
        let Some(cleared_ms) = self.cleared_ms else {
            return;
        };
        let mut idle: Vec<(Range<u64>, u32)> = Vec::new();
        let mut add = |range: Range<u64>, since: u32| match idle.last_mut() {
            _ if range.is_empty() => {}
            Some((last, of_last)) if last.end == range.start && *of_last == since => {
                last.end = range.end;
            }
            _ => idle.push((range, since)),
        };
        for mapping in unmarked {
            let mut at = mapping.start;
            let first = self.idle.partition_point(|(old, _)| old.end <= at);
            for (old, since) in self.idle[first..]
                .iter()
                .take_while(|(old, _)| old.start < mapping.end)
            {
                let (start, end) = (old.start.max(at), old.end.min(mapping.end));
                add(at..start, cleared_ms);
                add(start..end, *since);
                at = end;
            }
            add(at..mapping.end, cleared_ms);
        }
        (self.idle, self.looked_ms) = (idle, now_ms);
    }

    /// Returns the time since which no part of this range was accessed, if that is at least
    /// `older_ms` before the last look.
    pub fn idle_since(&self, range: Range<u64>, older_ms: u32) -> Option<u32> {
        let first = self
            .idle
            .partition_point(|(idle, _)| idle.end <= range.start);
        let (mut at, mut latest) = (range.start, 0);
        for (idle, since) in &self.idle[first..] {
            if idle.start > at {
                return None;
            }
            (at, latest) = (idle.end, latest.max(*since));
            if at >= range.end {
                break;
            }
        }
        let is_known = at >= range.end && self.looked_ms.saturating_sub(latest) >= older_ms;
        is_known.then_some(latest)
    }
}

/// Splits a mapping at the multiples of `piece_bytes`. Each piece is returned with its parity,
/// which alternates between neighbours.
pub fn pieces(mapping: Range<u64>, piece_bytes: u64) -> impl Iterator<Item = (Range<u64>, bool)> {
    let mut at = mapping.start;
    std::iter::from_fn(move || {
        let number = at / piece_bytes;
        let piece = at..mapping.end.min((number + 1) * piece_bytes);
        at = piece.end;
        (!piece.is_empty()).then_some((piece, number % 2 == 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_idle_before_stays_idle_since_then() {
        let mut accesses = PageAccesses::default();
        accesses.looked(&[0x1000..0x2000], 50);
        assert_eq!(accesses.idle_since(0x1000..0x1010, 0), None, "not cleared");
        accesses.cleared(100);
        accesses.looked(&[0x1000..0x4000, 0x6000..0x8000], 1100);
        assert_eq!(accesses.idle_since(0x1ff0..0x2010, 1000), Some(100));
        assert_eq!(accesses.idle_since(0x1ff0..0x2010, 1001), None);
        accesses.cleared(1100);
        // A part of the idle memory was accessed, and other memory is idle now.
        accesses.looked(&[0x1000..0x2000, 0x3000..0x6000, 0x6000..0x7000], 3100);
        let since = |range| accesses.idle_since(range, 2000);
        assert_eq!(since(0x1000..0x2000), Some(100));
        assert_eq!(since(0x1000..0x2001), None);
        assert_eq!(since(0x2000..0x3000), None);
        assert_eq!(since(0x3000..0x4000), Some(100));
        assert_eq!(since(0x3ff0..0x4010), Some(1100));
        assert_eq!(since(0x3000..0x7000), Some(1100));
        assert_eq!(accesses.idle_since(0x3ff0..0x4010, 2001), None);
        accesses.forget();
        assert_eq!(accesses.idle_since(0x1000..0x1010, 0), None);
    }

    proptest! {
        /// Pieces of a program's memory are accessed occasionally. No memory that is reported idle
        /// was accessed.
        #[test]
        fn nothing_that_was_accessed_is_idle(
            seed in any::<u64>(), older_s in 1u32..8, period_s in 2u32..12,
        ) {
            const PIECES: u64 = 16;
            let mut random = crate::Random::seeded(seed);
            let mut last = [0u32; PIECES as usize];
            let mut marks = [true; PIECES as usize];
            let mut accesses = PageAccesses::default();
            for second in 1..100u32 {
                let now = second * 1000;
                for piece in 0..PIECES {
                    if random.below(4 + piece * piece) == 0 {
                        (last[piece as usize], marks[piece as usize]) = (now, true);
                    }
                }
                let unmarked = (0..PIECES).filter(|&piece| !marks[piece as usize]);
                let unmarked: Vec<_> = unmarked.map(|piece| piece * 4096..(piece + 1) * 4096).collect();
                accesses.looked(&unmarked, now);
                for piece in 0..PIECES {
                    let idle = accesses.idle_since(piece * 4096..(piece + 1) * 4096, older_s * 1000);
                    let is_idle = now - last[piece as usize] >= older_s * 1000;
                    prop_assert!(idle.is_none() || is_idle);
                }
                if second % period_s == 0 {
                    marks = [false; PIECES as usize];
                    accesses.cleared(now);
                }
            }
        }

        #[test]
        fn pieces_are_the_mapping(start in 0u64..1000, length in 0u64..1000, bytes in 1u64..300) {
            let all: Vec<_> = pieces(start..start + length, bytes).collect();
            let mut at = start;
            for (piece, _) in &all {
                prop_assert!(piece.start == at && piece.end > at);
                prop_assert!(piece.start / bytes == (piece.end - 1) / bytes);
                at = piece.end;
            }
            prop_assert_eq!(at, start + length);
            prop_assert!(all.windows(2).all(|two| two[0].1 != two[1].1));
        }
    }
}
