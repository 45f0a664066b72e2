//! A run, or a window of it, with names. Every exported format is generated from this profile.

use crate::{
    AllocatorTime, Amount, ArenaResident, CallStacks, CustomScore, Leaks, LiveBounds, Measure,
    ProfileFrame, ProfileModule, ProfileScores, ReportTotals, ResidentPoint, RunScores, Sampling,
    SourceLines, StackFrame, StaleHistory, Target, UnseenTime,
};
use memhook_ledger::TimeTaken;
use memhook_recording::AddressMap;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

pub use memhook_recording::HISTOGRAM_BUCKETS;

/// One run, or a window of it. Indices refer to the profile's own tables.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Profile {
    /// Types of the blocks that stacks allocate, by stack index, if they were looked up
    /// ([`crate::recorded::add_types`]).
    #[serde(skip)]
    pub types: BTreeMap<u32, String>,
    /// The process.
    pub target: Target,
    /// Special reason for making this profile, if any.
    #[serde(skip)]
    pub occasion: Option<String>,
    /// Milliseconds since 1970 at the attach.
    pub began_unix_ms: u64,
    /// Start of the covered time in nanoseconds since the attach.
    pub from_ns: u64,
    /// End of the covered time. The measure "live" refers to this moment.
    pub to_ns: u64,
    /// True if the covered time is only a part of the recorded time.
    #[serde(skip)]
    pub is_part: bool,
    /// Times without any seen event, in order, up to `to_ns`.
    pub gaps: Vec<UnseenTime>,
    /// Time at which the most bytes were live, in nanoseconds since the attach.
    pub peak_ns: u64,
    /// Maximum number of frames collected from each call stack.
    pub depth: u32,
    /// True if the process was traced from its first instruction.
    #[serde(skip)]
    pub from_start: bool,
    /// Set if allocations were sampled. Blocks and bytes are then estimates.
    pub sampling: Option<Sampling>,
    /// Sums of the window.
    pub totals: ReportTotals,
    /// Modules of the frames.
    pub modules: Vec<ProfileModule>,
    /// Indices of modules whose names were not looked up. A reader that has the modules' files adds
    /// the names later.
    #[serde(skip)]
    pub unnamed_modules: BTreeSet<u32>,
    /// Distinct frames. An address with inlined functions has several frames, innermost first. All
    /// but the last of them are marked as inlined.
    pub frames: Vec<ProfileFrame>,
    /// Distinct call stacks: indices of frames, innermost first. If the outermost frames are
    /// missing, the last index is `cut_root`, so that no other function is mistaken for the root.
    pub stacks: Vec<Vec<u32>>,
    /// The frame that represents missing frames, if any are missing: [`CUT_ROOT`](crate::CUT_ROOT).
    pub cut_root: Option<u32>,
    /// Activity of each allocation site. There is one entry for each stack, kind of allocation and
    /// thread.
    pub sites: Vec<ProfileSite>,
    /// Live blocks at the end, by size in bytes, in ascending order.
    pub live_sizes: Vec<(u64, Amount)>,
    /// Allocations by size in bytes: (bucket, amount), sorted; see [`HISTOGRAM_BUCKETS`].
    pub allocated_sizes: Vec<(u8, Amount)>,
    /// Released blocks by lifetime in nanoseconds: (bucket, amount), sorted.
    pub lifetimes: Vec<(u8, Amount)>,
    /// True if stacks of releases were recorded.
    #[serde(skip)]
    pub has_release_stacks: bool,
    /// Blocks by allocating and releasing stack; empty unless release stacks were recorded.
    pub flows: Vec<Flow>,
    /// Releases of each stack; empty unless release stacks were recorded.
    pub releases: Vec<Released>,
    /// Time that the window's allocations spent in the allocator, if calls were timed.
    #[serde(skip)]
    pub allocator_time: Option<AllocatorTime>,
    /// Result of a search for unreachable blocks at the end of the run, if there was one.
    #[serde(skip)]
    pub leaks: Option<Leaks>,
    /// The heap over time.
    pub timeline: Vec<Point>,
    /// Resident memory over time, next to the heap.
    #[serde(skip)]
    pub resident: Vec<ResidentPoint>,
    /// Bytes over the run by the time since their last use, if `attach --stale` measured it.
    #[serde(skip)]
    pub aging: Option<StaleHistory>,
    /// Live bytes of the largest sites over time.
    pub series: Vec<Series>,
    /// Changes of all sites over time, sorted by timeline point.
    #[serde(skip)]
    pub changes: Vec<SitePoint>,
    /// Addresses of live blocks at some moments of the run, the last of which is the end. Empty
    /// unless the user asked for them. Sites are indices into [`Profile::sites`].
    #[serde(skip)]
    pub addresses: Vec<AddressMap>,
    /// Growth since the start, if the memory was examined at the start.
    #[serde(skip)]
    pub looks: Option<Box<crate::TwoLooks>>,
    /// Arenas of glibc's malloc at the end, if the recording has an account of the resident memory.
    #[serde(skip)]
    pub arenas: Vec<ArenaResident>,
    /// Scores of the sites, if the user asked for them.
    #[serde(skip)]
    pub scores: Option<ProfileScores>,
    /// Set if the profile contains two runs: this run, followed by the sites of an older run.
    #[serde(skip)]
    pub compared: Option<Compared>,
    /// Lines of source files around the lines of frames, if the files were found.
    #[serde(skip)]
    pub sources: Vec<SourceLines>,
}

/// The older of two runs in one profile.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// Name of the process.
    pub name: String,
    /// Id of the process.
    pub pid: i32,
    /// Length of the run in seconds.
    pub seconds: f64,
    /// Scores of the run, if it was scored.
    pub scores: Option<RunScores>,
    /// Values of formulas in the run.
    pub custom: Vec<CustomScore>,
    /// Index of the run's first site.
    pub first_site: u32,
    /// The run's heap over time.
    pub timeline: Vec<ComparedPoint>,
}

/// Live memory of the older of two runs at one time.
#[derive(Clone, Debug, Serialize)]
pub struct ComparedPoint {
    /// Nanoseconds since the start of the covered time.
    pub after_ns: u64,
    /// Live bytes.
    pub bytes: u64,
    /// Live blocks.
    pub blocks: u64,
}

impl Profile {
    /// Returns the module of a frame, if the reader has to look up the frame's name in the module's
    /// file.
    pub(crate) fn unnamed_module(&self, frame: &ProfileFrame) -> Option<&ProfileModule> {
        let module = frame.module.filter(|m| self.unnamed_modules.contains(m))?;
        let is_unnamed = frame.frame.function.is_none();
        self.modules.get(module as usize).filter(|_| is_unnamed)
    }

    /// Keeps only some sites, and renumbers the references to them.
    pub(crate) fn keep_sites(&mut self, is_kept: impl Fn(&ProfileSite) -> bool) {
        let mut next = 0;
        let numbers: Vec<Option<u32>> = self
            .sites
            .iter()
            .map(|site| {
                let number = is_kept(site).then_some(next);
                next += u32::from(number.is_some());
                number
            })
            .collect();
        let renumber = |site: &mut u32| match numbers.get(*site as usize) {
            Some(&Some(number)) => {
                *site = number;
                true
            }
            _ => false,
        };
        let mut kept = numbers.iter();
        self.sites
            .retain(|_| kept.next().is_some_and(Option::is_some));
        self.changes.retain_mut(|change| renumber(&mut change.site));
        for map in &mut self.addresses {
            map.cells.retain_mut(|cell| renumber(&mut cell.site));
        }
    }

    /// Keeps only the sites of some stacks.
    pub(crate) fn keep_stacks(&mut self, is_kept: impl Fn(u32) -> bool) {
        self.keep_sites(|site| is_kept(site.stack));
        self.flows.retain(|flow| is_kept(flow.allocated_by));
        if let Some(scores) = &mut self.scores {
            scores.sites.retain(|site| is_kept(site.stack));
            scores.inferences.retain(|one| is_kept(one.stack_index));
        }
    }

    /// Returns the known frames of a stack, innermost first.
    pub(crate) fn known_frames(&self, stack: u32) -> &[u32] {
        match self.stacks[stack as usize].as_slice() {
            [known @ .., last] if Some(*last) == self.cut_root => known,
            all => all,
        }
    }

    /// Returns true if a stack lacks its outermost frames, because it could not be unwound further
    /// or reached the requested depth.
    pub(crate) fn is_cut(&self, stack: u32) -> bool {
        self.known_frames(stack).len() < self.stacks[stack as usize].len()
    }

    /// Marks stacks as complete if they could not be unwound further, but end where the program or
    /// a thread begins.
    pub(crate) fn forget_cuts_below_main(&mut self) {
        for index in 0..self.sites.len() {
            let stack = self.sites[index].stack;
            let is_known = self.depth > 0 && !self.stacks[stack as usize].is_empty();
            if is_known && !self.is_cut(stack) {
                self.sites[index].truncated = false;
            }
        }
    }

    /// Returns the standard error of a sum over all sites. If the sampling interval changes, it
    /// includes memory that no sample has hit.
    pub(crate) fn error_of_sum(&self, measure: Measure, sum: Amount) -> Option<u64> {
        match (self.sampling, measure) {
            (Some(sampling), Measure::Live) => sampling.live_error_bytes,
            (Some(sampling), Measure::Allocated) => sampling.allocated_error_bytes,
            (Some(sampling), Measure::Released) => sampling.released_error_bytes,
            _ => sum.error_bytes(),
        }
    }

    /// Returns true if the run was searched for unreachable blocks at its end.
    pub fn knows_unreachable(&self) -> bool {
        self.leaks
            .as_ref()
            .is_some_and(|leaks| leaks.snapshot.is_some())
    }

    /// Counts the stacks of the sites with a value for a measure.
    pub(crate) fn call_stacks(&self, measure: Measure) -> CallStacks {
        let shown = self.sites.iter().filter(|site| {
            let amount = measure.of(&site.measures);
            amount.blocks > 0 && !self.stacks[site.stack as usize].is_empty()
        });
        let mut stacks: Vec<(u32, bool)> = shown.map(|s| (s.stack, s.truncated)).collect();
        stacks.sort_unstable();
        stacks.dedup_by_key(|(stack, _)| *stack);
        let mut counted = CallStacks::default();
        for (stack, truncated) in stacks {
            counted.add(self.is_cut(stack), truncated);
        }
        counted
    }

    /// Returns bounds on the live memory at the end, if a gap makes it uncertain.
    pub fn live_bounds(&self) -> Option<LiveBounds> {
        let live = self.sites.iter().map(|site| site.measures.live).sum();
        let unseen = self.sites.iter().map(|site| site.unseen).sum();
        (!self.gaps.is_empty()).then(|| LiveBounds::new(live, unseen))
    }

    /// Returns the known part of a stack with names, innermost first.
    pub fn stack(&self, stack: u32) -> Vec<StackFrame> {
        let frames = self.known_frames(stack).iter();
        let frames = frames.map(|&frame| &self.frames[frame as usize]);
        frames.map(|frame| frame.frame.clone()).collect()
    }
}

/// Sums of a site at a point of the [`Profile::timeline`].
#[derive(Clone, Copy, Debug, Default)]
pub struct SitePoint {
    /// Index of the point.
    pub point: u32,
    /// Index of the site.
    pub site: u32,
    /// Live memory at that point.
    pub live: Amount,
    /// Memory allocated since the start of the window.
    pub allocated: Amount,
}

/// Sums over the blocks of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Measures {
    /// Memory live at the end.
    pub live: Amount,
    /// Memory live at [`Profile::peak_ns`].
    pub peak: Amount,
    /// Memory allocated within the window.
    pub allocated: Amount,
    /// Memory released within the window.
    pub released: Amount,
    /// Memory allocated within the window and released before the thread's next allocation.
    pub temporary: Amount,
    /// Memory unreachable at the end of the run, regardless of the window. Zero without a search.
    pub unreachable: Amount,
}

/// An allocation site.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ProfileSite {
    /// Index of the site's stack.
    pub stack: u32,
    /// Allocating function: malloc, new, ...
    pub kind: String,
    /// Allocating thread.
    pub tid: u32,
    /// Name of that thread.
    pub thread: String,
    /// True if the stack is longer than recorded, but the unwinder could not follow it.
    pub truncated: bool,
    /// Sums of the site's blocks.
    pub measures: Measures,
    /// Live memory that has not been seen since a gap, and may have been released in it.
    pub unseen: Amount,
    /// Memory live at the start of the window.
    pub before: Amount,
    /// Nanoseconds that the window's allocations spent in the allocator. Covers no calls if none
    /// was timed.
    #[serde(skip)]
    pub in_allocator: TimeTaken,
    /// Allocation time of the oldest live block in nanoseconds since the attach; `None` if no block
    /// is live, or if the time was not recorded.
    pub oldest_ns: Option<u64>,
    /// Allocations by size in bytes: (bucket, blocks), sorted; see [`HISTOGRAM_BUCKETS`].
    pub sizes: Vec<(u8, u64)>,
    /// Released blocks by lifetime in nanoseconds: (bucket, blocks), sorted.
    pub lifetimes: Vec<(u8, u64)>,
}

/// Blocks that one stack allocated and another stack released.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Flow {
    /// Index of the allocating stack.
    pub allocated_by: u32,
    /// Index of the releasing stack.
    pub released_by: u32,
    /// Releasing function: free, delete, ...; empty if the release was not seen.
    pub kind: &'static str,
    /// Blocks and bytes.
    pub amount: Amount,
}

impl Flow {
    /// Kind of a flow that combines many releasing stacks, because a complete list would be too
    /// long.
    pub const OTHERS: &str = "others";
}

/// Blocks that a stack released.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Released {
    /// Index of the releasing stack.
    pub by: u32,
    /// Releasing function: free, delete, ...; empty if the release was not seen.
    pub kind: &'static str,
    /// Blocks and bytes.
    pub amount: Amount,
}

/// The heap at one time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Point {
    /// Nanoseconds since the attach.
    pub time_ns: u64,
    /// Live memory at that time.
    pub live: Amount,
    /// Memory allocated since the attach.
    pub allocated: Amount,
    /// Temporary allocations since the attach.
    pub temporary: Amount,
}

/// One stack over time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series {
    /// Index of the stack.
    pub stack: u32,
    /// Live memory at each point of the [`Profile::timeline`].
    pub live: Vec<Amount>,
    /// Memory allocated since the attach, at each point of the timeline.
    pub allocated: Vec<Amount>,
}
