//! Measures how long it takes, with four watched words at a time, to distinguish the untouched
//! sites of a simulated server from sites that are touched occasionally.

use crate::answer::{Evidence, State, answer};
use crate::looks::{Look, Looks, kept_ms};
use crate::random::{Random, mixed};
use crate::sites::{LiveBlock, Site, SiteBlocks};
use rustc_hash::FxHashMap;

const BLOCKS: u64 = 4000;
const BLOCK_BYTES: u64 = 2048;
const OLDER_MS: u32 = 30_000;
const SLOTS: usize = 4;
const STEP_MS: u32 = 20;
/// Time between two answers.
const ANSWER_MS: u32 = 15_000;

/// Milliseconds between touches of each block of a site (0 for never), and the state of the site.
const SITES: [(u32, State); 4] = [
    (0, State::Stale),
    (200, State::InUse),
    (5000, State::InUse),
    (20_000, State::InUse),
];

fn next_touch(site: usize, block: u64, after_ms: u32) -> Option<u32> {
    let period = SITES[site].0;
    (period > 0).then(|| {
        let phase = (mixed(block + 1) % u64::from(period)) as u32;
        let rounds = (after_ms + 1).saturating_sub(phase).div_ceil(period);
        phase + rounds * period
    })
}

fn live(site: usize, random: &mut Random) -> SiteBlocks {
    let mut blocks = SiteBlocks {
        live_bytes: BLOCKS * BLOCK_BYTES,
        live_blocks: BLOCKS,
        ..SiteBlocks::default()
    };
    blocks.parts[1].bytes = blocks.live_bytes;
    let draw = |_| LiveBlock {
        address: random.below(BLOCKS) * BLOCK_BYTES,
        bytes: BLOCK_BYTES,
        site: Site::Stack(site as u32),
        allocated_ms: None,
    };
    blocks.parts[1].drawn = (0..32).map(draw).collect();
    blocks
}

/// Returns the time in seconds after which the state of each site was known for good, and the
/// number of wrong answers.
fn run(seed: u64, seconds: u32) -> ([Option<u32>; SITES.len()], usize) {
    let mut random = Random::seeded(seed);
    let mut looks = Looks::default();
    let mut sites = FxHashMap::default();
    let mut active: Vec<(Look, Option<u32>)> = Vec::new();
    let (mut since, mut wrong) = ([None; SITES.len()], 0);
    for now in (0..seconds * 1000).step_by(STEP_MS as usize) {
        let mut going = Vec::new();
        for (look, next) in active {
            match next {
                Some(at) if at <= now && at <= look.until_ms => looks.ended(&look, Some(at), now),
                _ if now >= look.until_ms => looks.ended(&look, None, now),
                _ => going.push((look, next)),
            }
        }
        active = going;
        if now % 1000 == 0 {
            let all = (0..SITES.len()).map(|at| (Site::Stack(at as u32), live(at, &mut random)));
            sites = all.collect();
            looks.forget_before(now.saturating_sub(kept_ms(OLDER_MS)));
        }
        if now >= OLDER_MS && now % ANSWER_MS == 0 {
            let mut as_of_now = looks.clone();
            for (look, _) in &active {
                as_of_now.ended(look, None, now);
            }
            for (at, (_, truth)) in SITES.iter().enumerate() {
                let evidence = Evidence {
                    has_watchpoints: true,
                    is_too_early: false,
                };
                let site = Site::Stack(at as u32);
                let found = answer(site, &sites[&site], &as_of_now, OLDER_MS, evidence).state();
                wrong += usize::from(found != *truth && found != State::Unknown);
                since[at] = (found == *truth).then_some(since[at].unwrap_or(now / 1000));
            }
        }
        while active.len() < SLOTS
            && let Some(look) = looks.choose(&mut sites, OLDER_MS, now, &mut random)
        {
            let Site::Stack(site) = look.block.site else {
                continue;
            };
            let block = look.block.address / BLOCK_BYTES + u64::from(site) * BLOCKS;
            let next = next_touch(site as usize, block, now);
            active.push((look, next));
        }
    }
    (since, wrong)
}

#[test]
fn sites_are_told_apart() {
    const RUNS: u64 = 6;
    const SECONDS: u32 = 240;
    // Most runs take three times `OLDER_MS`. Improvements must stay below this bound.
    const BOUND_S: u32 = 150;
    let runs: Vec<_> = (0..RUNS).map(|seed| run(seed * 101 + 7, SECONDS)).collect();
    for (at, (period, state)) in SITES.iter().enumerate() {
        let mut times: Vec<u32> = runs
            .iter()
            .map(|run| run.0[at].unwrap_or(SECONDS))
            .collect();
        times.sort_unstable();
        println!(
            "touched each {period} ms ({state:?}): after {} s, {} s in 9 of 10 runs",
            times[times.len() / 2],
            times[times.len() * 9 / 10]
        );
        assert!(times[times.len() / 2] <= BOUND_S, "{period} ms: {times:?}");
    }
    let wrong: usize = runs.iter().map(|run| run.1).sum();
    let answers = RUNS * u64::from((SECONDS * 1000 - OLDER_MS) / ANSWER_MS) * SITES.len() as u64;
    println!("wrong {wrong} times of {answers}");
    assert!(wrong as u64 * 20 <= answers, "{wrong} of {answers}");
}
