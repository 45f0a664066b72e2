//! Phase of the machine: the round-trip time of a cache line between the target's and the attacher's processor.
//!
//! On a virtual machine, this time changes from hour to hour, and each traced event needs a transfer between the two
//! processors. Two figures are comparable only if the phase of both is known.

use crate::{Placement, Spread, bind_to};
use serde::{Deserialize, Serialize};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Number of round trips in one sample.
const TRIPS: u64 = 200;
const SAMPLES: usize = 101;
/// Time limit, because a round trip takes a whole time slice on one processor.
const LONGEST: Duration = Duration::from_secs(2);

/// Time of a round trip, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Median.
    pub median: f64,
    /// First quartile.
    pub low: f64,
    /// Third quartile.
    pub high: f64,
}

impl Phase {
    /// Measures the current phase. Returns `None` if there is only one processor.
    pub fn now(placement: &Placement) -> Option<Phase> {
        if placement.target == placement.rest {
            return None;
        }
        let word = AtomicU64::new(0);
        let times = std::thread::scope(|scope| {
            let (here, there) = (&placement.rest, &placement.target);
            let word = &word;
            scope.spawn(move || {
                bind_to(there);
                answer(word);
            });
            scope
                .spawn(move || {
                    bind_to(here);
                    ask(word)
                })
                .join()
                .unwrap_or_default()
        });
        let spread = Spread::of(times)?;
        Some(Phase {
            median: spread.median,
            low: spread.low,
            high: spread.high,
        })
    }
}

/// An even number is a question, the next odd number is its answer, and this number ends the exchange.
const END: u64 = u64::MAX;

fn answer(word: &AtomicU64) {
    loop {
        match word.load(Relaxed) {
            END => return,
            asked if asked > 0 && asked.is_multiple_of(2) => word.store(asked + 1, Relaxed),
            _ => spin_loop(),
        }
    }
}

fn ask(word: &AtomicU64) -> Vec<f64> {
    let (mut times, begin, mut number) = (Vec::new(), Instant::now(), 0);
    // At least one sample is taken, however late this thread is scheduled.
    while times.is_empty() || times.len() < SAMPLES && begin.elapsed() < LONGEST {
        let sample = Instant::now();
        for _ in 0..TRIPS {
            number += 2;
            word.store(number, Relaxed);
            while word.load(Relaxed) == number {
                spin_loop();
            }
        }
        times.push(sample.elapsed().as_nanos() as f64 / TRIPS as f64);
    }
    word.store(END, Relaxed);
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement;

    #[test]
    fn a_line_travels() {
        let placement = placement();
        match Phase::now(&placement) {
            Some(phase) => assert!(0.0 < phase.low && phase.low <= phase.median),
            None => assert_eq!(placement.target, placement.rest),
        }
    }
}
