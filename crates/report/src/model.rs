//! The contents of a report. Serialized unchanged, they follow the JSON schema `memhook-rs/report/1`.

use crate::gaps::{LiveBounds, UnseenTime};
use crate::{
    AllocatorTime, Bounded, CustomScore, CustomValues, Inference, Overhead, RunScores, Sampling,
    Scores, StaleReport,
};
use memhook_stream::NamedMoment;
use serde::{Deserialize, Serialize};

/// How a traced process ended; empty if only its parent knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ended {
    /// Exit status of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// Signal that killed the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// True if the process continues as another program.
    pub executes: bool,
}

/// One report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReportModel {
    /// Always `memhook-rs/report/1`.
    pub schema: &'static str,
    /// True for the last report of this attach.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// End of the process, in the last report of a process that ended during its trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// True if the end of the recording is missing.
    #[serde(skip)]
    pub is_cut: bool,
    /// True if the run continues after the covered time.
    #[serde(skip)]
    pub ends_early: bool,
    /// True for a recording's report.
    #[serde(skip)]
    pub is_recorded: bool,
    /// What the rows are: sites, frames, functions, modules, threads, sizes or lifetimes.
    pub by: &'static str,
    /// The process.
    pub target: Target,
    /// Facts about the attach.
    pub attach: AttachInfo,
    /// Start of the covered time in seconds since the attach: 0 except for a window of a recording.
    pub from_s: f64,
    /// End of the covered time in seconds since the attach.
    pub elapsed_s: f64,
    /// Times without events, in order, up to the end. Their allocations and releases are missing from all numbers.
    pub gaps: Vec<UnseenTime>,
    /// Marks set up to the end of the covered time, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// The allocator's own count compared with the trace's. Absent if the two were not, or cannot be, compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap_comparison: Option<HeapComparison>,
    /// Bounds on live memory, if there were gaps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_bounds: Option<LiveBounds>,
    /// Seconds since the previous report, the period over which growth is measured; `None` in the first report.
    pub since_last_s: Option<f64>,
    /// Set if allocations were sampled. All numbers of blocks and bytes are then estimates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// Time that all allocations spent in the allocator, if calls were timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocator_time: Option<AllocatorTime>,
    /// Cost and rate of tracing, with `--overhead`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead: Option<Overhead>,
    /// Set if the attacher had too little memory for all live blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounded: Option<Bounded>,
    /// Sums over the covered time.
    pub totals: ReportTotals,
    /// Sums of each heap if the user described allocators. The heap of malloc and its relatives comes first. The sums
    /// are never added up, because a block of one heap may be in a block of another. `totals` has the sums of the first
    /// heap.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub heaps: Vec<crate::HeapTotals>,
    /// Number of call stacks, and number of truncated call stacks; `None` if rows have no call
    /// stacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_stacks: Option<CallStacks>,
    /// Measure whose bytes and blocks sites and groups show, with its sums.
    pub measured: Measured,
    /// Coverage of each module.
    pub coverage: Vec<Coverage>,
    /// Live memory by allocation site, largest first; empty if `by` is another kind.
    pub sites: Vec<SiteRow>,
    /// Live memory by `by`; empty if `by` is the site.
    pub groups: Vec<GroupRow>,
    /// Groups that text output shows instead of `groups`, with ended threads merged into one row.
    #[serde(skip)]
    pub folded: Option<FoldedGroups>,
    /// Releasing call stacks, if they are recorded.
    pub releases: Vec<ReleaseSite>,
    /// Number of unlisted sites or groups.
    pub more_rows: u64,
    /// Mappings, with `--mappings`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mappings: Option<Box<crate::Mappings>>,
    /// Resident memory, with `--rss`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss: Option<Box<crate::RssReport>>,
    /// Resident bytes of the process when last read, in a live report.
    #[serde(skip)]
    pub rss_bytes: Option<u64>,
    /// Resident memory over time, in the report of a recording.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resident: Vec<crate::ResidentPoint>,
    /// Unreachable blocks, in the last report with `attach --leaks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaks: Option<crate::Leaks>,
    /// Untouched blocks, in the last report with `attach --stale`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<StaleReport>,
    /// Scores of the heap, with `--scores`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scores: Option<RunScores>,
    /// Values of the user's formulas, if `--scores` contains a formula.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub custom_scores: Vec<CustomScore>,
    /// Notable findings, with `--scores`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inferences: Option<Vec<Inference>>,
}

impl ReportModel {
    /// Name and version of the schema.
    pub(crate) const SCHEMA: &str = "memhook-rs/report/1";
}

/// A named moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// The name.
    pub name: String,
    /// Seconds since the attach.
    pub at_s: f64,
}

impl From<&NamedMoment> for Mark {
    fn from(moment: &NamedMoment) -> Mark {
        Mark {
            name: moment.name.clone(),
            at_s: moment.time_ns as f64 / 1e9,
        }
    }
}

/// Call stacks whose outermost frames are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallStacks {
    /// Number of all call stacks.
    pub count: u64,
    /// Number of stacks that reach the requested depth.
    pub cut_at_depth: u64,
    /// Number of stacks that the unwinder could not follow.
    pub cut_unfollowed: u64,
}

impl CallStacks {
    pub(crate) fn add(&mut self, is_cut: bool, truncated: bool) {
        self.count += 1;
        match (is_cut, truncated) {
            (_, true) => self.cut_unfollowed += 1,
            (true, false) => self.cut_at_depth += 1,
            (false, false) => {}
        }
    }
}

/// Growth since the attach of the memory that malloc has handed out, according to malloc's own structures and according
/// to the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapComparison {
    /// Growth by malloc's own structures.
    pub grown_bytes: i64,
    /// Growth according to the trace, from its blocks including their headers.
    pub traced_bytes: i64,
    /// Difference that can occur even if every call was seen.
    pub bound_bytes: u64,
    /// True if blocks from before the attach were released. Their sizes are unknown, so the memory that malloc has
    /// handed out may be less than the trace shows.
    pub has_unknown_releases: bool,
}

/// A measure and its sum.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Measured {
    /// Name of the measure: live, peak, allocated, released or temporary.
    pub measure: &'static str,
    /// Bytes of all rows, including unlisted ones.
    pub bytes: u64,
    /// Blocks of all rows, including unlisted ones.
    pub blocks: u64,
    /// Standard error of `bytes` when sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_bytes: Option<u64>,
}

/// The process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Target {
    /// Process id.
    pub pid: i32,
    /// Name, as `ps` shows it.
    pub name: String,
    /// Path of the executable.
    pub exe: String,
}

impl Target {
    /// Returns the executable's path, or the process's name if it differs from the file's name: through links, one file
    /// can be several programs.
    pub(crate) fn command(&self) -> String {
        let file = self.exe.rsplit('/').next().unwrap_or_default();
        // The kernel cuts names at 15 bytes (proc_pid_comm(5)).
        match file.is_empty() || !file.starts_with(&self.name) {
            true => self.name.clone(),
            false => self.exe.clone(),
        }
    }
}

/// Facts about the attach.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AttachInfo {
    /// Milliseconds of the whole attach.
    pub attach_ms: f64,
    /// Longest time that one thread was held, in ms, apart from `idle_held_ms`.
    pub held_ms: f64,
    /// How long an idle thread was held, in milliseconds; 0 if none was.
    pub idle_held_ms: f64,
    /// Slots patched.
    pub slots: u64,
    /// Modules with at least one slot patched.
    pub modules: u64,
    /// Maximum number of frames collected from each call stack.
    pub depth: u32,
    /// True if the process was traced from its first instruction, so that no block is older than
    /// the trace.
    pub from_start: bool,
}

/// Sums since the attach.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs)] // the names are the definition
pub struct ReportTotals {
    pub allocations: u64,
    pub releases: u64,
    pub allocated_bytes: u64,
    pub released_bytes: u64,
    pub live_bytes: u64,
    pub live_blocks: u64,
    pub live_growth_bytes: i64,
    pub peak_live_bytes: u64,
    pub unknown_releases: u64,
    pub unhooked_releases: u64,
    pub lost_events: u64,
    pub truncated_stacks: u64,
    /// Calls whose stack is unknown because the table of stacks was full.
    pub unkept_stacks: u64,
    pub reentrant_calls: u64,
    /// Libraries that were opened before memhook-rs could patch their slots. Their calls may be missing.
    pub unwatched_libraries: u64,
}

impl ReportTotals {
    /// Takes the sums of a ledger, and the number of events that never reached it.
    pub fn exact(t: &memhook_ledger::Totals, losses: &memhook_stream::Losses) -> ReportTotals {
        ReportTotals {
            allocations: t.allocations,
            releases: t.releases,
            allocated_bytes: t.allocated_bytes,
            released_bytes: t.released_bytes,
            live_bytes: t.live_bytes,
            live_blocks: t.live_blocks,
            live_growth_bytes: 0,
            peak_live_bytes: t.peak_live_bytes,
            unknown_releases: t.unknown_releases,
            unhooked_releases: t.unhooked_releases,
            lost_events: losses.events(),
            truncated_stacks: losses.truncated,
            unkept_stacks: losses.stacks_dropped,
            reentrant_calls: losses.reentrant,
            unwatched_libraries: losses.unwatched_libraries,
        }
    }
}

/// Coverage of a module.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Coverage {
    /// File name.
    pub module: String,
    /// Slots patched.
    pub hooked: u64,
    /// Slots that cannot be hooked, and call sites that use no slot.
    pub unhookable: u64,
    /// Reason why slots of the module are not hooked, or empty.
    pub note: String,
    /// Call sites in the module's code that use slots.
    pub calls_seen: u64,
    /// Source of the module's names: `debug info`, `symbols`, `dynamic symbols`, `nothing`; `None`
    /// until a report contains one of its addresses.
    #[serde(skip_deserializing)]
    pub symbols: Option<&'static str>,
    /// The allocator, other than the C library's, that the module is or contains; may be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub allocator: String,
    /// True if that allocator is only a part of the module.
    #[serde(rename = "linked_in", skip_serializing_if = "std::ops::Not::not")]
    pub is_linked_in: bool,
    /// Description of blocks that the module's own allocator hides, with the remedy; may be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hidden: String,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One allocation site.
#[derive(Clone, Debug, Serialize)]
pub struct SiteRow {
    /// Number of the site's stack in the run.
    #[serde(skip)]
    pub stack_id: u32,
    /// Scores of the site, with `--scores`; `None` if the site allocated nothing in the covered time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scores: Option<Scores>,
    /// Values of the user's formulas by name, if `--scores` contains a formula; `None` for a formula without a value.
    #[serde(skip_serializing_if = "CustomValues::is_empty")]
    pub custom_scores: CustomValues,
    /// Live bytes.
    pub bytes: u64,
    /// Live blocks.
    pub blocks: u64,
    /// Bytes of live blocks that have not been seen since a gap, and may have been released in it.
    #[serde(skip_serializing_if = "is_zero")]
    pub unseen_bytes: u64,
    /// Bytes of the site's blocks that are unreachable at the end of the run, with `--leaks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable_bytes: Option<u64>,
    /// Standard error of `unreachable_bytes` when sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable_error_bytes: Option<u64>,
    /// Standard error of `bytes` when sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_bytes: Option<u64>,
    /// Time that the site's allocations spent in the allocator, if calls were timed.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub allocator_time: Option<AllocatorTime>,
    /// Change of the live bytes since the last report.
    pub growth_bytes: i64,
    /// Name of the site's heap, if the user described allocators.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<String>,
    /// Age of the oldest live block in ms.
    pub oldest_ms: u64,
    /// Allocating function: malloc, new, ...
    pub kind: String,
    /// True if the stack is longer than shown, but the unwinder could not follow it.
    pub truncated: bool,
    /// True if outermost frames are missing, because the stack could not be followed or reached the
    /// requested depth.
    pub cut: bool,
    /// Frames, innermost first.
    pub stack: Vec<StackFrame>,
}

/// One row other than a site.
#[derive(Clone, Debug, Serialize)]
pub struct GroupRow {
    /// The property that the row's blocks share.
    pub name: String,
    /// The frame, if rows are frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame: Option<StackFrame>,
    /// Live bytes.
    pub bytes: u64,
    /// Live bytes whose innermost frame is this row. Equals `bytes` unless rows are frames or functions.
    pub self_bytes: u64,
    /// Live blocks.
    pub blocks: u64,
    /// Bytes of live blocks that have not been seen since a gap, and may have been released in it.
    #[serde(skip_serializing_if = "is_zero")]
    pub unseen_bytes: u64,
    /// Bytes of the row's blocks that are unreachable at the end of the run, with `--leaks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable_bytes: Option<u64>,
    /// Standard error of `unreachable_bytes` when sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable_error_bytes: Option<u64>,
    /// Standard error of `bytes` when sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_bytes: Option<u64>,
    /// Time that the row's allocations spent in the allocator, if calls were timed.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub allocator_time: Option<AllocatorTime>,
    /// Change of the live bytes since the last report.
    pub growth_bytes: i64,
    /// Age of the oldest live block in ms; 0 without live blocks.
    pub oldest_ms: u64,
    /// Name of the row's heap, if the user described allocators.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<String>,
    /// Bytes released below this frame; 0 unless rows are frames and release stacks are recorded.
    pub released_bytes: u64,
    /// Blocks released below this frame.
    pub released_blocks: u64,
}

/// Groups, some of which are folded into one row.
#[derive(Clone, Debug, Default)]
pub struct FoldedGroups {
    /// The rows, largest first.
    pub groups: Vec<GroupRow>,
    /// Number of unlisted rows.
    pub more_rows: u64,
}

/// One releasing call stack.
#[derive(Clone, Debug, Serialize)]
pub struct ReleaseSite {
    /// Bytes released.
    pub bytes: u64,
    /// Blocks released.
    pub blocks: u64,
    /// Standard error of `bytes` if allocations were sampled; only in reports of recordings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_bytes: Option<u64>,
    /// Name of the heap, if the user described allocators.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<String>,
    /// Releasing function: free, delete, ...
    pub kind: String,
    /// Frames, innermost first.
    pub stack: Vec<StackFrame>,
}

/// One frame.
#[derive(Default, Clone, Debug, Serialize, Deserialize)]
pub struct StackFrame {
    /// Return address, hexadecimal.
    pub address: String,
    /// File name of the module.
    pub module: Option<String>,
    /// Address in the module's file, in hexadecimal: the byte before the return address.
    pub offset: Option<String>,
    /// Function.
    pub function: Option<String>,
    /// Source file.
    pub file: Option<String>,
    /// Line.
    pub line: Option<u32>,
    /// True if the function is inlined into the next frame.
    pub inlined: bool,
}
