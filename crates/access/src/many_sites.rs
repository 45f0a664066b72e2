//! Simulated programs with many sites that share pages. They show how many sites can be classified
//! as stale or not by looks at single words.

use crate::answer::{Evidence, State, answer, note_known};
use crate::looks::{Look, Looks};
use crate::random::Random;
use crate::sites::{LiveBlock, Site, SiteBlocks};
use rustc_hash::FxHashMap;

const OLDER_MS: u32 = 30_000;
const SLOTS: usize = 4;
const STEP_MS: usize = 20;
const CENSUS_MS: u32 = 1000;
const BLOCK_BYTES: u64 = 128;
const DRAWN: u64 = 32;

/// A site. A share of its blocks is never touched; the other blocks are touched periodically.
struct Program {
    bytes: u64,
    stale: f64,
    period_ms: u32,
}

/// Simulates `rounds` periods of the age limit. Returns the state of each site, and the number of
/// looks.
fn states(programs: &[Program], rounds: u32, seed: u64) -> (Vec<State>, u64) {
    let mut random = Random::seeded(seed);
    let mut looks = Looks::default();
    let mut active: Vec<(Look, Option<u32>)> = Vec::new();
    let mut sites = FxHashMap::default();
    let evidence = Evidence {
        has_watchpoints: true,
        is_too_early: false,
    };
    let site_of = |index: usize| Site::Stack(index as u32);
    for now in (0..rounds * OLDER_MS).step_by(STEP_MS) {
        let (ended, going) =
            std::mem::take(&mut active)
                .into_iter()
                .partition(|(look, next): &(Look, _)| {
                    now >= look.until_ms || next.is_some_and(|at| at <= now)
                });
        active = going;
        for (look, next) in Vec::from_iter::<Vec<_>>(ended) {
            looks.ended(&look, next.filter(|at| *at <= look.until_ms), now);
        }
        if now.is_multiple_of(CENSUS_MS) {
            sites = FxHashMap::default();
            for (index, program) in programs.iter().enumerate() {
                let mut blocks = SiteBlocks {
                    live_bytes: program.bytes,
                    live_blocks: program.bytes / BLOCK_BYTES,
                    ..SiteBlocks::default()
                };
                let drawn = (0..DRAWN).map(|_| LiveBlock {
                    address: random.below(program.bytes / BLOCK_BYTES) * BLOCK_BYTES,
                    bytes: BLOCK_BYTES,
                    site: site_of(index),
                    allocated_ms: None,
                });
                blocks.parts[1].drawn = drawn.collect();
                blocks.parts[1].bytes = program.bytes;
                sites.insert(site_of(index), blocks);
            }
            note_known(&mut sites, &mut looks, OLDER_MS, evidence);
        }
        while active.len() < SLOTS {
            let look = looks.choose(&mut sites, OLDER_MS, now, &mut random);
            let Some(look) = look else { break };
            let Site::Stack(index) = look.block.site else {
                continue;
            };
            let program = &programs[index as usize];
            let is_stale = random.share() < program.stale;
            let after_ms = (random.share() * f64::from(program.period_ms)) as u32;
            let next = (!is_stale).then_some(now + 1 + after_ms);
            active.push((look, next));
        }
    }
    for (look, _) in &active {
        looks.ended(look, None, rounds * OLDER_MS);
    }
    let state = |index| {
        let site = site_of(index);
        answer(site, &sites[&site], &looks, OLDER_MS, evidence).state()
    };
    let all = (0..programs.len()).map(site_of);
    let count = all.map(|site| looks.counts(site).0).sum();
    ((0..programs.len()).map(state).collect(), count)
}

/// Large sites must not get all looks at the expense of small sites. One of the sites is half
/// stale, so no number of looks can decide its state.
#[test]
fn small_sites_become_known_beside_large_ones() {
    const MIB: u64 = 1 << 20;
    let program = |bytes, stale| Program {
        bytes,
        stale,
        period_ms: 300,
    };
    let programs = [
        program(400 * MIB, 0.5),
        program(200 * MIB, 1.0),
        program(4 * MIB, 1.0),
        program(4 * MIB, 0.0),
        program(2 * MIB, 1.0),
        program(2 * MIB, 0.0),
    ];
    let expected = [
        State::Stale,
        State::Stale,
        State::InUse,
        State::Stale,
        State::InUse,
    ];
    let mut known = 0;
    for seed in 0..4 {
        let (found, looks) = states(&programs, 13, seed);
        println!("{found:?}, {looks} looks");
        let is_right = |(found, expected): (&State, &State)| {
            assert!(*found == *expected || *found == State::Unknown, "{found:?}");
            usize::from(found == expected)
        };
        known += found[1..]
            .iter()
            .zip(&expected)
            .map(is_right)
            .sum::<usize>();
    }
    // The runs are seeded, so they are the same everywhere.
    assert!(known >= 18, "{known} of 20");
}
