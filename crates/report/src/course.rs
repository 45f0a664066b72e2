//! The course of a site's live bytes over time: steady growth, levelling off, or bursts.

/// Number of equal parts into which the time is divided.
pub const PARTS: usize = 24;
const THIRD: usize = PARTS / 3;

/// Course of a site's live bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// The bytes grow in all thirds of the time.
    Growing,
    /// The bytes have grown, and keep growing ever more slowly.
    Levelling,
    /// Before the end, many more bytes were live than at the end; or as many were live, and were
    /// released in between.
    Burst,
    /// The bytes have not grown.
    Steady,
    /// The bytes have grown, but not long or evenly enough for a prediction.
    Unclear,
}

/// Minimum share of the total growth in each third, if growth is even.
const LEAST_THIRD: f64 = 1.0 / 6.0;
/// Minimum ratio of the last third's growth to the first third's.
const LEAST_OF_FIRST: f64 = 0.6;
/// Share of growth in the last third that does not count.
const LEVEL: f64 = 0.1;

/// Returns the growth in each third of the time, counting only bytes that stay until the end of the
/// run. A burst is not growth.
pub fn thirds(live: &[f64; PARTS + 1]) -> [f64; 3] {
    let mut low = *live;
    for at in (0..PARTS).rev() {
        low[at] = low[at].min(low[at + 1]);
    }
    [0, THIRD, 2 * THIRD].map(|at| low[at + THIRD] - low[at])
}

/// Judges the live bytes at the start and at the end of each part. Less than `least` is not growth.
pub fn course(live: &[f64; PARTS + 1], least: f64) -> Course {
    let thirds = thirds(live);
    let total: f64 = thirds.iter().sum();
    if total < least {
        let peak = live.iter().copied().fold(0.0, f64::max);
        let end = live[PARTS];
        return match peak - end >= least && peak >= 2.0 * end {
            true => Course::Burst,
            false => Course::Steady,
        };
    }
    let [first, _, last] = thirds;
    if last <= LEVEL * total {
        return Course::Levelling;
    }
    let is_even = thirds.iter().all(|third| *third >= LEAST_THIRD * total);
    match is_even && last >= LEAST_OF_FIRST * first {
        true => Course::Growing,
        false if has_repeated_peak(live, total, least) => Course::Burst,
        false => Course::Unclear,
    }
}

/// Returns true if the live bytes had already reached their final level once, and then fell by half
/// of the growth. The end is then in the middle of a burst.
fn has_repeated_peak(live: &[f64; PARTS + 1], growth: f64, least: f64) -> bool {
    let end = live[PARTS];
    let peak = live[..PARTS].iter().position(|bytes| *bytes >= end - least);
    let after = peak.map_or(&[][..], |peak| &live[peak..]);
    after.iter().any(|bytes| *bytes <= end - growth / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: f64 = 1000.0;

    fn judged(live: impl Fn(f64) -> f64) -> Course {
        course(
            &std::array::from_fn(|at| live(at as f64 / PARTS as f64)),
            LEAST,
        )
    }

    #[test]
    fn each_course_is_told_from_its_twins() {
        assert_eq!(judged(|t| 1e6 * t), Course::Growing);
        assert_eq!(judged(|t| 5e6 + 1e6 * t), Course::Growing);
        assert_eq!(
            judged(|t| 1e6 * t * t.sqrt()),
            Course::Growing,
            "faster and faster"
        );
        assert_eq!(judged(|_| 5e6), Course::Steady);
        assert_eq!(judged(|t| 500.0 * t), Course::Steady);
        assert_eq!(
            judged(|t| 1e6 * (1.0 - (-5.0 * t).exp())),
            Course::Levelling
        );
        assert_eq!(judged(|t| 1e6 * (1.0 - (-2.0 * t).exp())), Course::Unclear);
        // All older blocks of a cache were replaced half-way.
        assert_eq!(judged(|t| 1e6 * t.min(0.5)), Course::Levelling);
        assert_eq!(
            judged(|t| if (0.3..0.7).contains(&t) { 1e6 } else { 0.0 }),
            Course::Burst
        );
        assert_eq!(
            judged(|t| if t > 0.8 { 1e6 } else { 0.0 }),
            Course::Unclear,
            "a burst or a step"
        );
        let bursts = |t: f64| {
            if t > 0.9 || (0.3..0.5).contains(&t) {
                1e6
            } else {
                0.0
            }
        };
        assert_eq!(judged(bursts), Course::Burst, "the end is in a burst");
        let steps = |t: f64| {
            if t > 0.9 {
                2e6
            } else if (0.3..0.5).contains(&t) {
                1e6
            } else {
                0.0
            }
        };
        assert_eq!(judged(steps), Course::Unclear, "the last step is higher");
        // Bursts on top of growth do not hide the growth.
        let saw = |t: f64| 1e6 * t + 3e5 * (t * 12.0).fract();
        assert_eq!(judged(saw), Course::Growing);
        assert_eq!(judged(|t| 3e5 * (t * 12.0).fract()), Course::Burst);
    }
}
