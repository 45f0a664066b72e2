//! Options about what is traced, and how.

use crate::options::size;
use crate::report::sources::CacheArgs;
use memhook_attach::TraceConfig;

/// Where time stamps come from.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Clock {
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
enum Unwind {
    /// With tables compiled from .eh_frame; the program needs no frame pointers
    Table,
    /// With frame pointers, which every function must have been compiled with
    Fp,
    /// With glibc's backtrace(); slow, and only meant for comparison
    Glibc,
}

/// Which call stacks are recorded.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Stacks {
    /// Those of allocations
    Alloc,
    /// Those of allocations and releases
    All,
}

/// What a thread does when its ring is full.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum OnFull {
    /// Wait for room: no event is lost, but the program may slow down
    Wait,
    /// Drop the event and count it as lost
    Drop,
    /// Wait at most 20 ms at once and a twentieth of the time; beyond that, sample the thread's
    /// allocations (about one in 64 KiB): the program keeps its speed, and reports say what they
    /// counted and what they estimated
    Adapt,
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
    functions: Vec<String>,
    /// Ignore blocks that are smaller (4K, 1M)
    #[arg(short = 'z', long, value_name = "SIZE", value_parser = size)]
    min_size: Option<u64>,
    /// Ignore blocks that are larger
    #[arg(short = 'Z', long, value_name = "SIZE", value_parser = size)]
    max_size: Option<u64>,
    /// Record only blocks of exactly these sizes
    #[arg(long = "size", value_name = "SIZES", value_delimiter = ',', value_parser = size)]
    sizes: Vec<u64>,
    /// Record a random sample, one per this many bytes
    ///
    /// On average, one allocation in this many allocated bytes is recorded. Reports are then
    /// estimates, with standard errors.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    sample: Option<u64>,
    /// Call stacks to record: alloc or all
    #[arg(long, value_enum, value_name = "WHICH", default_value = "alloc")]
    stacks: Stacks,
    /// How call stacks are unwound
    #[arg(
        long,
        value_enum,
        value_name = "METHOD",
        default_value = "table",
        hide_short_help = true
    )]
    unwind: Unwind,
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
    clock: Clock,
    /// Largest event ring of a thread [default: 1M; 256K with --on-full adapt]
    #[arg(long, value_name = "SIZE", value_parser = size, hide_short_help = true)]
    ring_size: Option<u64>,
    /// At a full event ring: wait, drop or adapt
    #[arg(long, value_enum, value_name = "ACTION", default_value = "wait")]
    on_full: OnFull,
    /// Limit of memory for live blocks (512M, 2G)
    ///
    /// memhook-rs keeps the live blocks and call stacks of each traced process in so much memory. The
    /// limit is at least 4M; by default it is a quarter of the free memory, up to 1G. Beyond it, allocations are
    /// still counted exactly, but only a sample of the live blocks is kept, the largest first: what
    /// is live becomes an estimate with a standard error, reports say so in their first lines, and a
    /// gate gives no verdict. Leaks are still found.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    max_memory: Option<u64>,
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
        self.resolve().is_selective()
    }

    /// The configuration that these options ask for.
    pub fn resolve(&self) -> TraceConfig {
        TraceConfig {
            depth: self.depth.unwrap_or(DEPTH),
            functions: self.functions.clone(),
            min_size: self.min_size,
            max_size: self.max_size,
            sizes: self.sizes.clone(),
            sample_bytes: self.sample,
            stacks: match self.stacks {
                Stacks::Alloc => memhook_attach::Stacks::Allocations,
                Stacks::All => memhook_attach::Stacks::All,
            },
            unwinding: match self.unwind {
                Unwind::Table => memhook_attach::Unwinding::Tables,
                Unwind::Fp => memhook_attach::Unwinding::FramePointers,
                Unwind::Glibc => memhook_attach::Unwinding::LibcBacktrace,
            },
            check_memo: self.check_memo,
            clock: match self.clock {
                Clock::Coarse => memhook_attach::Clock::Coarse,
                Clock::Tsc => memhook_attach::Clock::Tsc,
                Clock::Monotonic => memhook_attach::Clock::Monotonic,
                Clock::Attacher => memhook_attach::Clock::Attacher,
            },
            ring_bytes: self.ring_size.unwrap_or(if self.adapts() {
                // More room would only be filled, too, and emptied at the program's cost.
                256 << 10
            } else {
                1 << 20
            }),
            on_full: match self.on_full {
                OnFull::Wait => memhook_attach::OnFull::Wait,
                OnFull::Drop => memhook_attach::OnFull::Drop,
                OnFull::Adapt => memhook_attach::OnFull::Adapt,
            },
            max_memory: self.max_memory,
            keep_tables: !self.cache.no_symbol_cache,
        }
    }
}

/// Options of the commands that start a program.
#[derive(clap::Args)]
pub struct StartOptions {
    /// Trace the processes that it starts, too
    #[arg(long)]
    pub follow_fork: bool,
}
