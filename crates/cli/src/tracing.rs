//! Options about what is traced, and how.

use crate::options::{share, size};
use crate::report::sources::CacheArgs;

/// Where time stamps come from.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum Clock {
    /// A word in memory that memhook-rs updates every millisecond
    Coarse,
    /// The time-stamp counter of the processor
    Tsc,
    /// clock_gettime(CLOCK_MONOTONIC)
    Monotonic,
    /// The moment at which memhook-rs reads the event
    Attacher,
}

/// How call stacks are found.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum Unwind {
    /// With tables compiled from .eh_frame; the program needs no frame pointers
    Table,
    /// With frame pointers, which every function must have been compiled with
    Fp,
    /// With glibc's backtrace(); slow, and only meant for comparison
    Glibc,
}

/// Which call stacks are recorded.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum Stacks {
    /// Those of allocations
    Alloc,
    /// Those of allocations and releases
    All,
}

/// What a thread does when its ring is full.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum OnFull {
    /// Wait for room: no event is lost, but the program may slow down
    Wait,
    /// Drop the event and count it as lost
    Drop,
    /// Wait at most 20 ms at once and a twentieth of the time; beyond that, sample the thread's
    /// allocations (about one in 64 KiB): the program keeps its speed, and reports say what they
    /// counted and what they estimated
    Adapt,
}

/// Whether reads and writes of blocks are counted.
#[derive(Clone, Copy, Default, PartialEq, clap::ValueEnum)]
pub enum Access {
    /// Where the program tells of them, if the trace is recorded or scored
    #[default]
    Auto,
    /// Always: a program that does not tell of them is refused
    On,
    /// Never
    Off,
}

/// What is recorded, and how.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Tracing")]
pub struct Tracing {
    /// Frames to record of each call stack
    ///
    /// 10, and 64 with a recording and for `run` and `gate`. What a stack has beyond that is cut off
    /// at the root, and shown as "…".
    #[arg(long, value_name = "N", alias = "max-stack", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub depth: Option<u32>,
    /// Hook only these functions (malloc,free,...)
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub functions: Vec<String>,
    /// Trace mappings, too: mmap, mremap, munmap, brk, madvise, shmat
    ///
    /// They are a second kind of memory, with a part of its own in the report. What allocators map
    /// belongs to their heaps and is left out. Calls that do not go through the C library's functions
    /// are not seen: the report compares what is known with /proc. Mappings are never sampled or
    /// filtered. A recording NAME.mhk has those of the mappings beside it, in NAME.mappings.mhk.
    #[arg(long)]
    pub mappings: bool,
    /// Ignore blocks that are smaller (4K, 1M)
    #[arg(short = 'z', long, value_name = "SIZE", value_parser = size)]
    pub min_size: Option<u64>,
    /// Ignore blocks that are larger
    #[arg(short = 'Z', long, value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,
    /// Record only blocks of exactly these sizes
    #[arg(long = "size", value_name = "SIZES", value_delimiter = ',', value_parser = size)]
    pub sizes: Vec<u64>,
    /// Record a random sample, one per this many bytes
    ///
    /// On average, one allocation in this many allocated bytes is recorded. Reports are then
    /// estimates, with standard errors.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub sample: Option<u64>,
    /// Share of the process's time that tracing may take
    ///
    /// Everything is recorded as long as that costs less, as measured in the process. Otherwise a random
    /// sample is recorded, at a distance that follows what the process does; reports say since when, and
    /// give standard errors. Above 0% and up to 50%.
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    pub overhead: Option<f64>,
    /// Call stacks to record: alloc or all
    #[arg(long, value_enum, value_name = "WHICH", default_value = "alloc")]
    pub stacks: Stacks,
    /// How call stacks are unwound
    #[arg(
        long,
        value_enum,
        value_name = "METHOD",
        default_value = "table",
        hide_short_help = true
    )]
    pub unwind: Unwind,
    /// Unwind each remembered backtrace again and compare
    #[arg(long, hide = true)]
    pub check_memo: bool,
    /// Where time stamps come from
    #[arg(
        long,
        value_enum,
        value_name = "SOURCE",
        default_value = "coarse",
        hide_short_help = true
    )]
    pub clock: Clock,
    /// Largest event ring of a thread [default: 1M; 256K with --on-full adapt]
    #[arg(long, value_name = "SIZE", value_parser = size, hide_short_help = true)]
    pub ring_size: Option<u64>,
    /// At a full event ring: wait, drop or adapt
    #[arg(long, value_enum, value_name = "ACTION", default_value = "wait")]
    pub on_full: OnFull,
    /// Count reads and writes of blocks: auto, on or off
    ///
    /// That takes a program that tells of them: see `memhook-rs access-runtime`. Usage and useful lifetime
    /// follow from it (--scores).
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        hide_short_help = true
    )]
    pub access: Access,
    /// Limit of memory for live blocks (512M, 2G)
    ///
    /// memhook-rs keeps the live blocks and call stacks of each traced process in so much memory. The
    /// limit is at least 4M; by default it is a quarter of the free memory, up to 1G. Beyond it, allocations are
    /// still counted exactly, but only a sample of the live blocks is kept, the largest first: what
    /// is live becomes an estimate with a standard error, reports say so in their first lines, and a
    /// gate gives no verdict. Leaks are still found.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub max_memory: Option<u64>,
    #[command(flatten)]
    pub cache: CacheArgs,
}

/// A size that a ledger can do with.
fn memory(text: &str) -> Result<u64, String> {
    let least = memhook_ledger::LEAST_BYTES as u64;
    match size(text)? {
        bytes if bytes < least => Err(format!(
            "{bytes} bytes are too few: the table of live blocks needs at least {}M",
            least >> 20
        )),
        bytes => Ok(bytes),
    }
}

/// The depth of stacks in a live report, where each is read from its innermost frame on.
pub const DEPTH: u32 = 10;
/// The depth where stacks become trees and flame graphs: without its outermost frames a stack seems to begin
/// somewhere else.
pub const DEPTH_TO_ROOTS: u32 = 64;

impl Tracing {
    /// With a depth, if none was asked for.
    pub fn with_depth(&self, depth: u32) -> Tracing {
        Tracing {
            depth: self.depth.or(Some(depth)),
            ..self.clone()
        }
    }

    /// Mean bytes between samples.
    pub fn sample_bytes(&self) -> Option<u64> {
        self.sample
    }

    /// Whether a thread whose ring is nearly full takes samples.
    pub fn adapts(&self) -> bool {
        self.on_full == OnFull::Adapt
    }

    /// Whether allocations are left out by size or by chance.
    pub fn is_selective(&self) -> bool {
        let is_filtered =
            self.min_size.is_some() || self.max_size.is_some() || !self.sizes.is_empty();
        is_filtered || self.sample.is_some()
    }
}

/// Options of the commands that start a program.
#[derive(clap::Args)]
pub struct StartOptions {
    /// Trace the processes that it starts, too
    #[arg(long)]
    pub follow_fork: bool,
}
