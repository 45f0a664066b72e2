//! heaptrack's file is a sequence of allocations and releases, which its reader counts. A profile
//! has only sums, so this module writes a sequence with these sums: for each site, the number of
//! allocations and of temporary allocations, and the bytes live at the peak and at the end. The
//! order of the events differs from that of the run.
//!
//! The reader calls a release temporary if the line before it is the allocation with its index. It
//! also does so if index 0 is released directly after another release, because it reads index 0 as
//! "none". So index 0 is assigned to one block that cannot be mistaken. The last index is a block
//! of no bytes that is never allocated. Its release separates an allocation from a release that is
//! not temporary.
//!
//! heaptrack_gui counts allocations by index, and expects each index to appear first after all
//! lower indices (`ParserData::handleAllocation`). Otherwise it crashes.

use super::heaptrack_lines::{Lines, Lot};
use crate::{Amount, Measures, Point, Profile, ProfileSite};
use std::collections::HashMap;
use std::io::{Result, Write};

/// Number of distinct points in time.
const STEPS: usize = 200;
/// Blocks of one site over time.
pub(super) struct Plan {
    /// Allocated before the peak, live to the end.
    pub(super) kept: Lot,
    /// Live at the peak, not at the end.
    pub(super) peak: Lot,
    /// Allocated after the peak, live at the end.
    pub(super) late: Lot,
    /// Released directly after the allocation.
    pub(super) temporary: Lot,
    /// Released soon, but not immediately.
    pub(super) brief: Lot,
    /// Largest of the temporary and brief blocks, in bytes.
    pub(super) largest: u64,
}

/// Kind of the block with index 0.
#[derive(Clone, Copy, PartialEq)]
enum FirstBlock {
    /// A temporary block.
    Temporary,
    /// A block that lives from the beginning to the end.
    Kept,
    /// A block that is released after the allocation of the block with this index, which has the
    /// same size and site.
    Brief(u32),
    /// One of the `missing_temporary` allocations, which have no bytes. A block with this index
    /// compensates for the allocation's call: it represents two blocks of its site that are live at
    /// the peak and are released after the peak.
    Missing(u32),
    /// No site has a block of these kinds. Index 0 is then a block of no bytes that is never
    /// allocated. heaptrack_print reads such a file; heaptrack_gui may crash.
    Nothing,
}

/// The sequence of events.
pub(super) struct Events {
    /// Size and trace by index.
    infos: Vec<(u64, u32)>,
    first: FirstBlock,
    /// Bytes that the plan allocates earlier than the run did. They reduce the room for brief
    /// blocks below the peak.
    early_bytes: u64,
    /// Index of a block of no bytes. Its release separates an allocation from the release of that
    /// block.
    between: u32,
    plans: Vec<Plan>,
    /// Number of temporary allocations that are live at the peak, and so cannot be released
    /// immediately.
    missing_temporary: u64,
    steps: Vec<Step>,
    peak_bytes: u64,
}

impl Events {
    /// Plans the sequence; `trace_of` gives the trace of a stack.
    pub fn new(profile: &Profile, trace_of: impl Fn(u32) -> u32) -> Events {
        let mut infos = Infos {
            list: vec![(0, 0)],
            known: HashMap::new(),
        };
        let sum = |of: fn(&Measures) -> Amount| {
            let sites = profile.sites.iter();
            sites.map(|site| of(&site.measures).bytes).sum::<u64>()
        };
        let peak_bytes = sum(|m| m.peak);
        let mut events = Events {
            infos: Vec::new(),
            first: FirstBlock::Nothing,
            early_bytes: 0,
            between: 0,
            plans: Vec::new(),
            missing_temporary: 0,
            steps: steps(profile, peak_bytes, sum(|m| m.live)),
            peak_bytes,
        };
        let mut of_missing = 0;
        for site in &profile.sites {
            let trace = trace_of(site.stack);
            let (plan, missing) = plan(site, peak_bytes, |amount| infos.lot(amount, trace));
            if events.missing_temporary == 0 && (missing > 0 || infos.list[0].1 == 0) {
                infos.list[0].1 = trace;
                of_missing = events.plans.len();
            }
            events.missing_temporary += missing;
            events.plans.push(plan);
        }
        events.first = if events.missing_temporary == 0 {
            first_block(&mut events.plans, &mut infos.list, peak_bytes)
        } else {
            let room = peak_bytes.saturating_sub(largest(&events.plans));
            first_missing(&mut events.plans[of_missing].peak, &mut infos.list, room)
        };
        events.early_bytes = match events.first {
            FirstBlock::Kept => infos.list[0].0,
            FirstBlock::Missing(two) => infos.list[two as usize].0,
            _ => 0,
        };
        events.between = infos.list.len() as u32;
        infos.list.push((0, infos.list[0].1));
        events.infos = infos.list;
        events
    }

    /// Writes the lines.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        let mut numbers = vec![None; self.infos.len()];
        numbers[0] = Some(0);
        let mut lines = Lines {
            out: None,
            between: self.between,
            numbers,
            used: 1,
        };
        self.events(&mut lines)?;
        // The block that is never allocated comes last.
        for index in 0..self.infos.len() {
            lines.number(index as u32);
        }
        let mut infos: Vec<_> = lines.numbers.iter().zip(&self.infos).collect();
        infos.sort_unstable_by_key(|(number, _)| **number);
        for (_, (size, trace)) in infos {
            writeln!(out, "a {size:x} {trace:x}")?;
        }
        lines.out = Some(out);
        self.events(&mut lines)
    }

    fn events(&self, lines: &mut Lines) -> Result<()> {
        match self.first {
            FirstBlock::Nothing => {}
            FirstBlock::Kept => lines.add(0)?,
            FirstBlock::Temporary => {
                lines.add(0)?;
                lines.release(0)?;
            }
            FirstBlock::Brief(other) => {
                lines.add(0)?;
                lines.add(other)?;
                lines.release(0)?;
                lines.release(other)?;
            }
            FirstBlock::Missing(two) => {
                lines.add(0)?;
                lines.release(0)?;
                lines.add(two)?;
            }
        }
        let is_one_told = matches!(self.first, FirstBlock::Missing(_));
        for _ in u64::from(is_one_told)..self.missing_temporary {
            lines.release(self.between)?;
            lines.release(0)?;
        }
        let brief_steps = self.brief_steps();
        let (mut up, mut down) = (0.0, 0.0);
        for (step, now) in self.steps.iter().enumerate() {
            lines.time(now.time_ms)?;
            for (plan, &steps) in self.plans.iter().zip(&brief_steps) {
                let share = |step: usize| (step as f64 / steps as f64).min(1.0);
                lines.brief(
                    plan,
                    self.live_before(step),
                    self.peak_bytes - self.early_bytes,
                    share(step)..share(step + 1),
                )?;
            }
            for plan in &self.plans {
                lines.allocate(&plan.kept, up..now.to_peak)?;
                lines.allocate(&plan.peak, up..now.to_peak)?;
            }
            for plan in &self.plans {
                lines.release_lot(&plan.peak, down..now.to_end)?;
            }
            for plan in &self.plans {
                lines.allocate(&plan.late, down..now.to_end)?;
            }
            (up, down) = (now.to_peak, now.to_end);
        }
        if let FirstBlock::Missing(two) = self.first {
            lines.release(self.between)?;
            lines.release(two)?;
        }
        Ok(())
    }

    /// Returns an upper bound on the bytes that are live when a step begins.
    fn live_before(&self, step: usize) -> u64 {
        let Some(before) = step.checked_sub(1) else {
            return 0;
        };
        let share = self.steps[before].to_peak;
        (self.peak_bytes as f64 * share).ceil() as u64
    }

    /// Returns, for each plan, the number of initial steps over which its brief blocks are spread.
    /// In these steps, the sum stays below the peak. Otherwise the reader would find the peak
    /// there.
    fn brief_steps(&self) -> Vec<usize> {
        let live: Vec<u64> = (0..self.steps.len())
            .map(|step| self.live_before(step))
            .collect();
        let steps = |plan: &Plan| {
            let most = self.peak_bytes - self.early_bytes;
            let fits = |live: u64| live.saturating_add(plan.largest) < most;
            live.partition_point(|&live| fits(live)).max(1)
        };
        self.plans.iter().map(steps).collect()
    }
}

/// Takes a block out of a plan, to use index 0 for it alone.
fn first_block(plans: &mut [Plan], infos: &mut [(u64, u32)], peak_bytes: u64) -> FirstBlock {
    if let Some(plan) = plans.iter_mut().find(|plan| plan.temporary.blocks > 0) {
        infos[0] = infos[plan.temporary.take_small(1) as usize];
        return FirstBlock::Temporary;
    }
    let room = peak_bytes.saturating_sub(largest(plans));
    let fits = |plan: &&mut Plan| plan.kept.blocks > 0 && infos[plan.kept.small as usize].0 < room;
    if let Some(plan) = plans.iter_mut().find(fits) {
        infos[0] = infos[plan.kept.take_small(1) as usize];
        return FirstBlock::Kept;
    }
    let fits = |plan: &&mut Plan| {
        let both = plan.largest.saturating_mul(2);
        plan.brief.small_blocks() > 1 && both < peak_bytes
    };
    if let Some(plan) = plans.iter_mut().find(fits) {
        let other = plan.brief.take_small(2);
        infos[0] = infos[other as usize];
        return FirstBlock::Brief(other);
    }
    FirstBlock::Nothing
}

/// Finds the largest brief or temporary block.
fn largest(plans: &[Plan]) -> u64 {
    plans.iter().map(|plan| plan.largest).max().unwrap_or(0)
}

/// Merges two blocks into one block with the bytes of both.
fn first_missing(lot: &mut Lot, infos: &mut Vec<(u64, u32)>, room: u64) -> FirstBlock {
    let (size, trace) = infos[lot.small as usize];
    if lot.small_blocks() < 2 || size * 2 >= room {
        return FirstBlock::Nothing;
    }
    lot.take_small(2);
    infos.push((size * 2, trace));
    FirstBlock::Missing(infos.len() as u32 - 1)
}

/// Sizes and traces, without duplicates.
struct Infos {
    list: Vec<(u64, u32)>,
    known: HashMap<(u64, u32), u32>,
}

impl Infos {
    fn index(&mut self, size: u64, trace: u32) -> u32 {
        *self.known.entry((size, trace)).or_insert_with_key(|&info| {
            self.list.push(info);
            self.list.len() as u32 - 1
        })
    }

    fn lot(&mut self, amount: Amount, trace: u32) -> Lot {
        if amount.blocks == 0 {
            return Lot::default();
        }
        let size = amount.bytes / amount.blocks;
        let large_blocks = amount.bytes % amount.blocks;
        let small = self.index(size, trace);
        Lot {
            small,
            large: match large_blocks {
                0 => small,
                _ => self.index(size + 1, trace),
            },
            blocks: amount.blocks,
            large_blocks,
        }
    }
}

/// Splits the allocations of a site into plans. Also returns the number of temporary allocations
/// that are live at the peak. `most` is an upper bound on the size of a brief block.
fn plan(site: &ProfileSite, most: u64, mut lot: impl FnMut(Amount) -> Lot) -> (Plan, u64) {
    let m = &site.measures;
    let less = |a: Amount, b: Amount| Amount {
        blocks: a.blocks.saturating_sub(b.blocks),
        bytes: a.bytes.saturating_sub(b.bytes),
        ..Amount::default()
    };
    let more = |a: Amount, b: Amount| Amount {
        blocks: a.blocks + b.blocks,
        bytes: a.bytes + b.bytes,
        ..Amount::default()
    };
    let at_most = |a: Amount| Amount {
        blocks: a.blocks,
        bytes: a.bytes.min(a.blocks.saturating_mul(most)),
        ..Amount::default()
    };
    // The format has no blocks from before its start, so these count as allocated in the run.
    let all = more(m.allocated, site.before);
    let kept = kept(m.peak, m.live);
    let held = more(less(m.peak, kept), m.live);
    let missing = (held.blocks + m.temporary.blocks).saturating_sub(all.blocks);
    let missing = missing.min(m.temporary.blocks);
    let temporary = at_most(Amount {
        blocks: m.temporary.blocks - missing,
        bytes: match missing {
            0 => m.temporary.bytes,
            _ => m.temporary.bytes / m.temporary.blocks * (m.temporary.blocks - missing),
        },
        ..Amount::default()
    });
    let brief = at_most(less(all, more(held, temporary)));
    let largest = |a: Amount| a.bytes.div_ceil(a.blocks.max(1));
    let plan = Plan {
        largest: largest(temporary).max(largest(brief)),
        kept: lot(kept),
        peak: lot(less(m.peak, kept)),
        late: lot(less(m.live, kept)),
        temporary: lot(temporary),
        brief: lot(brief),
    };
    (plan, missing)
}

/// Returns the largest possible number of blocks that can be live at both the peak and the end,
/// with sizes that leave some bytes for the other blocks.
fn kept(peak: Amount, live: Amount) -> Amount {
    let blocks = peak.blocks.min(live.blocks);
    let fits =
        |fewer: Amount, more: Amount| fewer.blocks < more.blocks && fewer.bytes <= more.bytes;
    if peak == live || fits(peak, live) {
        return peak;
    }
    if fits(live, peak) {
        return live;
    }
    let one_less = blocks.saturating_sub(1);
    let bytes = u128::from(peak.bytes.min(live.bytes)) * u128::from(one_less);
    Amount {
        blocks: one_less,
        bytes: (bytes / u128::from(blocks.max(1))) as u64,
        ..Amount::default()
    }
}

/// A point in time.
#[derive(Clone, Copy)]
struct Step {
    time_ms: u64,
    /// Position on the way up to the peak, as a fraction of the bytes at the peak.
    to_peak: f64,
    /// Position on the way from the peak to the end, as a share of the bytes.
    to_end: f64,
}

/// Returns the steps of a curve that follows the timeline as closely as possible while it only
/// rises up to the peak and only falls after it.
fn steps(profile: &Profile, peak_bytes: u64, end_bytes: u64) -> Vec<Step> {
    let points = &profile.timeline;
    let peak_ns = profile
        .peak_ns
        .clamp(profile.from_ns, profile.to_ns.max(profile.from_ns));
    let ms = |ns: u64| ns.saturating_sub(profile.from_ns) / 1_000_000;
    let mut steps: Vec<Step> = Vec::new();
    let (mut to_peak, mut to_end) = (0.0_f64, 0.0_f64);
    let chosen = points.iter().step_by(points.len().div_ceil(STEPS).max(1));
    let (before, after): (Vec<&Point>, Vec<&Point>) = chosen
        .filter(|p| (profile.from_ns..profile.to_ns).contains(&p.time_ns))
        .partition(|p| p.time_ns < peak_ns);
    for point in before {
        let share = point.live.bytes as f64 / peak_bytes.max(1) as f64;
        to_peak = to_peak.max(share.min(1.0));
        steps.push(Step {
            time_ms: ms(point.time_ns),
            to_peak,
            to_end,
        });
    }
    steps.push(Step {
        time_ms: ms(peak_ns),
        to_peak: 1.0,
        to_end,
    });
    for point in after {
        let gone = peak_bytes as f64 - point.live.bytes as f64;
        let share = if peak_bytes > end_bytes {
            gone / (peak_bytes - end_bytes) as f64
        } else {
            (point.time_ns - peak_ns) as f64 / (profile.to_ns - peak_ns).max(1) as f64
        };
        to_end = to_end.max(share.clamp(0.0, 1.0));
        steps.push(Step {
            time_ms: ms(point.time_ns),
            to_peak: 1.0,
            to_end,
        });
    }
    steps.push(Step {
        time_ms: ms(profile.to_ns),
        to_peak: 1.0,
        to_end: 1.0,
    });
    steps
}
