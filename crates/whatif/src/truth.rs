//! Checks the accuracy of a replay, by comparing the recorded process's own memory with the memory
//! of its replay.

use crate::comparison::Truth;
use memhook_recording::ResidentSample;

/// Maximum error of an accurate replay.
const MOST: f64 = 0.05;
/// Moments with less than this share of the largest growth are left out. At such moments, most of
/// the growth is memory that the program maps outside its heap.
const LEAST_SHARE: f64 = 0.05;
/// Minimum number of meaningful moments.
const LEAST_MOMENTS: usize = 3;

/// Returns the times of the samples, at which the replay must take its own measurements.
pub(crate) fn times(resident: &[ResidentSample]) -> Vec<u64> {
    let times = resident.iter().map(|sample| sample.time_ms * 1_000_000);
    times.collect()
}

/// Compares growth since the beginning. Returns `None` if too little growth was recorded.
pub(crate) fn compare(resident: &[ResidentSample], curve: &[(u64, u64)]) -> Option<Truth> {
    let begin = resident.first()?.anonymous_bytes;
    // Memory that became resident after the last recorded call does not belong to any recorded
    // call.
    let moments: Vec<(u64, u64, u64)> = resident
        .iter()
        .filter_map(|sample| {
            let time = sample.time_ms * 1_000_000;
            // If several points have this time, the first point is the requested one.
            let at = curve.binary_search_by(|(t, _)| t.cmp(&time)).ok()?;
            let recorded = sample.anonymous_bytes.saturating_sub(begin);
            Some((time, recorded, curve[at].1))
        })
        .collect();
    let recorded: Vec<(u64, u64)> = moments.iter().map(|&(time, it, _)| (time, it)).collect();
    let replayed: Vec<(u64, u64)> = moments.iter().map(|&(time, _, it)| (time, it)).collect();
    let peak = |curve: &[(u64, u64)]| curve.iter().map(|(_, bytes)| *bytes).max();
    let (recorded_peak, replayed_peak) = (peak(&recorded)?, peak(&replayed)?);
    let least = (recorded_peak as f64 * LEAST_SHARE).max(1.0);
    // At the end and on average, smaller amounts are judged as if they had this size.
    let error = |recorded: u64, replayed: u64| {
        (replayed as f64 - recorded as f64) / (recorded as f64).max(least)
    };
    let mut errors: Vec<f64> = moments
        .iter()
        .filter(|(_, recorded, _)| *recorded as f64 >= least)
        .map(|&(_, recorded, replayed)| error(recorded, replayed))
        .collect();
    if errors.len() < LEAST_MOMENTS {
        return None;
    }
    errors.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let median_error = errors[errors.len() / 2];
    let (_, recorded_end, replayed_end) = *moments.last()?;
    let mut truth = Truth {
        moments: errors.len(),
        recorded_peak_bytes: recorded_peak,
        replayed_peak_bytes: replayed_peak,
        median_error,
        mean_error: error(mean_over_time(&recorded), mean_over_time(&replayed)),
        peak_error: error(recorded_peak, replayed_peak),
        end_error: error(recorded_end, replayed_end),
        holds: false,
    };
    truth.holds = truth.error() <= MOST;
    Some(truth)
}

/// Returns the average of the resident bytes over time.
pub(crate) fn mean_over_time(curve: &[(u64, u64)]) -> u64 {
    let parts = curve.windows(2).map(|pair| {
        let time = pair[1].0.saturating_sub(pair[0].0);
        (u128::from(pair[0].1) * u128::from(time), u128::from(time))
    });
    let (sum, whole) = parts.fold((0u128, 0u128), |(sum, whole), (more, time)| {
        (sum.saturating_add(more), whole + time)
    });
    let mean = sum.checked_div(whole).map(|mean| mean as u64);
    mean.unwrap_or_else(|| curve.last().map_or(0, |(_, bytes)| *bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(bytes: &[u64]) -> Vec<ResidentSample> {
        let sample = |(i, bytes): (usize, &u64)| ResidentSample {
            time_ms: i as u64,
            anonymous_bytes: *bytes,
            ..ResidentSample::default()
        };
        bytes.iter().enumerate().map(sample).collect()
    }

    fn curve(bytes: &[u64]) -> Vec<(u64, u64)> {
        let point = |(i, bytes): (usize, &u64)| (i as u64 * 1_000_000, *bytes);
        bytes.iter().enumerate().map(point).collect()
    }

    #[test]
    fn growth_is_compared() {
        let recorded = resident(&[500, 1500, 2500, 1500]);
        let same = compare(&recorded, &curve(&[0, 1040, 2000, 960])).expect("enough");
        assert!(same.holds && same.moments == 3);
        assert!((same.median_error.abs() - 0.04).abs() < 1e-9);
        let smaller = compare(&recorded, &curve(&[0, 800, 1990, 700])).expect("enough");
        assert!(!smaller.holds && smaller.median_error < -0.1);
        let lower = compare(&recorded, &curve(&[0, 1000, 1800, 1000])).expect("enough");
        assert!(!lower.holds && (lower.peak_error + 0.1).abs() < 1e-9);
        let keeps = compare(&recorded, &curve(&[0, 1000, 2000, 1100])).expect("enough");
        assert!(!keeps.holds && (keeps.end_error - 0.1).abs() < 1e-9);
        // The replay is accurate in the middle and at the peak, and too high for most of the time.
        let recorded = resident(&[500, 1500, 1500, 1500, 2500, 2500, 2500, 2500, 2500]);
        let swollen = [0, 1600, 1600, 1600, 2000, 2000, 2000, 2000, 2000];
        let swollen = compare(&recorded, &curve(&swollen)).expect("enough");
        assert!(swollen.median_error.abs() < 1e-9 && swollen.mean_error > 0.02);
    }

    #[test]
    fn nothing_is_said_of_a_run_that_was_hardly_measured() {
        assert_eq!(compare(&[], &curve(&[1, 2])), None);
        assert_eq!(compare(&resident(&[5, 9]), &curve(&[0, 4])), None);
        assert_eq!(
            compare(&resident(&[5, 5, 5, 5]), &curve(&[0, 0, 0, 0])),
            None
        );
    }

    #[test]
    fn the_mean_counts_time() {
        assert_eq!(mean_over_time(&[(0, 10), (1, 20), (2, 30), (100, 0)]), 29);
        assert_eq!(mean_over_time(&[(0, 10), (90, 20), (100, 20)]), 11);
        assert_eq!(mean_over_time(&[(5, 7)]), 7);
        assert_eq!(mean_over_time(&[(5, 7), (5, 9)]), 9);
        assert_eq!(mean_over_time(&[]), 0);
    }
}
