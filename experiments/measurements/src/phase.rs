//! In which phase the machine is: how long a cache line takes from the target's processor to the attacher's and back.
//!
//! On a virtual machine that changes from hour to hour, and every event of a trace is such a line. A figure can only be
//! compared with another one if it is known for both.

use crate::{Placement, Spread, bind_to};
use serde::{Deserialize, Serialize};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Round trips of one sample.
const TRIPS: u64 = 200;
const SAMPLES: usize = 101;
/// On one processor, a trip takes a time slice.
const LONGEST: Duration = Duration::from_secs(2);

/// The time of a round trip, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Half of them took less.
    pub median: f64,
    /// A quarter took less.
    pub low: f64,
    /// A quarter took more.
    pub high: f64,
}

impl Phase {
    /// That of this moment; `None` where there is only one processor.
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

/// Even numbers are questions, the next odd one is the answer, and this ends it.
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
    // One at least, however late this thread gets its turn.
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
