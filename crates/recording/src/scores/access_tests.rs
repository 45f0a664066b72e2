//! Usage and useful lifetime compared with a slow reference implementation of the formulas, on
//! random programs.

use super::*;
use crate::scores::StackKinds;
use memhook_abi::Accesses;
use memhook_ledger::{BlockOf, ReleaseBy};
use proptest::prelude::*;

const END_NS: u64 = 1_000_000;

/// One block with its accesses: time, offset, bytes, and true for writes.
#[derive(Clone, Debug)]
struct Block {
    site: u32,
    start_ns: u64,
    end_ns: u64,
    size: u64,
    accesses: Vec<(u64, u64, u64, bool)>,
}

impl Block {
    /// Returns the accesses as a target reports them.
    fn told(&self, address: u64) -> Accesses {
        let all = || self.accesses.iter();
        let writes = all().filter(|access| access.3).count() as u64;
        Accesses {
            address,
            first_ns: all().map(|access| access.0).min().unwrap_or(0),
            last_ns: all().map(|access| access.0).max().unwrap_or(0),
            low: all().map(|access| access.1).min().unwrap_or(0),
            high: all().map(|access| access.1 + access.2).max().unwrap_or(0),
            reads: self.accesses.len() as u64 - writes,
            writes,
            by_several: false,
            false_shares: 0,
        }
    }

    /// Computes C_BytesAccessed times U_c of the paper.
    fn used(&self) -> u64 {
        let is_read = self.accesses.iter().any(|access| !access.3);
        let is_written = self.accesses.iter().any(|access| access.3);
        let is_zeroed = self.site == 0;
        if !is_read || (!is_written && is_zeroed) {
            return 0;
        }
        let bytes = self.accesses.iter().flat_map(|a| [a.1, a.1 + a.2 - 1]);
        bytes.clone().max().unwrap() - bytes.min().unwrap() + 1
    }

    /// Computes C_{active life} / C_l of the paper.
    fn active(&self) -> f64 {
        let times = || self.accesses.iter().map(|access| access.0);
        let (Some(first), Some(last)) = (times().min(), times().max()) else {
            return 0.0;
        };
        (last - first) as f64 / (self.end_ns.min(END_NS) - self.start_ns) as f64
    }
}

fn blocks() -> impl Strategy<Value = Vec<Block>> {
    let access = (0.0..1.0f64, 0.0..1.0f64, 1..9u64, any::<bool>());
    let block = (
        0..3u32,
        0..900_000u64,
        2..2_000_000u64,
        1..500u64,
        prop::collection::vec(access, 0..4),
    );
    let block = block.prop_map(|(site, start_ns, lifetime, size, accesses)| {
        let end_ns = start_ns + lifetime;
        let until = end_ns.min(END_NS);
        let accesses = accesses.into_iter().map(|(when, place, bytes, is_write)| {
            let offset = (place * size as f64) as u64;
            let bytes = bytes.min(size - offset);
            let at = start_ns + (when * (until - start_ns) as f64) as u64;
            (at, offset, bytes, is_write)
        });
        Block {
            site,
            start_ns,
            end_ns,
            size,
            accesses: accesses.collect(),
        }
    });
    prop::collection::vec(block, 1..60).prop_map(|mut blocks| {
        // Events with equal times would be spread out in time, so each event gets its own time. No
        // access is removed.
        let mut taken = std::collections::HashSet::new();
        for block in &mut blocks {
            while !taken.insert(block.start_ns) {
                block.start_ns -= block.start_ns.min(1);
                if block.start_ns == 0 {
                    block.start_ns = 2_000_000;
                }
            }
            while !taken.insert(block.end_ns) {
                block.end_ns += 1;
            }
        }
        blocks.retain(|block| block.start_ns < END_NS);
        blocks
    })
}

fn scored(blocks: &[Block]) -> ScoredRun {
    let stacks = StackKinds {
        telling: (100..103).collect(),
        zeroing: [100].into_iter().collect(),
        ..StackKinds::default()
    };
    let mut scorer = Scorer::new(&ScoreOptions::default(), END_NS, stacks);
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (number, block) in blocks.iter().enumerate() {
        events.push((block.start_ns, true, number));
        if block.end_ns < END_NS {
            events.push((block.end_ns, false, number));
        }
    }
    events.sort_unstable();
    for (ns, is_allocation, number) in events {
        let block = &blocks[number];
        let address = 16 + number as u64 * 16;
        let of = BlockOf {
            site: block.site,
            thread: 1,
            address,
            size: block.size,
            time_ns: ns,
        };
        scorer.at(ns);
        if is_allocation {
            scorer.allocated(&of, block.site + 100);
        } else {
            let carried = number as u32 + 1;
            scorer.accesses(carried, &block.told(address));
            let by = ReleaseBy {
                stack: 0,
                thread: 1,
                by_realloc: false,
                accesses: carried,
            };
            scorer.released(&of, Some(by));
        }
    }
    for (number, block) in blocks.iter().enumerate() {
        if block.end_ns >= END_NS {
            scorer.live_accesses(&block.told(16 + number as u64 * 16));
        }
    }
    scorer.finish(END_NS)
}

proptest! {
    #[test]
    fn scores_are_those_of_the_formulas(blocks in blocks()) {
        let run = scored(&blocks);
        if blocks.iter().all(|block| block.accesses.is_empty()) {
            // No module reports accesses.
            prop_assert_eq!((run.usage(), run.useful_lifetime()), (None, None));
            return Ok(());
        }
        let (mut usages, mut useful) = (Vec::new(), Vec::new());
        for site in &run.sites {
            let chunks: Vec<&Block> = blocks.iter().filter(|b| b.site + 100 == site.stack).collect();
            let sums = site.accesses.as_ref().unwrap();
            prop_assert_eq!(sums.chunks, chunks.len() as u64);
            let used: u64 = chunks.iter().map(|chunk| chunk.used()).sum();
            let all: u64 = chunks.iter().map(|chunk| chunk.size).sum();
            let usage = used as f64 / all as f64;
            prop_assert!((sums.usage().unwrap() - usage).abs() < 1e-9);
            let active: f64 = chunks.iter().map(|chunk| chunk.active()).sum();
            let mean = active / chunks.len() as f64;
            let is = sums.useful_lifetime().unwrap();
            prop_assert!((is - mean).abs() < 1e-9, "{} for {}", is, mean);
            usages.push(usage);
            useful.push(mean);
        }
        let mean = |scores: &[f64]| scores.iter().product::<f64>().powf(1.0 / scores.len() as f64);
        if !blocks.is_empty() {
            prop_assert!((run.usage().unwrap() - mean(&usages)).abs() < 1e-9);
            prop_assert!((run.useful_lifetime().unwrap() - mean(&useful)).abs() < 1e-9);
        }
    }
}

/// A site whose module does not report accesses has no access scores, even if other modules access
/// its blocks.
#[test]
fn only_modules_that_tell_are_scored() {
    let block = Block {
        site: 7,
        start_ns: 10,
        end_ns: 20,
        size: 8,
        accesses: vec![(12, 0, 8, true), (15, 0, 8, false)],
    };
    let run = scored(&[block]);
    assert_eq!(run.sites[0].accesses, None);
    assert_eq!((run.usage(), run.useful_lifetime()), (None, None));
}
