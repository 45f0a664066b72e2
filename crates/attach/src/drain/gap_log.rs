//! Log of the known periods in which the target was not traced.

use memhook_stream::Gap;

/// Maximum number of separate gaps. If a target reports more, the last gap stays open.
const MOST: usize = 1000;

/// Gaps of a trace.
#[derive(Default)]
pub(crate) struct GapLog {
    ended: Vec<Gap>,
    /// Start of the open gap, in nanoseconds since the attach.
    open_since_ns: Option<u64>,
}

impl GapLog {
    /// Opens a gap. `from_ns` comes from the target and may be any number, so it is capped at `now_ns`.
    pub fn begin(&mut self, from_ns: u64, now_ns: u64) {
        let last = self.ended.last().map_or(0, |gap| gap.to_ns);
        self.open_since_ns
            .get_or_insert(from_ns.min(now_ns).max(last));
    }

    /// Closes the open gap and returns it.
    pub fn end(&mut self, to_ns: u64) -> Option<Gap> {
        let gap = gap(self.open_since_ns.take()?, to_ns);
        let is_full = self.ended.len() >= MOST;
        match self.ended.last_mut() {
            Some(last) if is_full => last.to_ns = gap.to_ns,
            _ => self.ended.push(gap),
        }
        Some(gap)
    }

    /// Returns all gaps until now. An open gap ends now.
    pub fn until(&self, now_ns: u64) -> Vec<Gap> {
        let open = self.open_since_ns.map(|from_ns| gap(from_ns, now_ns));
        self.ended.iter().copied().chain(open).collect()
    }

    pub fn is_open(&self) -> bool {
        self.open_since_ns.is_some()
    }

    pub fn len(&self) -> usize {
        self.ended.len() + usize::from(self.is_open())
    }
}

/// Creates a gap that is never empty.
fn gap(from_ns: u64, to_ns: u64) -> Gap {
    let whole_milliseconds = to_ns / 1_000_000 * 1_000_000;
    Gap {
        from_ns,
        to_ns: whole_milliseconds.max(from_ns + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_begin_and_end() {
        let mut log = GapLog::default();
        assert_eq!(log.until(5), []);
        assert_eq!(log.end(5), None);
        log.begin(1_200_000, 9_000_000);
        log.begin(1_300_000, 9_000_000);
        let gap = |from_ns, to_ns| Gap { from_ns, to_ns };
        assert_eq!(log.until(9_900_000), [gap(1_200_000, 9_000_000)]);
        assert_eq!(log.end(10_100_000), Some(gap(1_200_000, 10_000_000)));
        log.begin(20_000_000, 20_000_000);
        assert_eq!(log.len(), 2);
        assert_eq!(log.until(20_000_000)[1], gap(20_000_000, 20_000_001));
    }

    #[test]
    fn a_target_that_lies() {
        let mut log = GapLog::default();
        log.begin(u64::MAX, 5_000_000);
        assert_eq!(log.end(9_000_000).map(|gap| gap.from_ns), Some(5_000_000));
        for ms in 10..3 * MOST as u64 {
            log.begin(0, ms * 1_000_000);
            log.end(ms * 1_000_000);
        }
        assert_eq!(log.len(), MOST);
        let gaps = log.until(0);
        assert!(gaps.windows(2).all(|pair| pair[0].to_ns <= pair[1].from_ns));
        let end_ns = (3 * MOST as u64 - 1) * 1_000_000;
        assert_eq!(gaps.last().map(|gap| gap.to_ns), Some(end_ns));
    }
}
