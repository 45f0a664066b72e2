//! Options about what is traced, and how.

use crate::options::size;
use memhook_attach::TraceConfig;

/// Where time stamps come from.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Clock {
    /// A word that the attacher advances every millisecond
    Coarse,
    /// The processor's time-stamp counter
    Tsc,
    /// clock_gettime(CLOCK_MONOTONIC)
    Monotonic,
    /// The time at which the attacher took the event
    Attacher,
}

/// How call stacks are found.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Unwind {
    /// By tables compiled from .eh_frame; the program needs no frame pointers
    Table,
    /// By frame pointers, which every function must have been compiled with
    Fp,
    /// By glibc's backtrace(): slow, for comparison only
    Glibc,
}

/// Whose call stacks are recorded.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Stacks {
    /// Of allocations only
    Alloc,
    /// Of allocations and of releases
    All,
}

/// What a thread does when its ring is full.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum OnFull {
    /// Wait until there is room: every event is recorded, however long that takes the program
    Wait,
    /// Drop the event, and count it
    Drop,
    /// Wait for at most 20 ms at once and a twentieth of the time; beyond that, record samples of the
    /// thread's allocations, one in about 64 KiB: the program goes on at its speed, and reports say
    /// what they count and what they estimate
    Adapt,
}

/// What is recorded, and how.
#[derive(clap::Args, Clone)]
pub struct Tracing {
    /// How many frames of each call stack to record
    #[arg(long, alias = "max-stack", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=128))]
    pub depth: u32,
    /// Hook only these functions (malloc,free,new,...)
    #[arg(long, value_delimiter = ',')]
    functions: Vec<String>,
    /// Record only blocks of at least this size (4K, 1M)
    #[arg(short = 'z', long, value_parser = size)]
    min_size: Option<u64>,
    /// Record only blocks of at most this size
    #[arg(short = 'Z', long, value_parser = size)]
    max_size: Option<u64>,
    /// Record only blocks of these sizes
    #[arg(long = "size", value_delimiter = ',', value_parser = size)]
    sizes: Vec<u64>,
    /// Record one allocation in about this many bytes, chosen at random; reports are then estimates
    #[arg(long, value_name = "BYTES", value_parser = size)]
    sample: Option<u64>,
    /// Record the call stacks of allocations only, or of releases as well
    #[arg(long, value_enum, default_value = "alloc")]
    stacks: Stacks,
    /// How call stacks are found
    #[arg(long, value_enum, default_value = "table")]
    unwind: Unwind,
    /// Unwind each remembered backtrace again and compare
    #[arg(long, hide = true)]
    pub check_memo: bool,
    /// Where time stamps come from
    #[arg(long, value_enum, default_value = "coarse")]
    clock: Clock,
    /// How large the event ring of a thread may become [default: 1M; 256K with --on-full adapt]
    #[arg(long, value_parser = size)]
    ring_size: Option<u64>,
    /// What a thread does when its ring is full [default: adapt for attach without a recording,
    /// --leaks, --sample and filters of sizes; else wait]
    #[arg(long, value_enum)]
    on_full: Option<OnFull>,
    /// Memory for live blocks and call stacks of each traced process, 4M or more (512M, 2G); by
    /// default a quarter of what is free for memhook-rs, at most 1G. When it is reached, allocations are still
    /// counted exactly, but only a sample of the live blocks is kept, the largest ones first: what is
    /// live becomes an estimate with a standard error, reports say so in their first lines, and a
    /// gate gives no verdict. Unlike an exact count that ends there, this still finds leaks
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    max_memory: Option<u64>,
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

impl Tracing {
    /// Mean bytes between samples.
    pub fn sample_bytes(&self) -> Option<u64> {
        self.sample
    }

    /// Whether a thread whose ring is nearly full takes samples.
    pub fn adapts(&self) -> bool {
        self.on_full == Some(OnFull::Adapt)
    }

    /// The configuration where estimates will do, if the program would have to wait for long otherwise.
    pub fn resolve_live(&self) -> TraceConfig {
        let mut config = self.resolve();
        if self.on_full.is_none() && !config.is_selective() {
            config.on_full = memhook_attach::OnFull::Adapt;
        }
        config
    }

    /// Whether allocations are left out by size or by chance.
    pub fn is_selective(&self) -> bool {
        self.resolve().is_selective()
    }

    /// The configuration that these options ask for.
    pub fn resolve(&self) -> TraceConfig {
        TraceConfig {
            depth: self.depth,
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
                None | Some(OnFull::Wait) => memhook_attach::OnFull::Wait,
                Some(OnFull::Drop) => memhook_attach::OnFull::Drop,
                Some(OnFull::Adapt) => memhook_attach::OnFull::Adapt,
            },
            max_memory: self.max_memory,
        }
    }
}

/// Options of the commands that start a program.
#[derive(clap::Args)]
pub struct StartOptions {
    /// Also trace the processes that the program starts, each on its own
    #[arg(long)]
    pub follow_fork: bool,
}
