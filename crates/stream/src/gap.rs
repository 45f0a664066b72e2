//! Times in which the target was not observed.

/// Interval in which the target ran untraced: from the end of too long a wait for space in a ring until the attacher
/// resumed reading. Times are in nanoseconds since the attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Latest recorded time before the gap.
    pub from_ns: u64,
    /// Earliest recorded time after the gap, rounded to milliseconds, the resolution of the times of live blocks.
    pub to_ns: u64,
}

impl Gap {
    /// Returns the parts of gaps within a window.
    pub fn within(gaps: &[Gap], from_ns: u64, to_ns: u64) -> impl Iterator<Item = Gap> + '_ {
        let clipped = gaps.iter().map(move |gap| Gap {
            from_ns: gap.from_ns.max(from_ns),
            to_ns: gap.to_ns.min(to_ns),
        });
        clipped.filter(|gap| gap.from_ns < gap.to_ns)
    }

    /// Returns an upper bound on the allocation times of blocks that may have been released in a gap although they seem
    /// live at `at_ns`. `None` if there was no gap before that time.
    pub fn unseen_before(gaps: &[Gap], at_ns: u64) -> Option<u64> {
        let last = gaps.iter().rfind(|gap| gap.from_ns < at_ns);
        last.map(|gap| gap.to_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_of_a_window() {
        let gap = |from_ns, to_ns| Gap { from_ns, to_ns };
        let gaps = [gap(10, 20), gap(30, 40)];
        let within: Vec<Gap> = Gap::within(&gaps, 15, 30).collect();
        assert_eq!(within, [gap(15, 20)]);
        for (at_ns, before) in [(10, None), (11, Some(20)), (30, Some(20)), (31, Some(40))] {
            assert_eq!(Gap::unseen_before(&gaps, at_ns), before, "{at_ns}");
        }
    }
}
