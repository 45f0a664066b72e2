//! Sampled looks at simulated programs, compared with all of their accesses.

use super::looks::*;
use proptest::prelude::*;

/// Accesses of a program to each word, in nanoseconds since the allocation.
type Program = Vec<Vec<u64>>;

/// Returns the accesses to a word that watchpoints see. A watchpoint fires, is silent for a time
/// that grows with the age, and is set again. At the release, the allocator writes into the first
/// two words.
fn watched(accesses: &[u64], release: u64, frees_into: bool) -> Vec<(u64, u64)> {
    let mut touches = Vec::new();
    let mut armed = 0;
    let mut all = accesses.to_vec();
    all.sort_unstable();
    if frees_into {
        all.push(release + 10);
    }
    for at in all {
        if at >= armed {
            armed = at + (at / 50).max(200_000);
            touches.push((at, armed));
        }
    }
    touches
}

fn look(program: &Program, offsets: &[usize], release: u64, until: u64) -> Look {
    let words = offsets.iter().map(|&at| LookWord {
        offset: at as u64 * 8,
        touches: watched(&program[at], release, at < 2)
            .into_iter()
            .filter(|touch| touch.0 < until)
            .collect(),
    });
    Look {
        address: 16,
        at_ns: 0,
        until_ns: until,
        by_several: false,
        of_bytes: false,
        words: words.collect(),
    }
}

/// Returns looks at blocks in which each byte of a range is accessed once. The looks watch whole
/// words, or one byte of each word.
fn look_at_bytes(
    size: u64,
    used: std::ops::Range<u64>,
    of_bytes: bool,
    chance: &mut Chance,
) -> Look {
    let words = size.div_ceil(8);
    let parts = words.min(4);
    let words = (0..parts).map(|part| {
        let (from, to) = (part * words / parts * 8, (part + 1) * words / parts * 8);
        let offset = if of_bytes {
            from + chance.below(to.min(size) - from)
        } else {
            from + chance.below((to - from) / 8) * 8
        };
        let length = if of_bytes { 1 } else { 8 };
        let is_touched = offset < used.end && offset + length > used.start;
        LookWord {
            offset,
            touches: if is_touched {
                vec![(50_000, u64::MAX)]
            } else {
                Vec::new()
            },
        }
    });
    Look {
        address: 16,
        until_ns: u64::MAX,
        of_bytes,
        words: words.collect(),
        ..Look::default()
    }
}

/// If consecutive bytes are used, the interval contains their exact share, and it is narrow if
/// words are used completely.
#[test]
fn usage_is_known_to_the_byte() {
    let mut chance = Chance(7);
    for (size, used, is_known) in [
        (31, 0..30, true),
        (61, 0..31, true),
        (124, 0..123, true),
        (32, 0..32, true),
        (40, 8..40, true),
        (48, 0..0, true),
        // One byte of the third word is used.
        (24, 0..17, false),
    ] {
        let truth = (used.end - used.start) as f64 / size as f64;
        let (mut held, mut known) = (0, 0);
        for _ in 0..200 {
            let outcomes = (0..400).map(|n| {
                let look = look_at_bytes(size, used.clone(), n % 2 == 0, &mut chance);
                outcome(&look, size, (0, 100_000_000)).unwrap()
            });
            let found = sampled(&outcomes.collect::<Vec<_>>()).unwrap().usage;
            held += usize::from(found.low - 1e-9 <= truth && truth <= found.high + 1e-9);
            known += usize::from(found.known().is_some());
        }
        assert!(held >= 190, "{size} {used:?}: {held} of 200");
        assert_eq!(known, if is_known { 200 } else { 0 }, "{size} {used:?}");
    }
}

/// The program uses few bytes of its outermost words, so watched bytes underestimate the truth and
/// watched words overestimate it.
#[test]
fn holes_make_usage_unknown() {
    let mut chance = Chance(11);
    let outcomes = (0..400).map(|n| {
        let first = look_at_bytes(32, 4..8, n % 2 == 0, &mut chance);
        let last = look_at_bytes(32, 24..28, n % 2 == 0, &mut chance);
        let mut look = first;
        look.words[3] = last.words[3].clone();
        outcome(&look, 32, (0, 100_000_000)).unwrap()
    });
    let found = sampled(&outcomes.collect::<Vec<_>>()).unwrap().usage;
    assert!(found.low < 0.75 && 0.75 < found.high, "{found:?}");
    assert_eq!(found.known(), None);
}

/// Returns the true values from the definitions: the share of bytes from the lowest to the highest
/// accessed word, and the time from the first access to the last, divided by the lifetime.
fn truth(program: &Program, release: u64) -> (f64, f64) {
    let touched: Vec<usize> = (0..program.len())
        .filter(|&at| !program[at].is_empty())
        .collect();
    let (Some(low), Some(high)) = (touched.first(), touched.last()) else {
        return (0.0, 0.0);
    };
    let all = program.iter().flatten();
    let (first, last) = (all.clone().min().unwrap(), all.max().unwrap());
    let usage = (high - low + 1) as f64 / program.len() as f64;
    (usage, (last - first) as f64 / release as f64)
}

fn programs(words: impl Strategy<Value = usize>) -> impl Strategy<Value = (Program, u64)> {
    let word = |_| {
        prop_oneof![
            Just(Vec::new()),
            prop::collection::vec(0..90_000_000u64, 1..20)
        ]
    };
    let words = words.prop_flat_map(move |n| (0..n).map(word).collect::<Vec<_>>());
    (words, 100_000_000..200_000_000u64)
}

proptest! {
    /// The truth about a completely watched block is always within the bounds, even if the look is
    /// abandoned.
    #[test]
    fn bounds_hold_the_truth((program, release) in programs(1..5usize), until in 0..300_000_000u64) {
        let all: Vec<usize> = (0..program.len()).collect();
        let look = look(&program, &all, release, until);
        let size = program.len() as u64 * 8;
        let seen = outcome(&look, size, (0, release)).unwrap();
        let (usage, useful) = truth(&program, release);
        let usage = usage * size as f64;
        prop_assert!(seen.used.0 <= usage + 1e-9 && usage <= seen.used.1 + 1e-9, "{:?} {}", seen, usage);
        prop_assert!(seen.active.0 <= useful + 1e-9 && useful <= seen.active.1 + 1e-9, "{:?} {}", seen, useful);
        if until >= release {
            // The look lasted to the end, so the only uncertainty comes from times at which a
            // watchpoint was silent.
            prop_assert_eq!(seen.used.0, seen.used.1);
            prop_assert!(seen.active.1 - seen.active.0 < 0.03, "{:?}", seen);
            prop_assert_eq!(seen.is_untouched, usage == 0.0);
        }
    }

    /// The estimated usage of a larger block never exceeds the truth by more than the part that one
    /// word represents.
    #[test]
    fn a_part_never_shows_more((program, release) in programs(5..40usize), seed in any::<u64>()) {
        let quarter = |n: u64| {
            let (from, to) = (n * program.len() as u64 / 4, (n + 1) * program.len() as u64 / 4);
            (from + (seed >> (n * 8)) % (to - from).max(1)) as usize
        };
        let offsets: Vec<usize> = (0..4).map(quarter).collect();
        let look = look(&program, &offsets, release, u64::MAX);
        let seen = outcome(&look, program.len() as u64 * 8, (0, release)).unwrap();
        let (_, useful) = truth(&program, release);
        prop_assert!(seen.active.0 <= useful + 1e-9);
    }

    #[test]
    fn looks_are_read_as_written(looks in prop::collection::vec(
        (any::<u64>(), 0..1u64 << 50, 0..1u64 << 40, any::<(bool, bool)>(),
         prop::collection::vec((0..1u64 << 30, prop::collection::vec((0..1u64 << 40, 0..1u64 << 40), 0..4)), 0..4)),
        0..6)) {
        let looks: Vec<Look> = looks.into_iter().map(|(address, at_ns, lasted, (by_several, of_bytes), words)| Look {
            address, at_ns, until_ns: at_ns + lasted, by_several, of_bytes,
            words: words.into_iter().map(|(offset, touches)| LookWord {
                offset,
                touches: touches.into_iter().map(|(at, blind)| (at_ns + at, at_ns + at + blind)).collect(),
            }).collect(),
        }).collect();
        prop_assert_eq!(looks_of(&looks_text(&looks)), looks);
    }

    #[test]
    fn any_text_is_read(text in "[0-9a-f:+, \n]{0,80}") {
        for look in looks_of(&text) {
            let _ = outcome(&look, 64, (0, 1000));
        }
    }
}

/// Random numbers from a linear congruential generator (Knuth's MMIX).
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// The sites have different kinds of blocks. In at least 95 of 100 runs, the interval contains the
/// true value, and the mean of the estimates is near it.
#[test]
fn intervals_hold_the_complete_truth() {
    let mut chance = Chance(3);
    // A block is never touched, or only in the first of four words, or only at the start, or
    // everywhere.
    let kinds: [fn(&mut Chance) -> Program; 4] = [
        |chance| match chance.below(2) {
            0 => vec![vec![]; 4],
            _ => vec![vec![100_000, 50_000_000]; 4],
        },
        |_| vec![vec![200_000, 99_000_000], vec![], vec![], vec![]],
        |chance| vec![vec![chance.below(2_000_000), 3_000_000]; 3],
        |chance| vec![(0..10).map(|_| chance.below(100_000_000)).collect(); 2],
    ];
    for (kind, program) in kinds.iter().enumerate() {
        let release = 100_000_000;
        let population: Vec<Program> = (0..400).map(|_| program(&mut chance)).collect();
        let truths: Vec<(f64, f64)> = population.iter().map(|one| truth(one, release)).collect();
        let mean = |of: fn(&(f64, f64)) -> f64| truths.iter().map(of).sum::<f64>() / 400.0;
        let (usage, useful) = (mean(|t| t.0), mean(|t| t.1));
        let (mut held, mut estimates) = ([0, 0], [0.0, 0.0]);
        for _ in 0..300 {
            let outcomes: Vec<Outcome> = (0..60)
                .map(|_| {
                    let one = &population[chance.below(400) as usize];
                    let all: Vec<usize> = (0..one.len()).collect();
                    let seen = Look {
                        // Words are used completely, so that bytes give the same result.
                        of_bytes: chance.below(2) == 0,
                        ..look(one, &all, release, u64::MAX)
                    };
                    outcome(&seen, one.len() as u64 * 8, (0, release)).unwrap()
                })
                .collect();
            let found = sampled(&outcomes).unwrap();
            let holds =
                |score: SampledScore, is: f64| score.low - 1e-9 <= is && is <= score.high + 1e-9;
            held[0] += usize::from(holds(found.usage, usage));
            held[1] += usize::from(holds(found.useful_lifetime, useful));
            estimates[0] += found.usage.value / 300.0;
            estimates[1] += found.useful_lifetime.value / 300.0;
        }
        assert!(
            held[0] >= 279 && held[1] >= 279,
            "kind {kind}: {held:?} of 300"
        );
        assert!(
            (estimates[0] - usage).abs() < 0.015,
            "kind {kind}: {estimates:?} for {usage}"
        );
        assert!(
            (estimates[1] - useful).abs() < 0.02,
            "kind {kind}: {estimates:?} for {useful}"
        );
    }
}

/// The block lived for four traps. Which of its words were used is known, but not for how long.
#[test]
fn traps_say_nothing_of_lives_that_are_shorter() {
    let program = vec![vec![2_000], vec![30_000], vec![60_000], vec![90_000]];
    let look = look(&program, &[0, 1, 2, 3], 150_000, u64::MAX);
    let seen = outcome(&look, 32, (0, 150_000)).unwrap();
    assert_eq!((seen.used, seen.active), ((32.0, 32.0), (0.0, 1.0)));
    let of_bytes = Outcome {
        of_bytes: true,
        ..seen
    };
    let found = sampled(&[[seen; 1000], [of_bytes; 1000]].concat()).unwrap();
    assert_eq!(found.usage.known(), Some(1.0));
    assert_eq!(found.useful_lifetime.known(), None);
}

/// A few looks do not make a score.
#[test]
fn few_looks_are_unknown() {
    let one = outcome(
        &look(&vec![vec![500, 90_000_000]], &[0], 100_000_000, u64::MAX),
        8,
        (0, 100_000_000),
    )
    .unwrap();
    let of_bytes = Outcome {
        of_bytes: true,
        ..one
    };
    let both = |count: usize| [vec![one; count], vec![of_bytes; count]].concat();
    assert_eq!(sampled(&both(5)).unwrap().usage.known(), None);
    assert_eq!(sampled(&both(60)).unwrap().usage.known(), Some(1.0));
    // Words alone do not show how many of their bytes are used.
    assert_eq!(sampled(&[one; 60]).unwrap().usage.known(), None);
    assert_eq!(
        sampled(&[of_bytes; 60]).unwrap().useful_lifetime.known(),
        None
    );
    assert_eq!(sampled(&[]), None);
}
