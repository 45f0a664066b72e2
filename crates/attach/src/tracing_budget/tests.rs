//! Simulated programs within a budget.

use super::*;
use memhook_access::Random;
use proptest::prelude::*;

const STEP_NS: f64 = 10e6;

/// Simulated program: number and sizes of the allocations in each period.
struct Program {
    costs: CallCosts,
    event_ns: f64,
    idle_ns: f64,
}

struct Run {
    levels: Vec<u8>,
    spent: Vec<f64>,
    /// Estimated bytes, true bytes, and estimated variance.
    bytes: f64,
    truth: f64,
    variance: f64,
}

/// Draws the number of blocks recorded at a level, out of `count` blocks. For large counts it uses a normal
/// distribution.
fn recorded(count: f64, probability: f64, random: &mut Random) -> f64 {
    let (mean, spread) = (
        count * probability,
        (count * probability * (1.0 - probability)).sqrt(),
    );
    if mean < 30.0 && count < 3000.0 {
        let hits = (0..count as u64).filter(|_| random.share() < probability);
        return hits.count() as f64;
    }
    let normal: f64 = (0..12).map(|_| random.share()).sum::<f64>() - 6.0;
    (mean + spread * normal).clamp(0.0, count).round()
}

impl Program {
    /// `rates`: number and size of the allocations in each period. The process obeys the controller one period later.
    fn run(&self, share: f64, rates: &[(f64, u64)], seed: u64) -> Run {
        let mut controller = TracingController::within(share, FIRST_LEVEL);
        let mut random = Random::seeded(seed);
        let mut run = Run {
            levels: Vec::new(),
            spent: Vec::new(),
            bytes: 0.0,
            truth: 0.0,
            variance: 0.0,
        };
        let mut in_use = controller.level();
        for &(count, size) in rates {
            let mean = mean_bytes(in_use) as f64;
            let probability = match in_use {
                0 => 1.0,
                _ => -(-(size as f64) / mean).exp_m1(),
            };
            let hits = recorded(count, probability, &mut random);
            let mut allocations = [0.0; SIZE_CLASSES];
            allocations[size_class(size)] = hits / probability;
            let period = Period {
                time_ns: STEP_NS,
                allocations,
                recorded_allocations: hits,
                recorded_releases: hits,
                waited_ns: 0.0,
                attacher_ns: self.idle_ns + 2.0 * hits * self.event_ns,
                costs: self.costs,
            };
            let paid = 2.0 * count * self.costs.pass_ns
                + hits * (self.costs.allocation_ns + self.costs.release_ns);
            run.spent.push((paid + period.attacher_ns) / STEP_NS);
            run.truth += count * size as f64;
            run.bytes += hits / probability * size as f64;
            run.variance +=
                hits * (1.0 - probability) / (probability * probability) * (size * size) as f64;
            in_use = controller.level();
            run.levels.push(controller.step(&period));
        }
        run
    }

    fn cheap() -> Program {
        Program {
            costs: CallCosts {
                pass_ns: 0.2,
                allocation_ns: 40.0,
                release_ns: 20.0,
            },
            event_ns: 60.0,
            idle_ns: 2e3,
        }
    }
}

fn most_in(spent: &[f64], periods: usize) -> f64 {
    let means = spent.windows(periods.min(spent.len()));
    means
        .map(|w| w.iter().sum::<f64>() / w.len() as f64)
        .fold(0.0, f64::max)
}

#[test]
fn levels_and_distances() {
    assert_eq!((mean_bytes(0), mean_bytes(1), mean_bytes(2)), (0, 256, 512));
    assert_eq!(mean_bytes(COARSEST), MOST_SAMPLE_BYTES);
    for level in 0..=COARSEST {
        assert_eq!(level_of(mean_bytes(level)), level);
    }
    assert_eq!(
        (level_of(1), level_of(300), level_of(u64::MAX)),
        (1, 1, COARSEST)
    );
}

#[test]
fn what_fits_is_exact_all_the_time() {
    // 1,000 pairs in 10 ms cost 0.18 ms. The traffic is measured first.
    let run = Program::cheap().run(0.03, &[(1000.0, 100); 1000], 1);
    assert_eq!(run.levels[0], FIRST_LEVEL);
    assert!(run.levels[10..].iter().all(|&level| level == 0));
}

/// An attacher that uses the whole budget when idle must not prevent the recording of a quiet program.
#[test]
fn an_attacher_that_is_never_cheap_enough_returns_to_exact() {
    let program = Program {
        idle_ns: 0.02 * STEP_NS,
        ..Program::cheap()
    };
    let rates = [vec![(100_000.0, 100); 100], vec![(1.0, 100); 4000]];
    let run = program.run(0.01, &rates.concat(), 1);
    assert!(run.levels[99] > 0);
    assert_eq!(run.levels.last(), Some(&0));
}

/// A program that is already busy at the attach never pays for recording everything.
#[test]
fn the_first_second_of_a_busy_program_is_within_the_budget() {
    let run = Program::cheap().run(0.02, &[(30_000.0, 100); 100], 1);
    let first = most_in(&run.spent, 100);
    assert!(first <= 0.02, "{first}: {:?}", run.spent);
    assert!(run.levels.iter().all(|&level| level > 0));
}

/// If threads wait for space, few events are taken, however many the program causes.
#[test]
fn the_traffic_is_learned_anew_if_threads_wait() {
    let mut controller = TracingController::within(0.05, 0);
    let mut period = Period {
        time_ns: STEP_NS,
        allocations: [0.0; SIZE_CLASSES],
        recorded_allocations: 0.0,
        recorded_releases: 0.0,
        waited_ns: 0.0,
        attacher_ns: 0.0,
        costs: Program::cheap().costs,
    };
    (0..10).for_each(|_| _ = controller.step(&period));
    assert_eq!(controller.level(), 0);
    period.waited_ns = 0.06 * STEP_NS;
    assert_eq!(controller.step(&period), FIRST_LEVEL);
    assert_eq!(controller.step(&period), FIRST_LEVEL);
    period.waited_ns = 0.0;
    assert_eq!(controller.step(&period), FIRST_LEVEL);
    (0..10).for_each(|_| _ = controller.step(&period));
    assert_eq!(controller.level(), 0);
}

#[test]
fn a_burst_is_exact_if_its_price_was_saved_up() {
    let mut rates = vec![(10.0, 100); 500];
    rates[300..305].fill((10_000.0, 100));
    let run = Program::cheap().run(0.02, &rates, 1);
    assert!(run.levels[10..].iter().all(|&level| level == 0));
}

#[test]
fn after_a_time_of_much_everything_is_recorded_again() {
    let rates = [
        vec![(10.0, 100); 200],
        vec![(100_000.0, 100); 200],
        vec![(10.0, 100); 1500],
    ];
    let run = Program::cheap().run(0.02, &rates.concat(), 1);
    assert_eq!(run.levels[150], 0);
    assert!(run.levels[210..400].iter().all(|&level| level > 0));
    assert_eq!(run.levels.last(), Some(&0));
    // The level does not oscillate.
    let changes = run.levels.windows(2).filter(|w| w[0] != w[1]).count();
    assert!(changes < 20, "{changes}");
}

/// Releases of blocks from before the attach are recorded at every level.
#[test]
fn releases_of_older_blocks_do_not_make_samples_rarer() {
    let mut controller = TracingController::within(0.01, FIRST_LEVEL);
    let costs = Program::cheap().costs;
    let mut allocations = [0.0; SIZE_CLASSES];
    allocations[size_class(100)] = 1000.0;
    let period = Period {
        time_ns: STEP_NS,
        allocations,
        recorded_allocations: 0.0,
        recorded_releases: 50_000.0,
        waited_ns: 0.0,
        attacher_ns: 50_000.0 * 60.0,
        costs,
    };
    for step in 0..100 {
        let level = controller.step(&period);
        assert!(level < FIRST_LEVEL || step == 0, "{step}: {level}");
    }
}

/// If the wrappers alone exceed the budget, sampling continues.
#[test]
fn an_impossible_budget_leaves_samples() {
    let program = Program {
        costs: CallCosts {
            pass_ns: 5.0,
            ..Program::cheap().costs
        },
        ..Program::cheap()
    };
    let run = program.run(0.001, &[(100_000.0, 64); 500], 1);
    let last = *run.levels.last().unwrap();
    assert!((10..COARSEST).contains(&last), "{last}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// After two seconds, no five-second window of any program exceeds the budget by more than a tenth.
    #[test]
    fn no_five_seconds_cost_much_more(
        phases in proptest::collection::vec((20usize..400, 0.0f64..6.0, 4u32..14), 2..12),
        share in prop::sample::select(vec![0.005, 0.01, 0.02, 0.1]),
        seed in any::<u64>(),
    ) {
        let rates: Vec<(f64, u64)> = phases
            .iter()
            .flat_map(|&(length, rate, size)| vec![(10f64.powf(rate) - 1.0, 1 << size); length])
            .collect();
        // The cost of the wrappers is not part of the decision.
        let program = Program {
            costs: CallCosts { pass_ns: 0.0, ..Program::cheap().costs },
            ..Program::cheap()
        };
        let run = program.run(share, &rates, seed);
        let later = &run.spent[200.min(run.spent.len())..];
        if later.len() >= 500 {
            let most = most_in(later, 500);
            // The controller responds to each thousandfold jump in traffic two periods later.
            let jump = 2.0 * phases.len() as f64 * later.iter().copied().fold(0.0, f64::max) / 500.0;
            // In addition to its own budget, a five-second window may use what the preceding second saved.
            prop_assert!(most <= share * 1.3 + jump, "{} of {}", most, share);
        }
    }

    /// Estimates stay within their standard errors even if the rate, and with it the distance, changes by a factor
    /// of 1,000.
    #[test]
    fn sums_stay_unbiased(seed in any::<u64>(), first in 10usize..200, size in 5u32..12) {
        let rates = [
            vec![(100.0, 1 << size); first],
            vec![(100_000.0, 1 << size); 150],
            vec![(0.0, 1 << size); 100],
            vec![(100_000.0, 1 << size); 50],
        ];
        let run = Program::cheap().run(0.02, &rates.concat(), seed);
        let off = (run.bytes - run.truth).abs();
        prop_assert!(run.levels.iter().any(|&level| level > 0));
        prop_assert!(off <= 5.5 * run.variance.sqrt() + 1.0, "{} ± {}", off, run.variance.sqrt());
    }
}
