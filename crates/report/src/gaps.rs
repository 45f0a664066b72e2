//! Intervals in which no event was seen, and the resulting uncertainty.

use crate::Amount;
use crate::units::{bytes, count, counted, milliseconds};
use memhook_stream::Gap;
use serde::{Deserialize, Serialize};

/// Maximum number of individually listed gaps.
const TOLD: usize = 3;

/// An interval in which no event was seen, in seconds since the attach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnseenTime {
    /// Start of the gap.
    pub from_s: f64,
    /// End of the gap.
    pub to_s: f64,
}

impl From<Gap> for UnseenTime {
    fn from(gap: Gap) -> UnseenTime {
        UnseenTime {
            from_s: gap.from_ns as f64 / 1e9,
            to_s: gap.to_ns as f64 / 1e9,
        }
    }
}

/// Bounds on the live memory of the traced allocations. Set if there was a gap, because earlier
/// blocks may have been released during it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LiveBounds {
    /// Bytes that live for certain.
    pub least_bytes: u64,
    /// Upper bound, which also counts blocks that have not been seen since the last gap. This bound
    /// equals the total of live bytes.
    pub most_bytes: u64,
    /// Blocks that live for certain.
    pub least_blocks: u64,
    /// Upper bound, which also counts blocks that have not been seen since the last gap.
    pub most_blocks: u64,
}

impl LiveBounds {
    /// Computes bounds from the live blocks, and from the live blocks that have not been seen since
    /// the last gap.
    pub(crate) fn new(live: Amount, unseen: Amount) -> LiveBounds {
        LiveBounds {
            least_bytes: live.bytes.saturating_sub(unseen.bytes),
            most_bytes: live.bytes,
            least_blocks: live.blocks.saturating_sub(unseen.blocks),
            most_blocks: live.blocks,
        }
    }

    /// Returns true if both bounds agree.
    pub(crate) fn is_exact(&self) -> bool {
        self.least_bytes == self.most_bytes && self.least_blocks == self.most_blocks
    }
}

/// Returns the gaps that affect a window that ends at `to_ns`: the live sums at the end of the
/// window lack the events in these gaps.
pub(crate) fn until(gaps: &[Gap], to_ns: u64) -> Vec<UnseenTime> {
    Gap::within(gaps, 0, to_ns).map(UnseenTime::from).collect()
}

/// Returns how many seconds of a window were seen.
pub(crate) fn seen_seconds(gaps: &[UnseenTime], from_s: f64, to_s: f64) -> f64 {
    let clipped = |gap: &UnseenTime| (gap.to_s.min(to_s) - gap.from_s.max(from_s)).max(0.0);
    to_s - from_s - gaps.iter().map(clipped).sum::<f64>()
}

/// Describes the intervals without events, for the heading of a view of the run; `None` if there is
/// no gap.
pub(crate) fn in_words(gaps: &[UnseenTime]) -> Option<String> {
    let time = |seconds: f64| milliseconds((seconds * 1e3).round() as u64);
    let told = gaps.iter().take(TOLD);
    let told = told.map(|gap| format!("from {} to {}", time(gap.from_s), time(gap.to_s)));
    let told = told.collect::<Vec<_>>().join(", ");
    let more = match gaps.len().saturating_sub(TOLD) {
        0 => String::new(),
        more => {
            let all = gaps.iter().map(|gap| gap.to_s - gap.from_s).sum();
            let more = counted(more as u64, "more time");
            format!(", and {more}, for {} in all,", time(all))
        }
    };
    (!gaps.is_empty()).then(|| format!("Nothing was seen {told}{more} after the attach"))
}

/// Describes the intervals in which no event was seen, for callers that have no report.
pub fn unseen_in_words(gaps: &[Gap]) -> Option<String> {
    let times: Vec<UnseenTime> = gaps.iter().copied().map(UnseenTime::from).collect();
    let words = in_words(&times)?;
    Some(words.replacen('N', "n", 1))
}

/// Returns the warning about gaps and their consequences.
pub(crate) fn warning(gaps: &[UnseenTime], bounds: Option<&LiveBounds>) -> Option<String> {
    let unseen = in_words(gaps)?;
    let mut text = format!(
        "{unseen}: memhook-rs got no processor time, and the process did not wait for it. Allocations and releases \
         of that time are missing below, and rates exclude it."
    );
    if let Some(bounds) = bounds.filter(|bounds| !bounds.is_exact()) {
        let blocks = bounds.most_blocks.saturating_sub(bounds.least_blocks);
        text += &format!(
            " {} in {} were live before and have not been seen since, so they may have been released.",
            bytes(bounds.most_bytes.saturating_sub(bounds.least_bytes)),
            counted(blocks, "block"),
        );
    }
    Some(text)
}

/// Describes the live blocks as a number, or as a range.
pub(crate) fn live_blocks(bounds: Option<&LiveBounds>, blocks: u64) -> String {
    match bounds {
        Some(bounds) if !bounds.is_exact() => format!(
            "{} to {}",
            count(bounds.least_blocks),
            counted(bounds.most_blocks, "block")
        ),
        _ => counted(blocks, "block"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_in_words() {
        let gap = |from_s, to_s| UnseenTime { from_s, to_s };
        assert_eq!(in_words(&[]), None);
        let one = in_words(&[gap(1.25, 2.75)]);
        let expected = "Nothing was seen from 1.2 s to 2.8 s after the attach";
        assert_eq!(one.as_deref(), Some(expected));
        let many: Vec<UnseenTime> = (0..5)
            .map(|n| gap(f64::from(n), f64::from(n) + 0.5))
            .collect();
        let expected = "Nothing was seen from 0 ms to 500 ms, from 1.0 s to 1.5 s, from 2.0 s to 2.5 s, and 2 more times, for 2.5 s in all, after the attach";
        assert_eq!(in_words(&many).as_deref(), Some(expected));
        assert_eq!(seen_seconds(&many, 0.25, 1.75), 0.75);
    }
}
