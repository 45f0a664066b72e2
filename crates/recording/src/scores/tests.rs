//! Compares the scorer with a slow reference implementation of the formulas, on random programs whose events arrive out
//! of order.

use super::*;
use memhook_ledger::{BlockOf, ReleaseBy};
use proptest::prelude::*;

/// A block, with times in nanoseconds. If `end_ns` is after the end of the run, the block is never released.
#[derive(Clone, Copy, Debug)]
struct Block {
    site: u32,
    thread: u16,
    start_ns: u64,
    end_ns: u64,
    size: u64,
}

/// Time of a pass of the attacher.
const PASS_NS: u64 = 1_000_000;
const PASSES: u64 = 50;
const END_NS: u64 = PASSES * PASS_NS;

/// Returns the lifetime score of a site by the formulas of the paper: sorts the chunks by
/// allocation, divides the mean lifetime of each group by the lifetime of the group, and returns
/// the mean of these scores.
fn reference(blocks: &[Block], site: u32, group_ns: u64) -> (f64, u64) {
    let mut chunks: Vec<(u64, u64)> = blocks
        .iter()
        .filter(|block| block.site == site)
        .map(|block| (block.start_ns, block.end_ns.min(END_NS)))
        .collect();
    chunks.sort_unstable();
    let mut groups: Vec<Vec<(u64, u64)>> = Vec::new();
    for chunk in chunks {
        match groups.last_mut() {
            Some(group) if chunk.0 - group[group.len() - 1].0 <= group_ns => group.push(chunk),
            _ => groups.push(vec![chunk]),
        }
    }
    let scores = groups.iter().map(|group| {
        let first = group.iter().map(|(start, _)| *start).min().unwrap();
        let last = group.iter().map(|(_, end)| *end).max().unwrap();
        let lifetimes: u64 = group.iter().map(|(start, end)| end - start).sum();
        lifetimes as f64 / (group.len() as f64 * (last - first) as f64)
    });
    let scores: Vec<f64> = scores.collect();
    (
        scores.iter().sum::<f64>() / scores.len() as f64,
        groups.len() as u64,
    )
}

/// Returns the scores for these blocks, which are reported pass by pass. Within each pass, the threads are reported one
/// after the other, in either order.
fn scored(blocks: &[Block], options: &ScoreOptions) -> ScoredRun {
    let mut scorer = Scorer::new(options, END_NS, Default::default());
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (number, block) in blocks.iter().enumerate() {
        events.push((block.start_ns, true, number));
        if block.end_ns < END_NS {
            events.push((block.end_ns, false, number));
        }
    }
    events.sort_unstable();
    for pass in 0..PASSES {
        let in_pass = |ns: u64| ns / PASS_NS == pass;
        for thread in 0..4u16 {
            let thread = if pass % 2 == 0 { thread } else { 3 - thread };
            // The allocating thread releases its blocks, so that its events come in order.
            let of_thread = |number: usize| blocks[number].thread == thread;
            for &(ns, is_allocation, number) in
                events.iter().filter(|e| in_pass(e.0) && of_thread(e.2))
            {
                let block = &blocks[number];
                let of = BlockOf {
                    site: block.site,
                    thread,
                    address: 16 + number as u64 * 16,
                    size: block.size,
                    time_ns: ns / PASS_NS * PASS_NS,
                };
                scorer.at(ns);
                if is_allocation {
                    scorer.allocated(&of, block.site + 100);
                } else {
                    scorer.released(
                        &of,
                        Some(ReleaseBy {
                            stack: 0,
                            thread,
                            by_realloc: false,
                            accesses: 0,
                        }),
                    );
                }
            }
        }
        scorer.end_pass((pass + 1) * PASS_NS);
    }
    scorer.finish(END_NS)
}

fn blocks() -> impl Strategy<Value = Vec<Block>> {
    // Bursts: the start of a block is drawn from few values, so that many blocks are close to each
    // other.
    let block = (
        0..3u32,
        0..4u16,
        0..12u64,
        0..400_000u64,
        0..4u32,
        1..20_000_000u64,
        1..5000u64,
    );
    let block = block.prop_map(|(site, thread, burst, within, scale, lifetime, size)| {
        let start_ns = burst * 4_000_000 + within;
        Block {
            site,
            thread,
            start_ns,
            end_ns: start_ns + (lifetime >> (scale * 4)).max(1),
            size,
        }
    });
    prop::collection::vec(block, 1..120).prop_map(|mut blocks| {
        // Simultaneous events would be moved apart, so each gets its own time.
        let mut taken = std::collections::HashSet::new();
        for block in &mut blocks {
            while !taken.insert(block.start_ns) {
                block.start_ns += 1;
            }
            block.end_ns = block.end_ns.max(block.start_ns + 1);
            while !taken.insert(block.end_ns) {
                block.end_ns += 1;
            }
        }
        blocks
    })
}

proptest! {
    #[test]
    fn scores_are_those_of_the_formulas(blocks in blocks(), permille in 0..100u64) {
        let options = ScoreOptions { group: GroupLimit::Part(permille as f64 / 1000.0), max_chunks: 1000 };
        let run = scored(&blocks, &options);
        prop_assert_eq!(run.group_ns, (END_NS as f64 * (permille as f64 / 1000.0)) as u64);
        let mut expected = Vec::new();
        for site in &run.sites {
            let (score, groups) = reference(&blocks, site.stack - 100, run.group_ns);
            prop_assert!((site.lifetime - score).abs() < 1e-9, "{} for {}", site.lifetime, score);
            prop_assert_eq!(site.groups, groups);
            let of_site = || blocks.iter().filter(|block| block.site + 100 == site.stack);
            prop_assert_eq!(site.chunks, of_site().count() as u64);
            prop_assert_eq!(site.bytes, of_site().map(|block| block.size).sum::<u64>());
            let mut kept: Vec<_> = site.kept.chunks.iter().map(|c| (c.start_ns, c.end_ns, c.size)).collect();
            kept.sort_unstable();
            let mut chunks: Vec<_> = of_site().map(|b| (b.start_ns, b.end_ns.min(END_NS), b.size)).collect();
            chunks.sort_unstable();
            prop_assert_eq!(kept, chunks);
            expected.push(score);
        }
        let mean = expected.iter().product::<f64>().powf(1.0 / expected.len() as f64);
        prop_assert!((run.lifetime().unwrap() - mean).abs() < 1e-9);
        let average = expected.iter().sum::<f64>() / expected.len() as f64;
        let squares = expected.iter().map(|score| (score - average).powi(2));
        let variance = squares.sum::<f64>() / expected.len() as f64;
        prop_assert!((run.lifetime_variance().unwrap() - variance).abs() < 1e-9);
    }
}

/// A loop of the shortest blocks has the same results whether it is one folded event or single events.
#[test]
fn folded_pairs_are_a_loop() {
    let block = BlockOf {
        site: 0,
        thread: 1,
        address: 16,
        size: 64,
        time_ns: 0,
    };
    let by = Some(ReleaseBy {
        stack: 0,
        thread: 1,
        by_realloc: false,
        accesses: 0,
    });
    let options = ScoreOptions {
        max_chunks: 300,
        ..ScoreOptions::default()
    };
    let scorer = || Scorer::new(&options, END_NS, Default::default());
    let mut folded = scorer();
    folded.at(5 * PASS_NS);
    folded.pairs(&block, 100, 1000);
    let mut single = scorer();
    single.at(5 * PASS_NS);
    for _ in 0..1000 {
        single.allocated(&block, 100);
        single.released(&block, by);
    }
    let (folded, single) = (folded.finish(END_NS), single.finish(END_NS));
    assert_eq!(folded, single);
    let site = &folded.sites[0];
    // There are 1000 chunks of 1 ns in 1999 ns.
    assert!((site.lifetime - 1.0 / 1999.0).abs() < 1e-12);
    assert_eq!((site.groups, site.chunks, site.most_live), (1, 1000, 1));
    assert_eq!((site.loops.chunks, site.loops.most_live), (1000, 1));
    assert_eq!((site.kept.step, site.kept.chunks.len()), (4, 250));
}

/// Scores reallocations of one thread, one after the other. A step is a site and the size of the
/// new chunk; 0 releases the chunk.
fn reallocated(steps: impl Iterator<Item = (u32, u64)>) -> ScoredRun {
    exchanged(steps, true)
}

/// Like the function above, but with `free` and a `realloc` of a null pointer in place of each `realloc`.
fn exchanged(steps: impl Iterator<Item = (u32, u64)>, by_realloc: bool) -> ScoredRun {
    let stacks = StackKinds {
        reallocs: [100, 101].into_iter().collect(),
        ..StackKinds::default()
    };
    let mut scorer = Scorer::new(&ScoreOptions::default(), END_NS, stacks);
    let by = Some(ReleaseBy {
        stack: 0,
        thread: 1,
        by_realloc,
        accesses: 0,
    });
    let mut last: Option<BlockOf> = None;
    let mut time_ns = 0;
    for (site, size) in steps {
        time_ns += 5000;
        scorer.at(time_ns);
        if let Some(block) = last.take() {
            scorer.released(&block, by);
        }
        if size > 0 {
            let block = BlockOf {
                site,
                thread: 1,
                address: 16,
                size,
                time_ns: 0,
            };
            scorer.allocated(&block, 100 + site);
            last = Some(block);
        }
    }
    scorer.at(time_ns + 5000);
    scorer.finish(END_NS)
}

/// Two call stacks take turns extending one list. Each of the list's chunks is short-lived, but none can be reused.
#[test]
fn chains_of_realloc_are_no_loops() {
    let run = reallocated((1..5000).map(|step| (step as u32 % 2, 16 * step)));
    assert_eq!(run.sites.len(), 2);
    for site in &run.sites {
        assert!(site.lifetime < 0.01, "{}", site.lifetime);
        assert_eq!(site.loops, Loops::default());
        // The chain is as long as both of them together.
        assert_eq!((site.runs.runs, site.runs.longest), (1, 4998));
        assert_eq!(site.runs.steps, 2499);
        assert_eq!(site.runs.from_to, (16, 16 * 4999));
    }
}

/// `free(p); p = realloc(NULL, n)` copies nothing, and one block would suffice. So it is a loop,
/// regardless of how `n` grows.
#[test]
fn what_free_has_released_is_not_exchanged() {
    let run = exchanged((1..5000).map(|step| (0, 16 * step)), false);
    assert_eq!(run.sites[0].runs, GrowingRuns::default());
    assert_eq!(run.sites[0].loops.chunks, 4999);
}

/// Lists of two call stacks are separate chains, even if they grow alternately.
#[test]
fn chains_do_not_mix() {
    let stacks = StackKinds {
        reallocs: [100, 101].into_iter().collect(),
        ..StackKinds::default()
    };
    let mut scorer = Scorer::new(&ScoreOptions::default(), END_NS, stacks);
    let by = Some(ReleaseBy {
        stack: 0,
        thread: 1,
        by_realloc: true,
        accesses: 0,
    });
    let block = |site: u32, step: u64| BlockOf {
        site,
        thread: 1,
        address: 4096 * u64::from(1 + site),
        size: 16 * step * u64::from(1 + site),
        time_ns: 0,
    };
    for step in 1..=100 {
        for site in 0..2 {
            scorer.at(10_000 * step + 5000 * u64::from(site));
            if step > 1 {
                scorer.released(&block(site, step - 1), by);
            }
            scorer.allocated(&block(site, step), 100 + site);
        }
    }
    let run = scorer.finish(END_NS);
    for (number, site) in (1..).zip(&run.sites) {
        assert_eq!((site.runs.runs, site.runs.steps), (1, 99));
        assert_eq!(site.runs.from_to, (16 * number, 1600 * number));
    }
}

/// Each iteration of a loop has a new chain. Two of the iteration's three chunks are steps of the chain.
#[test]
fn chains_in_a_loop_are_a_loop() {
    let sizes = [(0, 10), (0, 20), (1, 30), (1, 0)];
    let run = reallocated((0..1000).flat_map(|_| sizes));
    let [first, last] = &run.sites[..] else {
        panic!("{run:?}");
    };
    assert_eq!((first.chunks, first.loops), (2000, Loops::default()));
    assert_eq!((last.chunks, last.loops.chunks), (1000, 1000));
    // Blocks of one size could have been one block.
    let run = reallocated((0..1000).map(|_| (0, 10)));
    assert_eq!(run.sites[0].loops.chunks, 1000);
}

/// The number of sites exceeds the maximum number of stored chunks, and one site has very many chunks.
#[test]
fn the_number_of_kept_chunks_has_a_bound() {
    let blocks: Vec<Block> = (0..3000u64)
        .map(|number| Block {
            site: if number % 2 == 0 { 0 } else { number as u32 },
            thread: 0,
            start_ns: 10_000 * number + 1,
            end_ns: 10_000 * number + 501,
            size: 1,
        })
        .collect();
    let mut sites = blocks;
    // The ledger numbers its sites in the order in which they appear.
    let mut numbers = std::collections::HashMap::new();
    for block in &mut sites {
        let next = numbers.len() as u32;
        block.site = *numbers.entry(block.site).or_insert(next);
    }
    for max_chunks in [1, 10, 1000] {
        let options = ScoreOptions {
            max_chunks,
            ..ScoreOptions::default()
        };
        let run = scored(&sites, &options);
        assert_eq!(run.sites.len(), 1501);
        let kept: usize = run.sites.iter().map(|site| site.kept.chunks.len()).sum();
        assert!(kept <= max_chunks, "{kept}");
    }
}
