//! Median and spread of paired rounds.

/// Median and quartiles of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle figure.
    pub median: f64,
    /// The lower quartile.
    pub low: f64,
    /// The upper quartile.
    pub high: f64,
    /// Number of figures.
    pub count: usize,
}

impl Spread {
    /// Computes the spread of these figures, or `None` without figures.
    pub fn of(mut figures: Vec<f64>) -> Option<Spread> {
        figures.retain(|figure| figure.is_finite());
        figures.sort_by(f64::total_cmp);
        let last = figures.len().checked_sub(1)?;
        // Interpolates linearly between neighbours (Hyndman and Fan, type 7).
        let quantile = |part: f64| {
            let at = part * last as f64;
            let (below, above) = (at.floor() as usize, at.ceil() as usize);
            figures[below] + (figures[above] - figures[below]) * at.fract()
        };
        Some(Spread {
            median: quantile(0.5),
            low: quantile(0.25),
            high: quantile(0.75),
            count: figures.len(),
        })
    }
}

/// Divides each round's figure by the figure of the same cycle without a tool.
pub fn ratios(untraced: &[f64], traced: &[f64]) -> Option<Spread> {
    Spread::of(untraced.iter().zip(traced).map(|(u, t)| t / u).collect())
}

/// Subtracts from each round's figure the figure of the same cycle without a tool.
pub fn differences(untraced: &[f64], traced: &[f64]) -> Option<Spread> {
    Spread::of(untraced.iter().zip(traced).map(|(u, t)| t - u).collect())
}

/// Divides the overhead of another tool by ours: the ratio of the medians, with bounds from the
/// quartiles of both.
pub fn times(theirs: Spread, ours: Spread) -> Spread {
    Spread {
        median: theirs.median / ours.median,
        low: theirs.low / ours.high,
        high: theirs.high / ours.low,
        count: theirs.count.min(ours.count),
    }
}

/// Formats nanoseconds in a suitable unit.
pub fn duration(ns: f64) -> String {
    match ns.abs() {
        size if size < 1e3 => format!("{ns:.1} ns"),
        size if size < 1e6 => format!("{:.2} µs", ns / 1e3),
        size if size < 1e9 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles() {
        let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0, f64::NAN]).expect("figures");
        assert_eq!((spread.low, spread.median, spread.high), (1.75, 2.5, 3.25));
        assert_eq!(spread.count, 4);
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn a_comparison_is_as_uncertain_as_both_of_its_sides() {
        let spread = |figures: [f64; 3]| Spread::of(figures.to_vec()).expect("figures");
        let compared = times(spread([90.0, 100.0, 110.0]), spread([9.0, 10.0, 11.0]));
        assert_eq!(compared.median, 10.0);
        assert_eq!((compared.low, compared.high), (95.0 / 10.5, 105.0 / 9.5));
    }

    #[test]
    fn rounds_are_compared_with_the_round_of_their_cycle() {
        // The machine was half as fast in the second cycle. The ratio does not change.
        let spread = ratios(&[10.0, 20.0, 10.0], &[15.0, 30.0, 15.0]).expect("figures");
        assert_eq!((spread.low, spread.median, spread.high), (1.5, 1.5, 1.5));
        // A tool that failed in the last cycle is still compared in the earlier cycles.
        let spread = differences(&[10.0, 20.0, 10.0], &[12.0, 22.0]).expect("figures");
        assert_eq!((spread.median, spread.count), (2.0, 2));
    }
}
