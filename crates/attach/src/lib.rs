//! One traced process from start to end, as a library: loading the hook, following modules and threads,
//! taking events, detaching.
//!
//! [`Trace`] is a traced process: [`Trace::start`] attaches, [`Trace::run`] follows the process and detaches.
//! What is done meanwhile is a [`Job`]. [`Session`] is the attach itself, [`Consumer`] takes its events into
//! a ledger, and into a [`Recording`] if that is asked for. [`Program`] starts a program and traces it, and
//! the processes that it makes, from before its first constructor to its end.
//!
//! Not here: options of a command line, terminals, names of functions, reports.
//!
//! # Profilers of your own
//!
//! Ask a trace about its call stacks and live blocks ([`Trace::sites`], [`Trace::live_blocks`]), or be told
//! of every block in order, and keep data of your own with each ([`Trace::profile`]). Allocation calls per
//! second, by thread:
//!
//! ```no_run
#![doc = include_str!("../examples/calls_per_second.rs")]
//! ```
//!
//! A histogram of sizes:
//!
//! ```no_run
#![doc = include_str!("../examples/size_histogram.rs")]
//! ```

mod budget;
mod claim;
mod closed_region;
mod code_exchanges;
mod config;
mod consumer;
mod coverage;
mod described_heap;
mod diagnosis;
mod emission;
mod error;
mod following;
mod gap_log;
mod gaps;
mod hook_file;
mod hook_object;
mod hook_plan;
mod hook_presence;
#[cfg(test)]
mod hook_stack_use;
mod inherited;
mod job;
mod known_files;
mod leaving;
mod limits;
mod listening;
mod loading;
mod lookout;
mod mapped_memory;
mod mark;
mod memory_budget;
mod pacing;
mod pad_areas;
mod pads;
mod probe_areas;
mod probe_error;
mod probes;
mod process_names;
mod profiler;
mod program;
mod reach;
mod recorded_pages;
mod recorder;
mod recording;
mod recovery;
mod refused_slots;
mod resident;
mod residue;
mod rest;
mod restore;
mod ring_owners;
mod run_facts;
mod safe_places;
mod safe_point;
mod safe_thread;
mod session;
mod started;
mod table_cache;
mod table_keeper;
mod target_facts;
mod trace;
mod triggers;
mod turn_loop;
mod unwind_tables;
mod upkeep;

pub use budget::{BudgetKept, Kept};
pub use claim::{Claim, already_traced, claim};
pub use config::{
    ADAPTING_RING_BYTES, Accesses, Clock, ConfigError, OnFull, Stacks, TraceConfig,
    USUAL_RING_BYTES, Unwinding,
};
pub use consumer::{Consumer, State};
pub use coverage::{CallScans, ModuleCoverage, is_hooked, unseen_allocators};
pub use described_heap::{DescribedHeap, ReleasedBlocks};
pub use diagnosis::{DiagnosedModule, Diagnosis, FoundFunction, diagnose};
pub use emission::Emission;
pub use error::Error;
pub use following::{Assigner, Followed, FollowedCount, Obstacle, follow, obstacle};
pub use gaps::said as gap_said;
pub use hook_file::{HookFile, HookFileError};
pub use hook_object::ACCESS_RUNTIME;
pub use hook_plan::{PlannedModule, hook_plan};
pub use job::{End, Job};
pub use known_files::SharedFiles;
pub use leaving::{Left, Outcome, leaving};
pub use limits::{limit_checks, refuse};
pub use listening::{EmittedProbe, Listening};
pub use lookout::Lookout;
pub use mapped_memory::{MappedKind, MappedMemory, MappedPart};
pub use mark::set_mark;
pub use memhook_ledger::{LiveBlock, ReleaseBy, SiteTotals};
pub use pads::{DescribedReach, TracedHeap};
pub use probe_error::ProbeError;
pub use probes::{
    EventOptions, FunctionCount, PlannedFunction, ProbePlan, Probes, RefusedFunction, ThreadCount,
    plan_probes,
};
pub use probes::{PadPreview, ProbeOptions, ProbePreview, module_file, preview_probes};
pub use process_names::{command_line, process_name};
pub use profiler::{Block, Profiler, Profiling};
pub use program::{Observer, Program, Work};
pub use reach::Reach;
pub use recorder::{OwnCode, Recorder};
pub use recording::Recording;
pub use recovery::recover;
pub use resident::account_of_session;
pub use run_facts::Recorded;
pub use safe_point::{SafePoints, unwind_for_safety};
pub use session::Session;
pub use table_keeper::finish_keeping_tables;
pub use trace::Trace;
pub use triggers::{Action, Condition, ConditionError, Measured, Quantity, Triggers};
pub use unwind_tables::UnwindTables;
pub use upkeep::{Detached, Turn};
