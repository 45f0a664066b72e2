//! Simulates attaches to programs with a full heap, to count how often the test reports growth
//! where there is none, and how often it misses a leak. The runs are seeded, so they are the same
//! everywhere.

use crate::growth::{Course, courses};
use crate::survivors::{AGE_IN_PAUSES, MOMENTS};
use fastrand::Rng;

/// Returns a random time with this mean.
pub fn exponential(mean: f64, random: &mut Rng) -> f64 {
    -random.f64().max(1e-12).ln() * mean
}

/// Seconds before the window (`--warmup`).
const WARMUP: f64 = 30.0;
/// Number of blocks in a full heap.
const FULL: usize = 1000;
const RUNS: u64 = 200;

#[derive(Clone, Copy, Debug)]
enum Program {
    /// Each freed block is replaced immediately, as in a full cache that replaces entries at
    /// random. Lifetimes are exponential.
    Exponential(f64),
    /// Like `Exponential`, but all blocks have the same lifetime.
    Fixed(f64),
    /// Sessions arrive at random and last for exponentially distributed times.
    Pool(f64),
    /// Fills up at a constant rate, and is emptied after the given number of seconds.
    Sawtooth(f64),
    /// A cache or a program that warms up, at an ever slower rate. After the given number of
    /// seconds, it is two thirds full.
    Filling(f64),
}

/// Blocks of one site, as seen by a tracer that attached at time 0.
struct Watched {
    warmup: f64,
    age: f64,
    pause: f64,
    /// Number of old blocks at each moment.
    old: Vec<f64>,
    /// Number of earlier blocks that had been freed by the time the youngest old blocks were
    /// allocated.
    freed: Vec<f64>,
}

impl Watched {
    fn new(warmup: f64, duration: f64) -> Watched {
        let pause = duration / f64::from(MOMENTS);
        let moments = (MOMENTS - AGE_IN_PAUSES) as usize;
        Watched {
            warmup,
            age: pause * f64::from(AGE_IN_PAUSES),
            pause,
            old: vec![0.0; moments],
            freed: vec![0.0; moments],
        }
    }

    fn end(&self) -> f64 {
        self.moment(self.old.len() - 1)
    }

    fn moment(&self, i: usize) -> f64 {
        self.warmup + self.age + self.pause * i as f64
    }

    /// Returns the first moment at or after a time.
    fn from(&self, time: f64) -> usize {
        let moments = (time - self.warmup - self.age) / self.pause;
        (moments.ceil().max(0.0) as usize).min(self.old.len())
    }

    fn block(&mut self, born: f64, freed: f64) {
        if born < 0.0 {
            let from = self.from(freed + self.age);
            self.freed[from..].iter_mut().for_each(|n| *n += 1.0);
        } else {
            let (from, to) = (self.from(born + self.age), self.from(freed));
            if from < to {
                self.old[from..to].iter_mut().for_each(|n| *n += 1.0);
            }
        }
    }
}

fn run(program: Program, watched: &mut Watched, random: &mut Rng) {
    let end = watched.end();
    match program {
        Program::Exponential(life) => {
            for _ in 0..FULL {
                let (mut born, mut freed) = (-1.0, exponential(life, random));
                while born < end {
                    watched.block(born, freed);
                    (born, freed) = (freed, freed + exponential(life, random));
                }
            }
        }
        Program::Fixed(life) => {
            for _ in 0..FULL {
                let (mut born, mut freed) = (-1.0, random.f64() * life);
                while born < end {
                    watched.block(born, freed);
                    (born, freed) = (freed, freed + life);
                }
            }
        }
        Program::Pool(life) => {
            for _ in 0..FULL {
                watched.block(-1.0, exponential(life, random));
            }
            let mut at = 0.0;
            while at < end {
                at += exponential(life / FULL as f64, random);
                watched.block(at, at + exponential(life, random));
            }
        }
        Program::Sawtooth(period) => {
            let first = random.f64() * period;
            let step = period / FULL as f64;
            let mut at = first - period;
            while at < end {
                let emptied = first + ((at - first) / period).floor() * period + period;
                watched.block(at, emptied);
                at += step;
            }
        }
        Program::Filling(time) => {
            let mut missing = FULL as f64;
            let mut at = 0.0;
            while missing >= 1.0 && at < end {
                at += exponential(time / missing, random);
                watched.block(at, f64::MAX);
                missing -= 1.0;
            }
        }
    }
}

/// Verdicts on runs of one kind.
#[derive(Debug, Default)]
struct Said {
    /// Runs in which growth is reported for a site that does not grow.
    false_alarms: u64,
    /// Runs that were too short for a verdict, although nothing leaks.
    too_short: u64,
    /// Runs in which a leak is not reported as growth.
    missed: u64,
    /// Runs that were too short to recognize a leak.
    unclear: u64,
}

/// Judges each run as it is, and with a leak of a thousandth of the heap per second at a separate
/// site.
fn judged(program: Program, warmup: f64, duration: f64) -> Said {
    let mut said = Said::default();
    for seed in 1..=RUNS {
        let random = &mut Rng::with_seed(seed);
        let mut site = Watched::new(warmup, duration);
        run(program, &mut site, random);
        let mut leak = Watched::new(warmup, duration);
        let mut at = 0.0;
        while at < leak.end() {
            at += exponential(1000.0 / FULL as f64, random);
            leak.block(at, f64::MAX);
        }
        let alone = courses(&[site.old.clone()], &site.freed, 0.99)[0];
        let both = courses(&[site.old, leak.old], &site.freed, 0.99);
        let grows = |course: Course| u64::from(matches!(course, Course::Growing(_)));
        let is_unclear =
            |course: Course| u64::from(matches!(course, Course::Replacing | Course::Levelling));
        said.false_alarms += grows(alone).max(grows(both[0]));
        said.too_short += is_unclear(alone);
        said.missed += u64::from(both[1] == Course::Steady);
        said.unclear += is_unclear(both[1]);
    }
    said
}

const LIFETIMES: [f64; 5] = [1.0, 10.0, 60.0, 200.0, 600.0];

/// Just less than one percent of the runs.
const FEW: u64 = RUNS / 100 - 1;

/// The stated number of false alarms is correct after five minutes, regardless of the lifetimes of
/// blocks.
#[test]
fn a_constant_heap_is_not_said_to_grow() {
    for life in LIFETIMES {
        for program in [
            Program::Exponential(life),
            Program::Fixed(life),
            Program::Pool(life),
        ] {
            let said = judged(program, WARMUP, 300.0);
            println!("{program:?}, 300 s: {said:?}");
            assert!(said.false_alarms <= FEW, "{program:?}: {said:?}");
            assert!(said.missed <= FEW, "{program:?}: {said:?}");
        }
    }
}

/// The verdict holds for the time that docs/gate.md recommends.
#[test]
fn a_window_that_is_long_enough_gives_a_verdict() {
    for life in LIFETIMES.into_iter().skip(1) {
        for (program, lives) in [
            (Program::Exponential(life), 6.0),
            (Program::Pool(life), 6.0),
            (Program::Fixed(life), 3.0),
            (Program::Sawtooth(life), 3.0),
            (Program::Filling(life), 20.0),
        ] {
            let duration = f64::max(300.0, lives * life);
            let said = judged(program, WARMUP, duration);
            println!("{program:?}, {duration} s: {said:?}");
            assert!(said.false_alarms <= FEW, "{program:?}: {said:?}");
            assert!(said.missed + said.unclear <= FEW, "{program:?}: {said:?}");
        }
    }
}

/// Checks the statistical power that docs/gate.md states for windows without a warm-up, which is
/// the number of runs that find the leak. All other runs give no verdict.
#[test]
fn a_leak_is_found_without_a_warm_up() {
    for (life, warmup, duration, least) in [
        (30.0, 0.0, 200.0, 180),
        (30.0, 0.0, 180.0, 120),
        (30.0, WARMUP, 180.0, RUNS - FEW),
        (60.0, 0.0, 360.0, RUNS - FEW),
        (200.0, 0.0, 1200.0, RUNS - FEW),
        (10.0, 0.0, 60.0, 0),
    ] {
        for program in [Program::Exponential(life), Program::Pool(life)] {
            let said = judged(program, warmup, duration);
            println!("{program:?}, {warmup} s, {duration} s: {said:?}");
            assert!(said.unclear <= RUNS - least, "{program:?}: {said:?}");
            assert!(said.missed == 0 && said.false_alarms <= FEW, "{said:?}");
        }
    }
}
