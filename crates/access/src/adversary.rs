//! Programs that may deceive an estimate made from single watched words. Each is simulated many
//! times, to count how often the interval contains the truth.

use crate::looks::{Look, Looks};
use crate::random::{Random, mixed};
use crate::sites::{LiveBlock, Site, SiteBlocks, Stratum};
use crate::survival::Share;
use rustc_hash::FxHashMap;

const BLOCKS: u64 = 2000;
const WORDS: u64 = 16;
const OLDER_MS: u32 = 30_000;
/// End of a simulation, late enough that watches before the last period T count too.
const END_MS: u32 = 5 * OLDER_MS;
const SLOTS: usize = 4;
const STEP_MS: usize = 20;

/// Function that returns the next access to a word of a block after a given time, or, without a
/// word, the next access to any part of the block.
type Touch = fn(block: u64, word: Option<u64>, after_ms: u32) -> Option<u32>;

fn unit(number: u64) -> f64 {
    (mixed(number) >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns the next access to a block that is accessed at `phase` and every `period` from then on.
fn periodic(period: u32, phase: u32, after: u32) -> Option<u32> {
    let next = after + 1;
    let rounds = next.saturating_sub(phase).div_ceil(period);
    Some(phase + rounds * period)
}

/// Returns the share of intervals that contain the true value, and the means of their ends.
fn coverage(touch: Touch) -> (f64, f64, f64, f64) {
    const RUNS: u64 = 10;
    let (mut held, mut lows, mut highs, mut truths) = (0, 0.0, 0.0, 0.0);
    for seed in 0..RUNS {
        let mut random = Random::seeded(seed * 7919 + 1);
        let mut looks = Looks::default();
        let mut active: Vec<(Look, Option<u32>)> = Vec::new();
        for now in (0..END_MS).step_by(STEP_MS) {
            let mut going = Vec::new();
            for (look, next) in active {
                match next {
                    Some(at) if at <= now && at <= look.until_ms => {
                        looks.ended(&look, Some(at), now)
                    }
                    _ if now >= look.until_ms => looks.ended(&look, None, now),
                    _ => going.push((look, next)),
                }
            }
            active = going;
            while active.len() < SLOTS {
                let mut site = SiteBlocks::default();
                site.parts[1].bytes = BLOCKS * WORDS * 8;
                site.parts[1].drawn = vec![LiveBlock {
                    address: random.below(BLOCKS) * WORDS * 8,
                    bytes: WORDS * 8,
                    site: Site::Stack(1),
                    allocated_ms: None,
                }];
                let mut sites = FxHashMap::from_iter([(Site::Stack(1), site)]);
                let look = looks.choose(&mut sites, OLDER_MS, now, &mut random);
                let look = look.expect("a block was drawn");
                let block = look.block.address / (WORDS * 8);
                let next = touch(block + seed * BLOCKS, Some(look.offset / 8), now);
                active.push((look, next));
            }
            if now % 1000 == 0 {
                looks.forget_before(now.saturating_sub(crate::looks::kept_ms(OLDER_MS)));
            }
        }
        for (look, _) in &active {
            looks.ended(look, None, END_MS);
        }
        let stale = (0..BLOCKS).filter(|block| {
            let next = touch(block + seed * BLOCKS, None, END_MS - OLDER_MS);
            next.is_none_or(|at| at > END_MS)
        });
        let truth = stale.count() as f64 / BLOCKS as f64;
        let share = looks.share(Site::Stack(1), Stratum::Open, OLDER_MS);
        // The share is unknown if the word that the program accesses in the block has only just
        // been found.
        let share = share.unwrap_or(Share::unknown(0.0));
        held += u32::from((share.low - 0.005..=share.high + 0.005).contains(&truth));
        (lows, highs, truths) = (lows + share.low, highs + share.high, truths + truth);
    }
    let runs = RUNS as f64;
    (
        f64::from(held) / runs,
        lows / runs,
        highs / runs,
        truths / runs,
    )
}

const PROGRAMS: [(&str, Touch); 12] = [
    ("nothing is touched", |_, _, _| None),
    ("everything, all the time", |_, _, after| Some(after + 1)),
    ("every 5 s, together", |_, _, after| {
        periodic(5000, 777, after)
    }),
    ("every 20 s, together", |_, _, after| {
        periodic(20_000, 777, after)
    }),
    ("every 20 s, each for itself", |block, _, after| {
        periodic(20_000, (unit(block) * 20_000.0) as u32, after)
    }),
    ("every 60 s, each for itself", |block, _, after| {
        periodic(60_000, (unit(block) * 60_000.0) as u32, after)
    }),
    ("half of them every second", |block, _, after| {
        mixed(block)
            .is_multiple_of(2)
            .then(|| periodic(1000, (unit(block) * 1000.0) as u32, after))?
    }),
    (
        "a tenth is cold, the others are touched every 10 s",
        |block, _, after| {
            (!mixed(block).is_multiple_of(10))
                .then(|| periodic(10_000, (unit(block) * 10_000.0) as u32, after))?
        },
    ),
    (
        "one word of each every second, another one each time",
        |block, word, after| {
            let phase = (unit(block) * 1000.0) as u32;
            let mut at = periodic(1000, phase, after)?;
            for _ in 0..200 {
                if word.is_none_or(|word| mixed(block * 1_000_003 + u64::from(at)) % WORDS == word)
                {
                    return Some(at);
                }
                at += 1000;
            }
            None
        },
    ),
    ("all the time until 31 s before the end", |_, _, after| {
        (after + 1 < END_MS - 31_000).then_some(after + 1)
    }),
    ("every 20 s until 45 s before the end", |block, _, after| {
        let next = periodic(20_000, (unit(block) * 20_000.0) as u32, after)?;
        (next < END_MS - 45_000).then_some(next)
    }),
    (
        "not until 45 s before the end, then every 5 s",
        |block, _, after| {
            let phase = (unit(block) * 5000.0) as u32;
            periodic(5000, END_MS - 45_000 + phase, after)
        },
    ),
];

#[test]
fn intervals_hold_the_truth() {
    let mut failures = Vec::new();
    for (name, touch) in PROGRAMS {
        let (held, low, high, truth) = coverage(touch);
        println!(
            "{name}: {:.0} %, {low:.2} to {high:.2}, in truth {truth:.2}",
            held * 100.0
        );
        // The runs are seeded, so they are the same everywhere.
        if held < 0.9 {
            failures.push(name);
        }
    }
    assert!(failures.is_empty(), "{failures:?}");
}
