//! One traced process from start to end, as a library: loads the hook, follows modules and threads, takes events,
//! detaches.
//!
//! [`Trace`] is a traced process: [`Trace::start`] attaches, [`Trace::run`] follows the process and detaches.
//! Meanwhile, a [`Job`] runs. [`Session`] is the attach itself. [`Consumer`] takes its events into a ledger and, if
//! requested, into a [`Recording`]. [`Program`] starts a program and traces it, including the processes that it forks,
//! from before its first constructor to its end.
//!
//! This crate has no command-line options, terminals, function names or reports.
//!
//! To write another profiler, use the crate `memhook`, which builds on this one.

mod claim;
mod config;
mod drain;
mod error;
mod following;
mod hold;
mod hook;
mod job;
mod leave;
mod mark;
mod moved_blocks;
mod pads;
mod plan;
mod probes;
mod program;
mod reclaiming;
mod recording;
mod recovery;
mod running;
mod session;
mod survey;
mod trace;
mod tracing_budget;
mod turn_loop;
mod unwinding;

pub use claim::{Claim, already_traced, claim};
pub use config::emission::Emission;
pub use config::{
    Accesses, Clock, ConfigError, DEPTH_OF_REPORTS, DEPTH_TO_ROOTS, DEPTHS, OnFull, Stacks,
    TraceConfig, Unwinding,
};
pub use drain::budget::{BudgetKept, Kept};
pub use drain::consumer::Consumer;
pub use drain::crew::{Crew, Distributes};
pub use drain::described_heap::{DescribedHeap, ReleasedBlocks};
pub use drain::lookout::Lookout;
pub use drain::recorder::{OwnCode, Recorder};
pub use drain::state::State;
pub use error::Error;
pub use following::{
    Assigner, Followed, FollowedCount, Obstacle, follow, kinship, obstacle, unready,
};
pub use hold::reach::Reach;
pub use hold::safe_point::SafePoints;
pub use hook::file::{HookFile, HookFileError};
pub use hook::listening::{EmittedProbe, Listening};
pub use hook::object::ACCESS_RUNTIME;
pub use job::{End, Job};
pub use mark::set_mark;
pub use memhook_ledger::{LiveBlock, ReleaseBy, SiteTotals};
pub use moved_blocks::{LateRegion, moves};
pub use pads::{DescribedReach, TracedHeap};
pub use plan::diagnosis::{DiagnosedModule, Diagnosis, FoundFunction, diagnose};
pub use plan::hooking::{PlannedModule, hook_plan, is_hooked};
pub use plan::touches::Touches;
pub use probes::error::ProbeError;
pub use probes::{
    EventOptions, FunctionCount, PlannedFunction, ProbePlan, Probes, RefusedFunction, ThreadCount,
    plan_probes,
};
pub use probes::{PadPreview, ProbeOptions, ProbePreview, preview_probes};
pub use program::leaving::{Left, Outcome, leaving};
pub use program::{Observer, Program, Work};
pub use reclaiming::{ReclaimError, Reclaiming};
pub use recording::Recording;
pub use recording::run_facts::Recorded;
pub use recovery::recover;
pub use running::coverage::{CallScans, ModuleCoverage, unseen_allocators};
pub use running::ending::Ending;
pub use running::gaps::said as gap_said;
pub use running::heap_balance::{Comparison, HeapBalance};
pub use running::mapped_memory::{MappedKind, MappedMemory, MappedPart};
pub use running::resident::account_of_session;
pub use running::upkeep::{Detached, Turn};
pub use session::Session;
pub use survey::known_files::SharedFiles;
pub use survey::limits::refuse;
pub use trace::Trace;
pub use unwinding::keeper::{caches_answer, finish_keeping_tables};
pub use unwinding::tables::UnwindTables;
