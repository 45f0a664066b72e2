//! Options for what is traced, and how.

use memhook_foreign::units;
use memhook_probe::Allocator;

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
    /// Trace mappings, too: mmap, mremap, munmap, brk, madvise, shmat
    ///
    /// Mappings are a second kind of memory, with their own part in the report. Memory that allocators map belongs to
    /// their heaps and is left out. Calls that bypass the C library's functions are not seen; the report compares the
    /// traced mappings with /proc. Mappings are never sampled or filtered. Beside a recording NAME.mhk, they are
    /// recorded into NAME.mappings.mhk.
    #[arg(long)]
    pub mappings: bool,
    /// Record only blocks of these sizes (4K.., ..1M, 64,128)
    ///
    /// A range, both of whose ends count, or up to 8 exact sizes.
    #[arg(long = "size", value_name = "SIZES", value_parser = sizes)]
    pub sizes: Option<Sizes>,
    /// Record a random sample, at this mean distance in bytes
    ///
    /// On average, one allocation is recorded in each BYTES allocated bytes. Reports are then
    /// estimates, with standard errors.
    #[arg(long, value_name = "BYTES", value_parser = units::size)]
    pub sample: Option<u64>,
    /// Share of the process's time that tracing may take
    ///
    /// memhook-rs records everything as long as that costs less, as measured in the process. Otherwise it records a
    /// random sample, at a distance that adapts to the process. Reports state since when, and give standard errors.
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
    /// Unwind each remembered backtrace again and compare
    #[arg(long, hide = true)]
    pub check_memo: bool,
    /// At a full event ring: wait, drop or adapt
    ///
    /// `attach`, `top` and `watch` adapt, so that a process that was already running keeps its speed. With --scores,
    /// --access or --record summary, which need every event, they wait. `run` and `gate` always wait.
    #[arg(long, value_enum, value_name = "ACTION")]
    pub on_full: Option<OnFull>,
    /// Count reads and writes of blocks: auto, on, sampled or off
    ///
    /// Usage and useful lifetime (--scores) are computed from accesses. To count all accesses, the program has to report
    /// them: see `memhook-rs sdk`.
    ///
    /// auto counts accesses if the program reports them and the trace is recorded or scored. on counts them always, and
    /// refuses a program that does not report them. off never counts them.
    ///
    /// sampled watches a sample of the blocks, in any program. Some allocations wait until watchpoints are on their
    /// block, for at most 2 ms, and each access to a watched word causes a trap. Both take at most 2 % of the program's
    /// time; sampled=1% sets another limit.
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        value_parser = accesses,
        hide_short_help = true
    )]
    pub access: Accesses,
    /// Memory limit for live blocks (512M, 2G)
    ///
    /// This is the maximum memory for the live blocks and call stacks of each traced process. It is at least 4M; by
    /// default it is a quarter of the free memory, up to 1G. Beyond the limit, allocations are still counted exactly,
    /// but only a sample of the live blocks is kept, with the largest blocks first. Live sums become estimates with a
    /// standard error, reports state this in their first lines, and a gate gives no verdict. Leaks are still found.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub max_memory: Option<u64>,
    #[command(flatten)]
    pub allocators: Allocators,
    /// Change a detail of tracing (clock=tsc, ring-size=16M)
    ///
    /// Few programs need this. Give one --set for each detail.
    ///
    /// functions=malloc,free hooks only these functions.
    ///
    /// unwind=table, the default, unwinds call stacks with tables compiled from .eh_frame, so the program needs no frame
    /// pointers. unwind=fp uses frame pointers; every function must be compiled with them.
    ///
    /// clock=coarse, the default, takes time stamps from a word in memory that memhook-rs updates every millisecond;
    /// clock=tsc from the processor's time-stamp counter; clock=monotonic from clock_gettime(CLOCK_MONOTONIC);
    /// clock=attacher from the moment at which memhook-rs reads the event.
    ///
    /// ring-size=16M is the largest size of a thread's event ring. The default is 1M, or 256K with --on-full adapt.
    ///
    /// drains=2 lets at most two threads of memhook-rs empty the event rings. One thread does so as long as it is fast
    /// enough. The default limit is a quarter of the processors that memhook-rs may use, or the number of processors
    /// that the program may not use, whichever is larger, and at most 8. There is always only one thread if events are
    /// recorded, if mappings or described allocators are traced, and with --overhead.
    #[arg(
        long = "set",
        value_name = "NAME=VALUE",
        value_parser = setting,
        hide_short_help = true,
        help_heading = "Tracing"
    )]
    pub settings: Vec<Setting>,
}

/// Sizes of the blocks to record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sizes {
    pub smallest: Option<u64>,
    pub largest: Option<u64>,
    pub exact: Vec<u64>,
}

/// Parses `4K..1M`, `4K..`, `..1M`, or `64,128`.
fn sizes(text: &str) -> Result<Sizes, String> {
    let size = |text: &str| units::size(text).map_err(|error| error.to_string());
    let end = |text: &str| (!text.is_empty()).then(|| size(text)).transpose();
    let Some((smallest, largest)) = text.split_once("..") else {
        let exact = text.split(',').map(size).collect::<Result<_, _>>()?;
        return Ok(Sizes {
            exact,
            ..Sizes::default()
        });
    };
    Ok(Sizes {
        smallest: end(smallest)?,
        largest: end(largest)?,
        exact: Vec::new(),
    })
}

/// Method of counting accesses, and the share of the program's time that sampling them may take.
#[derive(Clone, Copy, Default)]
pub struct Accesses {
    pub access: Access,
    pub budget: Option<f64>,
}

/// Parses `auto`, `on`, `off`, `sampled` or `sampled=2%`.
fn accesses(text: &str) -> Result<Accesses, String> {
    let (word, budget) = match text.split_once('=') {
        Some((word @ "sampled", share)) => (
            word,
            Some(units::budget(share).map_err(|error| error.to_string())?),
        ),
        _ => (text, None),
    };
    let access = choice(word)?;
    Ok(Accesses { access, budget })
}

/// A detail of tracing that few programs need.
#[derive(Clone)]
pub enum Setting {
    Functions(Vec<String>),
    Unwind(Unwind),
    Clock(Clock),
    RingSize(u64),
    Drains(usize),
}

/// Parses `NAME=VALUE`.
fn setting(text: &str) -> Result<Setting, String> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    match name {
        "functions" => Ok(Setting::Functions(
            value.split(',').map(str::to_owned).collect(),
        )),
        "unwind" => choice(value).map(Setting::Unwind),
        "clock" => choice(value).map(Setting::Clock),
        "ring-size" => units::size(value)
            .map(Setting::RingSize)
            .map_err(|error| error.to_string()),
        "drains" => drains(value).map(Setting::Drains),
        _ => Err("expected functions=, unwind=, clock=, ring-size= or drains=".into()),
    }
}

/// Returns the choice with this name.
fn choice<T: clap::ValueEnum>(word: &str) -> Result<T, String> {
    T::from_str(word, false).map_err(|_| {
        let names = T::value_variants().iter();
        let names =
            names.filter_map(|choice| Some(choice.to_possible_value()?.get_name().to_owned()));
        format!("expected one of {}", names.collect::<Vec<_>>().join(", "))
    })
}

/// Options that describe allocators other than malloc and its kin.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Allocators of your own")]
pub struct Allocators {
    /// An allocator of your own, or a file of them: docs/allocators.md
    ///
    /// Describe the functions as in 'alloc pool_alloc(size=arg2) -> ptr; free pool_free(ptr=arg1); realloc
    /// pool_realloc(ptr=arg1, size=arg2) -> ptr'. Together they form one heap with its own rows and sums. The heap is
    /// named after the first function, or after a word before the functions: 'pool: alloc ...'. May be given several
    /// times.
    ///
    /// A function is NAME, MODULE!NAME or MODULE+0xOFFSET, mangled or not. size= and, as for calloc, count= are
    /// arguments (arg1 to arg6; arg2:32 for an int or unsigned); size=fixed:64 means that all blocks have 64 bytes.
    ///
    /// The function returns the block (-> ptr), or stores its address where an argument points (ptr=*arg1). It
    /// succeeds always, or if it returns 0 (-> 0) or another number (-> nonzero).
    #[arg(long = "allocators", value_name = "TEXT|FILE", value_parser = allocators)]
    given: Vec<Described>,
}

/// Allocators that one option describes.
#[derive(Clone)]
struct Described(Vec<Allocator>);

/// Parses a description, or reads a file of them. No description is without parentheses.
fn allocators(text: &str) -> Result<Described, String> {
    if text.contains('(') && !std::path::Path::new(text).is_file() {
        return Allocator::parse(text).map(|one| Described(vec![one]));
    }
    let bytes = std::fs::read(text).map_err(|error| error.to_string())?;
    let contents = String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    Allocator::file(&contents)
        .map(Described)
        .map_err(|why| format!("{text}:{why}"))
}

impl Allocators {
    /// Returns true if allocators are described.
    pub fn is_used(&self) -> bool {
        !self.given.is_empty()
    }

    /// Returns all of them.
    pub fn all(&self) -> Vec<Allocator> {
        let all = self.given.iter().flat_map(|described| &described.0);
        all.cloned().collect()
    }
}

/// Parses a number of threads, which may not exceed the number of processors.
fn drains(text: &str) -> Result<usize, String> {
    // The processors are limited by the process's affinity and by the quota of its control group.
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

impl Tracing {
    /// Refuses sampled accesses if nothing uses them.
    pub fn refuse_sampled_accesses(&self, command: &str) -> anyhow::Result<()> {
        if self.access.access == Access::Sampled {
            anyhow::bail!(
                "{command} has no scores of sampled accesses: use attach or run with --access sampled, or leave it out"
            );
        }
        Ok(())
    }

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

    /// Returns the options for a process that must keep its speed. Its threads adapt at a full
    /// ring, unless another action was chosen or every allocation is needed.
    pub fn for_running(&self) -> Tracing {
        let is_sampled = self.sample.is_some() || self.overhead.is_some();
        let needs_all = matches!(self.access.access, Access::On | Access::Sampled);
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

    /// Returns the functions to hook; all if there are none.
    pub fn functions(&self) -> Vec<String> {
        let mut chosen = self.settings.iter().rev();
        let names = chosen.find_map(|setting| match setting {
            Setting::Functions(names) => Some(names.clone()),
            _ => None,
        });
        names.unwrap_or_default()
    }

    /// Returns true if allocations are left out by size or by chance.
    pub fn is_selective(&self) -> bool {
        self.sizes.is_some() || self.sample.is_some()
    }
}

/// Options of the commands that start a program.
#[derive(clap::Args)]
pub struct StartOptions {
    /// Trace the processes that it starts, too
    #[arg(long)]
    pub follow_fork: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_ranges_or_exact() {
        let all = |smallest, largest| Sizes {
            smallest,
            largest,
            exact: Vec::new(),
        };
        assert_eq!(sizes("4K..1M"), Ok(all(Some(4096), Some(1 << 20))));
        assert_eq!(sizes("10.."), Ok(all(Some(10), None)));
        assert_eq!(sizes("..10"), Ok(all(None, Some(10))));
        assert_eq!(sizes("64,128").map(|sizes| sizes.exact), Ok(vec![64, 128]));
        for bad in ["", "x", "4K..x", "1,,2", "-1"] {
            assert!(sizes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_setting_has_a_known_name_and_a_value() {
        let known = [
            "functions=malloc,free",
            "unwind=fp",
            "clock=tsc",
            "ring-size=64K",
            "drains=1",
        ];
        assert!(known.into_iter().all(|text| setting(text).is_ok()));
        for bad in [
            "",
            "clock",
            "clock=",
            "clock=sun",
            "ring-size=x",
            "drains=0",
            "depth=3",
        ] {
            assert!(setting(bad).is_err(), "{bad}");
        }
        assert_eq!(
            setting("unwind=x").err().as_deref(),
            Some("expected one of table, fp")
        );
    }

    #[test]
    fn only_sampled_accesses_have_a_budget() {
        let sampled = accesses("sampled=5%").expect("it is right");
        assert_eq!(
            (sampled.access == Access::Sampled, sampled.budget),
            (true, Some(0.05))
        );
        for bad in ["", "on=5%", "sampled=", "sampled=0"] {
            assert!(accesses(bad).is_err(), "{bad}");
        }
    }
}
