//! Options about what is traced, and how.

use crate::report::sources::CacheArgs;
use memhook_abi::DescribedRole;
use memhook_foreign::units;
use memhook_probe::{Allocator, AllocatorFunction};

/// Source of time stamps.
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

/// Method of finding call stacks.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum Unwind {
    /// With tables compiled from .eh_frame; the program needs no frame pointers
    Table,
    /// With frame pointers, with which every function must be compiled
    Fp,
}

/// Call stacks to record.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum Stacks {
    /// Call stacks of allocations
    Alloc,
    /// Call stacks of allocations and releases
    All,
}

/// Action of a thread when its ring is full.
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

/// Counting of reads and writes of blocks.
#[derive(Clone, Copy, Default, PartialEq, clap::ValueEnum)]
pub enum Access {
    /// Count them if the program reports them and the trace is recorded or scored
    #[default]
    Auto,
    /// Always count them, and refuse a program that does not report them
    On,
    /// Watch a sample of the blocks, in any program: some allocations wait, for 2 ms at most, until watchpoints are on
    /// their block, and each access to a watched word costs a trap
    Sampled,
    /// Never count them
    Off,
}

/// Options about tracing.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Tracing")]
pub struct Tracing {
    /// Frames to record of each call stack
    ///
    /// The default is 32, or 64 with a recording and for `run` and `gate`. Outer frames beyond that are cut off, and
    /// shown as "…".
    #[arg(long, value_name = "N", alias = "max-stack", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub depth: Option<u32>,
    /// Hook only these functions (malloc,free,...)
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub functions: Vec<String>,
    /// Trace mappings, too: mmap, mremap, munmap, brk, madvise, shmat
    ///
    /// Mappings are a second kind of memory, with their own part in the report. Memory that allocators map belongs to
    /// their heaps and is left out. Calls that bypass the C library's functions are not seen; the report compares the
    /// traced mappings with /proc. Mappings are never sampled or filtered. Beside a recording NAME.mhk, they are
    /// recorded into NAME.mappings.mhk.
    #[arg(long)]
    pub mappings: bool,
    /// Ignore blocks that are smaller (4K, 1M)
    #[arg(short = 'z', long, value_name = "SIZE", value_parser = units::size)]
    pub min_size: Option<u64>,
    /// Ignore blocks that are larger
    #[arg(short = 'Z', long, value_name = "SIZE", value_parser = units::size)]
    pub max_size: Option<u64>,
    /// Record only blocks of exactly these sizes
    #[arg(long = "size", value_name = "SIZES", value_delimiter = ',', value_parser = units::size)]
    pub sizes: Vec<u64>,
    /// Record a random sample, one per this many bytes
    ///
    /// On average, one allocation in this many allocated bytes is recorded. Reports are then
    /// estimates, with standard errors.
    #[arg(long, value_name = "BYTES", value_parser = units::size)]
    pub sample: Option<u64>,
    /// Share of the process's time that tracing may take
    ///
    /// memhook-rs records everything as long as that costs less, as measured in the process. Otherwise it records a
    /// random sample, at a distance that adapts to the process; reports say since when, and give standard errors.
    /// Above 0% and up to 50%.
    #[arg(long, value_name = "PERCENT", value_parser = units::budget)]
    pub overhead: Option<f64>,
    /// Time the allocator's work by site
    ///
    /// memhook-rs times a random sample of the calls, from the call of the allocator until it returns, including waits
    /// for its locks and for a processor. Rows show the time of their allocations, with a standard error; --sort time
    /// puts the longest first. Releases are not timed. Not with --access sampled.
    #[arg(long, hide_short_help = true)]
    pub alloc_time: bool,
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
    #[arg(long, value_name = "SIZE", value_parser = units::size, hide_short_help = true)]
    pub ring_size: Option<u64>,
    /// Limit of threads that empty the event rings [default: by the processors]
    ///
    /// One thread does it as long as it keeps up. The default maximum is a quarter of the processors that memhook-rs
    /// may use, or the number of those that the program may not use, if that is larger; at most 8. It is always one if
    /// events are recorded, if mappings or described allocators are traced, and with --overhead.
    #[arg(long, value_name = "N", value_parser = drains, hide_short_help = true)]
    pub drains: Option<usize>,
    /// At a full event ring: wait, drop or adapt
    ///
    /// `attach`, `top` and `watch` adapt, so that a process that was already running keeps its speed. They wait with
    /// --scores, --access or --record summary, which need every event, and so do `run` and `gate`.
    #[arg(long, value_enum, value_name = "ACTION")]
    pub on_full: Option<OnFull>,
    /// Count reads and writes of blocks: auto, on, sampled or off
    ///
    /// To count all of them, the program has to report them: see `memhook-rs sdk`. In any program, memhook-rs can
    /// watch a sample of the blocks. Usage and useful lifetime are computed from these (--scores).
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        hide_short_help = true
    )]
    pub access: Access,
    /// Share of the program's time that --access sampled may cost [default: 2%]
    #[arg(long, value_name = "SHARE", value_parser = units::budget, hide_short_help = true)]
    pub access_budget: Option<f64>,
    /// Memory limit for live blocks (512M, 2G)
    ///
    /// memhook-rs keeps the live blocks and call stacks of each traced process in this much memory. The limit is at
    /// least 4M; by default it is a quarter of the free memory, up to 1G. Beyond it, allocations are still counted
    /// exactly, but only a sample of the live blocks is kept, the largest first: what is live becomes an estimate
    /// with a standard error, reports say so in their first lines, and a gate gives no verdict. Leaks are still
    /// found.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub max_memory: Option<u64>,
    #[command(flatten)]
    pub allocators: Allocators,
    #[command(flatten)]
    pub cache: CacheArgs,
}

/// Options that describe allocators other than malloc and its kin.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Allocators of your own")]
pub struct Allocators {
    /// A function that allocates: 'pool_alloc(size=arg2) -> ptr'
    ///
    /// The function is name, module!name or module+0xoffset, mangled or not. size= and, as for calloc, count= are
    /// arguments (arg1 to arg6; arg2:32 for an int or unsigned), or size=fixed:64 for all blocks. The function returns
    /// the block (-> ptr), or stores its address where an argument points (ptr=*arg1). It succeeds always, or if it
    /// returns 0 (-> 0) or another number (-> nonzero). All functions described together are one heap, with its own
    /// rows and sums. May be given several times.
    #[arg(long = "alloc-func", value_name = "FUNCTION", value_parser = allocates)]
    pub alloc: Vec<AllocatorFunction>,
    /// A function that releases: 'pool_free(ptr=arg1)'
    ///
    /// Or ptr=*arg1, if the argument says where the pointer is. May be given several times.
    #[arg(long = "free-func", value_name = "FUNCTION", value_parser = releases, hide_short_help = true)]
    pub free: Vec<AllocatorFunction>,
    /// A function that replaces: 'pool_realloc(ptr=arg1, size=arg2) -> ptr'
    ///
    /// May be given several times.
    #[arg(long = "realloc-func", value_name = "FUNCTION", value_parser = reallocates, hide_short_help = true)]
    pub realloc: Vec<AllocatorFunction>,
    /// Name of the heap of these functions in reports [default: the name of the first]
    #[arg(long, value_name = "NAME", requires = "alloc", hide_short_help = true)]
    pub heap_name: Option<String>,
    /// A file that describes allocators: docs/allocators.md
    #[arg(long = "allocators", value_name = "FILE", value_parser = allocators_file)]
    pub files: Vec<AllocatorFile>,
}

/// The allocators of one file.
#[derive(Clone)]
pub struct AllocatorFile(pub Vec<Allocator>);

fn allocates(text: &str) -> Result<AllocatorFunction, String> {
    AllocatorFunction::parse(DescribedRole::Allocates, text)
}

fn releases(text: &str) -> Result<AllocatorFunction, String> {
    AllocatorFunction::parse(DescribedRole::Releases, text)
}

fn reallocates(text: &str) -> Result<AllocatorFunction, String> {
    AllocatorFunction::parse(DescribedRole::Reallocates, text)
}

fn allocators_file(path: &str) -> Result<AllocatorFile, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    Allocator::file(&text)
        .map(AllocatorFile)
        .map_err(|why| format!("{path}:{why}"))
}

impl Allocators {
    /// Returns true if there is any.
    pub fn is_used(&self) -> bool {
        !self.alloc.is_empty()
            || !self.free.is_empty()
            || !self.realloc.is_empty()
            || !self.files.is_empty()
    }

    /// Returns all of them, starting with those of the command line.
    pub fn all(&self) -> Vec<Allocator> {
        let functions = [&self.alloc, &self.free, &self.realloc].map(|f| f.iter().cloned());
        let functions: Vec<AllocatorFunction> = functions.into_iter().flatten().collect();
        let first = functions.first().map(|f| f.selector.text.replace('!', " "));
        let name = first.map(|first| self.heap_name.clone().unwrap_or(first));
        let named = name.map(|name| Allocator { name, functions });
        let of_files = self.files.iter().flat_map(|file| file.0.iter().cloned());
        named.into_iter().chain(of_files).collect()
    }
}

/// Parses a number of threads, at most as many as there are processors for.
fn drains(text: &str) -> Result<usize, String> {
    // By its affinity, and the quota of its control group.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    match text.parse::<usize>() {
        Ok(count) if (1..=processors.min(memhook_ledger::MOST_SHARDS)).contains(&count) => {
            Ok(count)
        }
        Ok(count @ 2..) if count > processors => Err(format!(
            "memhook-rs may use {processors} processor{}, and each thread needs one",
            if processors == 1 { "" } else { "s" }
        )),
        _ => Err(format!(
            "a number from 1 to {}",
            memhook_ledger::MOST_SHARDS
        )),
    }
}

/// Parses a size that is large enough for a ledger.
fn memory(text: &str) -> Result<u64, String> {
    let least = memhook_ledger::LEAST_BYTES as u64;
    match units::size(text).map_err(|error| error.to_string())? {
        bytes if bytes < least => Err(format!(
            "{bytes} bytes are too few: the table of live blocks needs at least {}M",
            least >> 20
        )),
        bytes => Ok(bytes),
    }
}

/// Depth of stacks in a live report. Few programs call deeper, and frames beyond the tenth cost little
/// (docs/measurements.md).
pub const DEPTH: u32 = 32;
/// Depth for trees and flame graphs. Without its outermost frames, a stack seems to begin elsewhere.
pub const DEPTH_TO_ROOTS: u32 = 64;

impl Tracing {
    /// Sets a default depth.
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

    /// Returns the options for a process that must keep its speed: its threads adapt at a full ring, unless another
    /// action was chosen or every allocation is needed.
    pub fn for_running(&self) -> Tracing {
        let is_sampled = self.sample.is_some() || self.overhead.is_some();
        let needs_all = matches!(self.access, Access::On | Access::Sampled);
        let otherwise = (!is_sampled && !needs_all).then_some(OnFull::Adapt);
        Tracing {
            on_full: self.on_full.or(otherwise),
            ..self.clone()
        }
    }

    /// Returns true if a thread whose ring is nearly full takes samples.
    pub fn adapts(&self) -> bool {
        self.on_full == Some(OnFull::Adapt)
    }

    /// Returns true if allocations are left out by size or by chance.
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
