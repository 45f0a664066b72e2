//! Reports: pure functions from a model to bytes.

mod agent_plan;
mod allocator_time;
mod amount;
mod apart;
mod call_tree;
mod charset;
pub mod claims;
pub mod course;
mod diff;
mod estimates;
mod events;
mod fail_on;
pub mod formats;
mod gaps;
mod group_table;
mod heaps;
mod hints;
mod labels;
mod leaks;
mod live;
mod live_profile;
mod mappings;
mod measure;
mod model;
mod named_run;
mod names;
mod output_name;
mod overhead;
mod places;
mod probe_plan;
mod probe_stacks;
mod probes;
mod profile;
mod profile_frames;
mod profile_tables;
mod progress;
mod read_back;
pub mod recorded;
mod report_writer;
mod resident_over_time;
mod rows;
mod rss;
mod same_code;
mod scan;
mod scores;
mod seen;
mod site_head;
mod stacks;
mod stale;
mod static_page;
mod style;
mod text;
pub mod top;
mod tree;
mod two_looks;
mod types;
mod unhit;
mod units;
mod unreachable;
pub mod view;
mod watch;
mod who_frees;
mod wrap;
mod wrappers;

pub use agent_plan::{AgentPlan, PlannedKubelet, PlannedTarget, UnchosenProcess};
pub use allocator_time::{AllocatorTime, call_times_note};
pub use amount::Amount;
pub use call_tree::Root;
pub use charset::{in_ascii, terminal_has_utf8};
pub use diff::{Diff, Fate, Run, SiteChange, TypeChange, TypeChanges, diff, diff_by_type};
pub use estimates::{Bounded, Sampling};
pub use events::{
    EventQueue, EventSource, EventTap, EventsBegin, EventsEnd, EventsWritten, write_events,
};
pub use fail_on::FailOn;
pub use formats::{
    AddedNames, Document, Format, FormatChoice, FormatOptions, Nature, OtlpSource, PprofError,
    PprofNames, PprofShape, StoredPprof, document, otlp_request, pprof,
};
pub use gaps::{LiveBounds, UnseenTime, unseen_in_words};
pub use heaps::{HeapTotals, MAIN_HEAP};
pub use hints::in_words as hints_in_words;
pub use labels::name as frame_name;
pub use leaks::{LeakSite, LeakTotals, Leaks, SnapshotTaken};
pub use live::{LiveNumbers, LiveReporter, LiveView, SetAside, TracedRun, described};
pub use live_profile::{LiveProfiler, LiveSite};
pub use mappings::{AddressSpace, AddressSpacePart, MappingTotals, Mappings};
pub use measure::{Measure, Unit};
pub use model::{
    AttachInfo, CallStacks, Coverage, Ended, FoldedGroups, GroupRow, HeapComparison, Mark,
    Measured, ReleaseSite, ReportModel, ReportTotals, SiteRow, StackFrame, Target,
};
pub use named_run::{Backtrace, Backtraces, frames_at};
pub use names::{
    is_plumbing as is_library_plumbing, readable as readable_name, without_parameters,
};
pub use output_name::{OutputNameError, output_name};
pub use overhead::{KeptTime, Overhead};
pub use places::short_place;
pub use probe_plan::{ProbePlanReport, ProbePlanRow};
pub use probe_stacks::{CountedStack, NamedStacks, ProbeStacks, ProbedFunction, StackRow};
pub use probes::{
    ArgumentClass, ArgumentRow, ArgumentValue, ProbeLatency, ProbeReport, ProbeRow, ProbeThread,
    RefusedRow,
};
pub use profile::{
    Compared, ComparedPoint, Flow, HISTOGRAM_BUCKETS, Measures, Point, Profile, ProfileSite,
    Released, Series, SitePoint,
};
pub use profile_frames::{CUT_ROOT, ProfileFrame, ProfileModule, SourceLines};
pub use progress::Progress;
pub use read_back::{ReadBackError, read_back};
pub use report_writer::{ReportStream, ReportWriter, shown};
pub use resident_over_time::{ArenaResident, ResidentPoint};
pub use rows::{RowsBy, SortBy};
pub use rss::{
    OtherFreePages, PinRow, RssHolding, RssPart, RssReport, RssSnapshot, RssView, TrimReport,
    release_call,
};
pub use scan::ReclaimRound;
pub use scan::{
    CensusReport, GrowthReport, LeakGroup, RetainedReport, ScanReport, ScanTotals, SnapshotPart,
    not_searched, scan_report, write_blocks,
};
pub use scores::{
    AccessSource, CustomChange, CustomScore, CustomSiteChange, CustomValues, Formula, FormulaError,
    Gain, Inference, InferenceKind, NoEvidence, ProfileScores, RESERVED_NAMES, RunScores,
    ScoreChange, Scores, SiteScores,
};
pub use stacks::{LONGEST_NAME, from_responsible, is_own_code, shortened as shortened_name};
pub use stale::{
    CaughtAccess, StaleEvidence, StaleHistory, StalePoint, StaleReachability, StaleReport,
    StaleSite, StaleTotals,
};
pub use static_page::{Curve, StaticPage};
pub use style::Style;
pub use tree::{Tree, TreeNode, tree};
pub use two_looks::{MappedSite, StackGrowth, TwoLooks};
pub use types::{one_spelling, type_of_stack};
pub use units::{
    bytes, change, count, counted, duration as duration_in_words, milliseconds, percent,
};
pub use unreachable::{UnreachableAtEnd, UnreachableSite, unreachable_note};
pub use watch::{Death, KilledProcess, Kills, WatchMoment, WatchReport};
pub use who_frees::{Freed, WhoFrees, who_frees};
pub use wrap::wrapped;
pub use wrappers::is_wrapper;
