//! Changes that a site's numbers suggest, with the evidence and the possible gain.

use super::access_inferences::of_accesses;
use crate::units::{bytes, counted, duration};
use crate::{Profile, StackFrame};
use memhook_recording::ScoredSite;
use serde::Serialize;
use std::cmp::Reverse;

/// Minimum number of allocations that changing a loop must save.
const LEAST_LOOP_BLOCKS: u64 = 500;
/// Minimum number of allocations that runs of growing blocks must save to be reported.
/// [`LEAST_RUN_BYTES`] is the alternative.
const LEAST_RUN_STEPS: u64 = 64;
/// Copied bytes above which runs of growing blocks are reported regardless of their steps. A block
/// that grows by a constant factor copies this much only if it is large, and then growing it is the
/// right choice.
const LEAST_RUN_BYTES: u64 = 64 << 10;
/// Number of small blocks that must be live at one time to suggest a pool or an arena.
const LEAST_SMALL_BLOCKS: u64 = 1000;
/// Maximum size of a small block. The allocator's header matters up to this size.
const LARGEST_SMALL_BLOCK: u64 = 256;
/// Percentile above which a site is a top one.
const PERCENTILE: f64 = 0.9;

/// Kind of a finding about a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InferenceKind {
    /// Blocks that are allocated and released one after another.
    ShortLivedInLoop,
    /// Each block is outgrown by the next one.
    GrowingRun,
    /// Many small blocks of one size at a time.
    ManySmallBlocks,
    /// The blocks are neither read nor written.
    NeverTouched,
    /// The blocks are written, but not read.
    NeverRead,
    /// The blocks are read, but not written.
    NeverWritten,
    /// Only the first bytes of the blocks are used.
    OverAllocated,
    /// The blocks are allocated long before they are first used.
    AllocatedEarly,
    /// The blocks are held long after they were last used.
    HeldLong,
    /// Threads write to different bytes of one cache line.
    FalseSharing,
    /// Several threads access the blocks.
    SeveralThreads,
    /// The site is among the sites with the most bytes live simultaneously.
    TopBytes,
    /// The site is among the sites with the most allocations.
    TopBlocks,
}

impl InferenceKind {
    /// Returns the kind in words.
    pub fn title(self) -> &'static str {
        match self {
            InferenceKind::ShortLivedInLoop => "short-lived in a loop",
            InferenceKind::GrowingRun => "growing runs of sizes",
            InferenceKind::ManySmallBlocks => "many small blocks of one size",
            InferenceKind::NeverTouched => "never touched",
            InferenceKind::NeverRead => "written and never read",
            InferenceKind::NeverWritten => "read and never written",
            InferenceKind::OverAllocated => "only the first bytes used",
            InferenceKind::AllocatedEarly => "allocated long before the first use",
            InferenceKind::HeldLong => "held long after the last use",
            InferenceKind::FalseSharing => "false sharing",
            InferenceKind::SeveralThreads => "accessed by several threads",
            InferenceKind::TopBytes => "top percentile by bytes",
            InferenceKind::TopBlocks => "top percentile by count",
        }
    }
}

/// Upper bound on the savings of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Gain {
    /// Memory in bytes, at the time when most blocks of the site are live.
    pub bytes: u64,
    /// Product of that memory and the time for which it is held, in byte seconds.
    pub byte_seconds: f64,
    /// Copied bytes.
    pub copied_bytes: u64,
    /// Calls of the allocator: allocations and releases.
    pub calls: u64,
    /// Saved calls per second.
    pub calls_per_s: f64,
    /// Transfers of cache lines between processors.
    pub line_transfers: u64,
}

/// One inference.
#[derive(Clone, Debug, Serialize)]
pub struct Inference {
    /// Kind of finding.
    pub kind: InferenceKind,
    /// The kind in words.
    pub title: &'static str,
    /// Evidence, in words.
    pub evidence: String,
    /// Advice in words. Empty if the site is only notable.
    pub advice: &'static str,
    /// Gain of the change.
    pub gain: Gain,
    /// Allocating function: malloc, new, ...
    pub allocator: String,
    /// The call stack of the site, innermost first.
    pub stack: Vec<StackFrame>,
    /// Index of the stack in the profile.
    #[serde(skip)]
    pub stack_index: u32,
    /// True if the stack is longer than shown, but the unwinder could not follow it.
    pub truncated: bool,
}

/// Finding about one site.
pub(super) struct Finding {
    pub kind: InferenceKind,
    pub evidence: String,
    pub advice: &'static str,
    pub gain: Gain,
}

/// Observed time of a run.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub seconds: f64,
}

impl Seen {
    pub fn calls(self, blocks: u64) -> Gain {
        let calls = 2 * blocks;
        Gain {
            calls,
            calls_per_s: calls as f64 / self.seconds.max(1e-3),
            ..Gain::default()
        }
    }
}

fn short_lived(site: &ScoredSite, seen: Seen) -> Option<Finding> {
    let loops = &site.loops;
    let avoidable = loops.chunks.saturating_sub(loops.most_live);
    if avoidable < LEAST_LOOP_BLOCKS {
        return None;
    }
    let at_a_time = loops.most_live.div_ceil(loops.groups.max(1));
    let mean_ns = loops.lifetimes_ns / u128::from(loops.chunks.max(1));
    let live = match mean_ns {
        // The time is below one step of the target's clock.
        0..1_000_000 => "less than 1 ms".to_owned(),
        _ => duration(mean_ns as f64 / 1e9),
    };
    Some(Finding {
        kind: InferenceKind::ShortLivedInLoop,
        evidence: format!(
            "{} came and went in {}, at most {at_a_time} of them live at a time, each for {live} on average",
            counted(loops.chunks, "block"),
            counted(loops.groups, "burst"),
        ),
        advice: "allocate once before the loop and use it again",
        gain: seen.calls(avoidable),
    })
}

fn growing(site: &ScoredSite, seen: Seen) -> Option<Finding> {
    let runs = &site.runs;
    if runs.steps < LEAST_RUN_STEPS && runs.slow_bytes < LEAST_RUN_BYTES {
        return None;
    }
    let (from, to) = runs.from_to;
    Some(Finding {
        kind: InferenceKind::GrowingRun,
        evidence: format!(
            "in {}, {} gave way to a larger one (from {} to {} in the largest run, {} in the longest)",
            counted(runs.runs, "run"),
            counted(runs.steps, "block"),
            bytes(from),
            bytes(to),
            counted(runs.longest, "step"),
        ),
        advice: match runs.slow_bytes {
            0 => "reserve the final size at the start",
            _ => "reserve the final size at the start, or let it grow by a factor",
        },
        gain: Gain {
            copied_bytes: runs.outgrown_bytes,
            ..seen.calls(runs.steps)
        },
    })
}

/// Returns the memory that glibc's malloc uses in addition to a block's bytes: a header of 8 bytes,
/// steps of 16, and at least 32 (malloc/malloc.c, request2size).
fn overhead(size: u64) -> u64 {
    size.saturating_add(8).next_multiple_of(16).max(32) - size
}

fn small_blocks(site: &ScoredSite, seen: Seen) -> Option<Finding> {
    let is_one_size = site.smallest == site.largest && site.largest <= LARGEST_SMALL_BLOCK;
    if !is_one_size || site.most_live < LEAST_SMALL_BLOCKS {
        return None;
    }
    let each = overhead(site.largest);
    Some(Finding {
        kind: InferenceKind::ManySmallBlocks,
        evidence: format!(
            "up to {} of {} are live at a time, and glibc's malloc takes {} more for each",
            counted(site.most_live, "block"),
            bytes(site.largest),
            bytes(each),
        ),
        advice: "take them from a pool or an arena",
        gain: Gain {
            bytes: each.saturating_mul(site.most_live),
            byte_seconds: site.lifetimes_ns as f64 / 1e9 * each as f64,
            ..seen.calls(site.chunks)
        },
    })
}

/// Returns the threshold that only the top sites exceed; `None` if there are too few sites.
fn percentile(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    let below = (numbers.len() as f64 * PERCENTILE) as usize;
    numbers.get(below.checked_sub(1)?).copied()
}

/// Infers findings about the sites of a profile. Findings that save the most calls come first, and
/// sites that are only notable come last. `sites` has each site with the index of its stack, the
/// name of its allocating function, and a flag for a cut stack.
pub(crate) fn inferences(
    profile: &Profile,
    sites: &[(u32, &ScoredSite, &str, bool)],
) -> Vec<Inference> {
    let seen = Seen {
        seconds: profile.to_ns.saturating_sub(profile.from_ns) as f64 / 1e9,
    };
    let most_bytes = percentile(sites.iter().map(|site| site.1.most_live_bytes));
    let most_blocks = percentile(sites.iter().map(|site| site.1.chunks));
    let mut found = Vec::new();
    for &(stack, site, allocator, truncated) in sites {
        let top = |kind, is: u64, above: Option<u64>, evidence: String| {
            above.filter(|&above| is > above).map(|_| Finding {
                kind,
                evidence,
                advice: "",
                gain: Gain::default(),
            })
        };
        let all = [
            short_lived(site, seen),
            growing(site, seen),
            small_blocks(site, seen),
            top(
                InferenceKind::TopBytes,
                site.most_live_bytes,
                most_bytes,
                format!("up to {} are live at a time", bytes(site.most_live_bytes)),
            ),
            top(
                InferenceKind::TopBlocks,
                site.chunks,
                most_blocks,
                format!("it allocates {}", counted(site.chunks, "block")),
            ),
        ];
        let all = all.into_iter().flatten();
        let largest = |kind| match kind {
            InferenceKind::TopBytes => site.most_live_bytes,
            InferenceKind::TopBlocks => site.chunks,
            _ => 0,
        };
        let all = all.chain(of_accesses(site, seen));
        let all = all.map(|finding| (largest(finding.kind), finding));
        found.extend(all.map(|(amount, finding)| {
            (
                amount,
                Inference {
                    kind: finding.kind,
                    title: finding.kind.title(),
                    evidence: finding.evidence,
                    advice: finding.advice,
                    gain: finding.gain,
                    allocator: allocator.to_owned(),
                    stack: profile.stack(stack),
                    stack_index: stack,
                    truncated,
                },
            )
        }));
    }
    found.sort_by_key(|(amount, inference)| {
        let stands_out = inference.advice.is_empty().then_some(inference.kind as u8);
        let calls = Reverse(inference.gain.calls);
        let bytes = Reverse(inference.gain.bytes);
        (
            stands_out,
            calls,
            bytes,
            Reverse(*amount),
            inference.stack_index,
        )
    });
    found.into_iter().map(|(_, inference)| inference).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_recording::{GrowingRuns, Loops};

    fn kinds(sites: &[ScoredSite]) -> Vec<(InferenceKind, u32)> {
        let profile = Profile {
            to_ns: 2_000_000_000,
            stacks: vec![Vec::new(); sites.len()],
            ..Profile::default()
        };
        let sites: Vec<_> = (0u32..).zip(sites).collect();
        let sites: Vec<_> = sites
            .into_iter()
            .map(|(stack, site)| (stack, site, "malloc", false))
            .collect();
        let found = inferences(&profile, &sites).into_iter();
        found.map(|one| (one.kind, one.stack_index)).collect()
    }

    #[test]
    fn thresholds() {
        let looping = |chunks| ScoredSite {
            chunks,
            loops: Loops {
                groups: 1,
                chunks,
                most_live: 1,
                ..Loops::default()
            },
            ..ScoredSite::default()
        };
        assert_eq!(
            kinds(&[looping(501)]),
            [(InferenceKind::ShortLivedInLoop, 0)]
        );
        assert_eq!(kinds(&[looping(500)]), []);
        let growing = |steps, slow_bytes| {
            let mut runs = GrowingRuns::default();
            (runs.steps, runs.slow_bytes) = (steps, slow_bytes);
            // Growth by a factor copies much, and does no harm.
            runs.outgrown_bytes = slow_bytes.saturating_add(1 << 30);
            ScoredSite {
                runs,
                ..ScoredSite::default()
            }
        };
        assert_eq!(kinds(&[growing(64, 0)]), [(InferenceKind::GrowingRun, 0)]);
        assert_eq!(
            kinds(&[growing(3, 65_536)]),
            [(InferenceKind::GrowingRun, 0)]
        );
        assert_eq!(kinds(&[growing(63, 65_535)]), []);
        let small = |most_live, smallest, largest| ScoredSite {
            most_live,
            smallest,
            largest,
            ..ScoredSite::default()
        };
        assert_eq!(
            kinds(&[small(1000, 256, 256)]),
            [(InferenceKind::ManySmallBlocks, 0)]
        );
        for other in [
            small(999, 24, 24),
            small(1000, 257, 257),
            small(1000, 23, 24),
        ] {
            assert_eq!(kinds(&[other]), []);
        }
    }

    /// Of ten sites, the first is in the top tenth. A single site has no percentile, and among
    /// equal sites none stands out.
    #[test]
    fn top_percentiles() {
        let sites = |numbers: &[u64]| -> Vec<ScoredSite> {
            let site = |&chunks: &u64| ScoredSite {
                chunks,
                most_live_bytes: 10 * chunks,
                ..ScoredSite::default()
            };
            numbers.iter().map(site).collect()
        };
        let top = |numbers| kinds(&sites(numbers));
        assert_eq!(
            top(&[3, 9, 1, 2, 4, 5, 6, 7, 8, 10]),
            [(InferenceKind::TopBytes, 9), (InferenceKind::TopBlocks, 9)]
        );
        // The largest number comes first.
        let numbers: Vec<u64> = (1..=20).collect();
        let at = |kind, sites: [u32; 2]| sites.map(|site| (kind, site));
        let expected = [
            at(InferenceKind::TopBytes, [19, 18]),
            at(InferenceKind::TopBlocks, [19, 18]),
        ];
        assert_eq!(top(&numbers), expected.concat());
        assert_eq!(top(&[5]), []);
        assert_eq!(top(&[5; 12]), []);
        assert_eq!(
            top(&[1, 5]),
            [(InferenceKind::TopBytes, 1), (InferenceKind::TopBlocks, 1)]
        );
    }

    #[test]
    fn what_malloc_adds() {
        // malloc(3): 24 bytes fit into the smallest chunk.
        assert_eq!([1, 24, 25, 40, 64].map(overhead), [31, 8, 23, 8, 16]);
    }
}
