//! Settings of a trace: everything that is decided before the process is touched.

pub(crate) mod emission;

use crate::tracing_budget::{
    FIRST_LEVEL, LEAST_SAMPLE_BYTES, MOST_SAMPLE_BYTES, level_of, mean_bytes,
};
use emission::Emission;
use memhook_abi::{
    Function, HOOKED_FUNCTIONS, MAX_DEPTH, MAX_EXACT_SIZES, Role, clock_mode, flags, region_bytes,
};
use memhook_ledger::SampledAllocations;
use memhook_probe::{Allocator, check_allocators};
use memhook_stream::{Config, Plan};
use std::{collections::HashSet, ops::RangeInclusive};

/// Size range of a full-grown ring, in bytes.
const RING_BYTES: RangeInclusive<u64> = 64 << 10..=memhook_abi::MOST_RING_BYTES as u64;
/// Range of the mean distance between samples, in bytes.
const SAMPLE_BYTES: RangeInclusive<u64> = 1..=1 << 30;
/// Mean bytes between samples of a thread whose ring is nearly full. The distance is large enough that a few threads
/// that only allocate cannot fill their rings with samples, and small enough that an estimate of ten megabytes is
/// accurate to within a twelfth.
const FULL_RING_SAMPLE_BYTES: u64 = 64 << 10;
/// Default size of a full-grown ring, in bytes.
pub(crate) const USUAL_RING_BYTES: u64 = 1 << 20;
/// Largest allowed share of a process's time for tracing.
const MOST_OVERHEAD: f64 = 0.5;
/// Range of the number of frames in a backtrace.
pub const DEPTHS: RangeInclusive<u32> = 1..=MAX_DEPTH as u32;
/// Number of frames of a backtrace in a live report. Few programs have deeper stacks, and frames beyond the tenth cost
/// little (docs/measurements.md).
pub const DEPTH_OF_REPORTS: u32 = 32;
/// Number of frames of a backtrace for trees, flame graphs and profiles. Without its outermost frames, a backtrace seems
/// to begin elsewhere.
pub const DEPTH_TO_ROOTS: u32 = 64;

/// Source of time stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// A word that the attacher advances about every millisecond.
    Coarse,
    /// The processor's time stamp counter.
    Tsc,
    /// clock_gettime(2) with CLOCK_MONOTONIC.
    Monotonic,
    /// The time at which the attacher takes the event.
    Attacher,
}

impl Clock {
    /// Returns the value for [`memhook_abi::Control::clock_mode`].
    fn mode(self) -> u32 {
        match self {
            Clock::Coarse => clock_mode::COARSE,
            Clock::Tsc => clock_mode::TSC,
            Clock::Monotonic => clock_mode::MONOTONIC,
            Clock::Attacher => clock_mode::ATTACHER,
        }
    }

    /// Returns the clock with this value of [`memhook_abi::Control::clock_mode`].
    pub(crate) fn of_mode(mode: u32) -> Option<Clock> {
        [Clock::Coarse, Clock::Tsc, Clock::Monotonic, Clock::Attacher]
            .into_iter()
            .find(|clock| clock.mode() == mode)
    }
}

/// Method of unwinding call stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwinding {
    /// By tables compiled from `.eh_frame`, which are exact without frame pointers.
    Tables,
    /// Along frame pointers.
    FramePointers,
}

/// Operations whose call stacks are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stacks {
    /// Call stacks of allocations.
    Allocations,
    /// Stacks of allocations and of releases.
    All,
}

/// Reaction of a target's thread to a full ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// The thread waits for room.
    Wait,
    /// The thread drops the event, which counts as lost.
    Drop,
    /// The thread waits for a short time. If such waits are too frequent, the thread samples its allocations before its
    /// ring is full, and reports mark the numbers as estimates. After that the thread waits only if releases alone fill
    /// the ring.
    Adapt,
}

impl OnFull {
    /// Returns the default size of a full-grown ring, in bytes.
    pub fn usual_ring_bytes(self) -> u64 {
        match self {
            OnFull::Wait | OnFull::Drop => USUAL_RING_BYTES,
            // A larger ring would also fill up, and emptying it would slow down the program even more.
            OnFull::Adapt => 256 << 10,
        }
    }
}

/// Counting of reads and writes of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accesses {
    /// Off.
    Off,
    /// Counted if the program reports them: it was compiled for that and links the access runtime.
    IfTold,
    /// Counted; the trace fails if the program does not report them.
    Needed,
    /// Estimated by watchpoints on a sample of the blocks; the program reports nothing.
    Sampled,
}

/// Resolved configuration of a trace.
#[derive(Clone, Debug)]
pub struct TraceConfig {
    /// Frames to collect per call stack (1 to 128).
    pub depth: u32,
    /// Functions to hook, by name or kind (`malloc`, `new`); empty: all.
    pub functions: Vec<String>,
    /// Record only blocks of at least this size.
    pub min_size: Option<u64>,
    /// Record only blocks of at most this size.
    pub max_size: Option<u64>,
    /// Record only blocks of exactly these sizes; empty: all sizes.
    pub sizes: Vec<u64>,
    /// Mean bytes between samples; `None`: every allocation is recorded.
    pub sample_bytes: Option<u64>,
    /// Share of the process's time that tracing may take. If tracing would exceed it, allocations are sampled. `None`:
    /// no limit.
    pub overhead: Option<f64>,
    /// Record everything at first, even with [`TraceConfig::overhead`]: the program begins with the trace. Otherwise a
    /// trace within a budget begins with rare samples, from which it learns the traffic.
    pub is_exact_first: bool,
    /// Operations whose call stacks are recorded.
    pub stacks: Stacks,
    /// Method of unwinding call stacks.
    pub unwinding: Unwinding,
    /// Unwind each remembered backtrace again and compare.
    pub check_memo: bool,
    /// Source of time stamps.
    pub clock: Clock,
    /// Size of a full-grown ring in bytes: a power of two from 64 KiB to 64 MiB.
    pub ring_bytes: u64,
    /// Reaction of a thread to a full ring.
    pub on_full: OnFull,
    /// Maximum number of threads that empty the rings, at most [`memhook_ledger::MOST_SHARDS`]. More than one thread is
    /// used only if one is too slow. `None`: depends on the number of processors.
    pub drains: Option<usize>,
    /// Maximum number of bytes for live blocks and call stacks; `None`: a quarter of the memory that is free for this
    /// process, and at most 1 GiB.
    pub max_memory: Option<u64>,
    /// True to record calls of `mmap` and related functions as well.
    pub mappings: bool,
    /// Counting of reads and writes of blocks. If they are counted, time stamps are finer than those of
    /// [`Clock::Coarse`].
    pub accesses: Accesses,
    /// True to time the allocator in a sample of the calls. Excludes [`Accesses::Sampled`].
    pub call_times: bool,
    /// Further allocators, described by the user. Each has its own heap.
    pub allocators: Vec<Allocator>,
    /// True to remember the addresses of released blocks of [`TraceConfig::allocators`], so that a search for pointers
    /// can skip stale contents.
    pub keeps_released: bool,
    /// If set, the trace records nothing, and the hook's probes report allocations to listeners: a sample if
    /// [`TraceConfig::sample_bytes`] is set, otherwise all.
    pub emits: Option<Emission>,
}

impl Default for TraceConfig {
    fn default() -> TraceConfig {
        TraceConfig {
            depth: 10,
            functions: Vec::new(),
            min_size: None,
            max_size: None,
            sizes: Vec::new(),
            sample_bytes: None,
            overhead: None,
            is_exact_first: false,
            stacks: Stacks::Allocations,
            unwinding: Unwinding::Tables,
            check_memo: false,
            clock: Clock::Coarse,
            ring_bytes: USUAL_RING_BYTES,
            on_full: OnFull::Wait,
            drains: None,
            max_memory: None,
            mappings: false,
            accesses: Accesses::Off,
            call_times: false,
            allocators: Vec::new(),
            keeps_released: false,
            emits: None,
        }
    }
}

/// Reason why a configuration is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Too few or too many frames.
    #[error("a depth of {0} frames is not possible: choose 1 to 128")]
    Depth(u32),
    /// Minimum size above the maximum size.
    #[error(
        "the smallest size {min} is above the largest {max}, so no block would match: swap them"
    )]
    CrossedSizes {
        /// Minimum size.
        min: u64,
        /// Maximum size.
        max: u64,
    },
    /// Too many exact sizes.
    #[error(
        "{0} exact sizes are too many: give at most {MAX_EXACT_SIZES}, or a smallest and a largest size"
    )]
    TooManySizes(usize),
    /// Ring size out of range.
    #[error("a ring size of {0} bytes is not possible: choose a power of two from 64K to 64M")]
    RingBytes(u64),
    /// Two settings that both sample.
    #[error("samples do not fill a ring, so there is nothing to adapt to")]
    AdaptedSamples,
    /// Counted accesses together with a setting that skips blocks or time stamps.
    #[error("counting accesses needs a trace of every block, with exact times")]
    PartialAccesses,
    /// Sampled accesses together with a setting that skips allocations or time stamps.
    #[error("sampling accesses needs a trace of every allocation, with exact times")]
    PartialLooks,
    /// Two settings that both choose random allocations.
    #[error(
        "timing the allocator and sampling accesses exclude each other: both choose allocations at random"
    )]
    TimedLooks,
    /// A budget together with another setting that samples.
    #[error("a budget chooses the samples itself")]
    OtherSamples,
    /// Budget out of range.
    #[error("an overhead of {}% is not possible: choose one above 0% and up to 50%, such as 2%", .0 * 100.0)]
    Overhead(f64),
    /// Distance between samples out of range.
    #[error("a sample every {0} bytes is not possible: choose 1 byte to 1G, such as 512K")]
    SampleBytes(u64),
    /// Described allocators that are ambiguous or too many.
    #[error("{0}")]
    Allocators(String),
    /// Unknown name or kind of a hooked function.
    #[error(
        "no such function to hook: {0}; known are malloc, free, calloc, realloc, new, delete, ..."
    )]
    UnknownFunction(String),
}

fn is_named(function: &Function, name: &str) -> bool {
    !matches!(function.role, Role::Accesses | Role::Touches)
        && (function.kind == name || function.name == name)
}

impl TraceConfig {
    /// Checks that each setting is within its range and that all settings fit together.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !DEPTHS.contains(&self.depth) {
            return Err(ConfigError::Depth(self.depth));
        }
        if let (Some(min), Some(max)) = (self.min_size, self.max_size)
            && min > max
        {
            return Err(ConfigError::CrossedSizes { min, max });
        }
        if self.sizes.len() > MAX_EXACT_SIZES {
            return Err(ConfigError::TooManySizes(self.sizes.len()));
        }
        if !self.ring_bytes.is_power_of_two() || !RING_BYTES.contains(&self.ring_bytes) {
            return Err(ConfigError::RingBytes(self.ring_bytes));
        }
        if let Some(mean) = self.sample_bytes
            && !SAMPLE_BYTES.contains(&mean)
        {
            return Err(ConfigError::SampleBytes(mean));
        }
        if self.accesses == Accesses::Needed && !self.may_count_accesses() {
            return Err(ConfigError::PartialAccesses);
        }
        if self.accesses == Accesses::Sampled && !self.may_have_looks() {
            return Err(ConfigError::PartialLooks);
        }
        if self.call_times && self.accesses == Accesses::Sampled {
            return Err(ConfigError::TimedLooks);
        }
        if let Some(share) = self.overhead {
            if !(share > 0.0 && share <= MOST_OVERHEAD) {
                return Err(ConfigError::Overhead(share));
            }
            if self.sample_bytes.is_some() || self.on_full == OnFull::Adapt {
                return Err(ConfigError::OtherSamples);
            }
        }
        if self.sample_bytes.is_some() && self.on_full == OnFull::Adapt {
            return Err(ConfigError::AdaptedSamples);
        }
        if !self.allocators.is_empty() {
            check_allocators(&self.allocators).map_err(ConfigError::Allocators)?;
        }
        let is_known = |name: &&String| {
            let mut functions = HOOKED_FUNCTIONS.iter();
            functions.any(|f| {
                !matches!(f.role, Role::Forks | Role::Maps | Role::Marks) && is_named(f, name)
            })
        };
        match self.functions.iter().find(|name| !is_known(name)) {
            Some(name) => Err(ConfigError::UnknownFunction(name.clone())),
            None => Ok(()),
        }
    }

    /// Returns the configuration without mappings and without described allocators.
    pub fn of_heap_alone(&self) -> TraceConfig {
        TraceConfig {
            mappings: false,
            allocators: Vec::new(),
            ..self.clone()
        }
    }

    /// Mean bytes between samples of level 1 ([`memhook_ledger::SampledAllocations`]). Depending on the configuration,
    /// the samples are taken always, while a ring is nearly full, or when the budget requires them.
    pub(crate) fn possible_sample_bytes(&self) -> Option<u64> {
        let when_full = (self.on_full == OnFull::Adapt).then_some(FULL_RING_SAMPLE_BYTES);
        let in_budget = self.overhead.map(|_| LEAST_SAMPLE_BYTES);
        self.sample_bytes.or(when_full).or(in_budget)
    }

    /// Returns empty counters for the samples of a trace.
    pub fn sampled_allocations(&self) -> SampledAllocations {
        SampledAllocations::new(self.possible_sample_bytes(), self.sample_bytes.is_some())
    }

    /// Mean distance of the sample intervals that the hook receives, in bytes.
    fn hook_sample_bytes(&self) -> Option<u64> {
        let in_budget = self.overhead.map(|_| MOST_SAMPLE_BYTES);
        in_budget.or(self.possible_sample_bytes())
    }

    /// Returns the sampling level at which a trace within a budget begins.
    pub(crate) fn first_level(&self) -> u8 {
        match self.overhead {
            Some(_) if !self.is_exact_first => FIRST_LEVEL,
            _ => 0,
        }
    }

    /// Returns the sampling level of allocations that the process samples at this mean distance.
    pub(crate) fn sampling_level(&self, mean_bytes: u64) -> u8 {
        if self.overhead.is_some() {
            return level_of(mean_bytes);
        }
        let may_begin = mean_bytes != 0 && self.possible_sample_bytes().is_some();
        u8::from(may_begin || self.sample_bytes.is_some())
    }

    /// Returns true if the size filter or sampling skips allocations.
    pub fn is_selective(&self) -> bool {
        self.is_filtered() || self.sample_bytes.is_some()
    }

    fn is_filtered(&self) -> bool {
        self.min_size.is_some() || self.max_size.is_some() || !self.sizes.is_empty()
    }

    /// Returns true if an event may combine a release with its allocation, because no data about the release itself is
    /// required.
    fn folds_pairs(&self) -> bool {
        self.stacks != Stacks::All
            && self.clock == Clock::Coarse
            && !self.is_selective()
            && self.emits.is_none()
            && !self.check_memo
    }

    /// Bytes of address space that the shared region takes in the target.
    pub fn region_bytes(&self) -> u64 {
        region_bytes(self.ring_bytes as usize) as u64
    }

    /// Ids of the functions to hook, which always include `dlopen` and related functions.
    pub(crate) fn function_ids(&self) -> HashSet<usize> {
        let is_wanted = |function: &Function| match function.role {
            Role::Modules | Role::Marks | Role::Forks => true,
            Role::Maps => self.mappings,
            Role::Accesses | Role::Touches => self.may_count_accesses(),
            _ => {
                self.functions.is_empty()
                    || self.functions.iter().any(|name| is_named(function, name))
            }
        };
        (0..HOOKED_FUNCTIONS.len())
            .filter(|&id| is_wanted(&HOOKED_FUNCTIONS[id]))
            .collect()
    }

    /// Returns true if the configuration allows counting the reads and writes that the program reports: it records all
    /// blocks, and the hook takes the time stamps.
    fn may_count_accesses(&self) -> bool {
        matches!(self.accesses, Accesses::IfTold | Accesses::Needed)
            && !self.is_selective()
            && self.overhead.is_none()
            && self.clock != Clock::Attacher
    }

    /// Returns true if the configuration allows watchpoints on randomly chosen blocks.
    fn may_have_looks(&self) -> bool {
        !self.is_selective()
            && self.overhead.is_none()
            && self.on_full != OnFull::Adapt
            && self.clock != Clock::Attacher
    }

    /// Returns the value for [`memhook_abi::Control::clock_mode`].
    pub(crate) fn clock_mode(&self) -> u32 {
        self.clock.mode()
    }

    /// Returns the [`flags`] for the hook.
    pub(crate) fn flags(&self) -> u32 {
        [
            (self.is_filtered(), flags::SIZE_FILTER),
            (self.sample_bytes.is_some(), flags::SAMPLE),
            (
                self.is_selective() || self.emits.is_some() || self.overhead.is_some(),
                flags::LIVE_FILTER,
            ),
            (self.emits.is_some(), flags::EMITS),
            (self.stacks == Stacks::All, flags::RELEASE_STACKS),
            (self.folds_pairs(), flags::FOLD_PAIRS),
            (
                self.unwinding == Unwinding::FramePointers,
                flags::FRAME_POINTERS,
            ),
            (self.check_memo, flags::CHECK_MEMO),
            (self.on_full == OnFull::Drop, flags::DROP_WHEN_FULL),
            (self.on_full == OnFull::Adapt, flags::ADAPT_WHEN_FULL),
            (self.overhead.is_some(), flags::BUDGET),
            (self.call_times, flags::CALL_TIMES),
        ]
        .into_iter()
        .filter(|&(is_on, _)| is_on)
        .fold(0, |all, (_, flag)| all | flag)
    }

    /// Returns the settings for the hook that do not depend on the target.
    pub(crate) fn hook_config(&self) -> Config {
        Config {
            epoch: 1,
            ring_bytes: self.ring_bytes,
            depth: self.depth,
            clock_mode: self.clock_mode(),
            flags: self.flags(),
            min_size: self.min_size.unwrap_or(0),
            max_size: self.max_size.unwrap_or(u64::MAX),
            exact_sizes: self.sizes.clone(),
            vdso_clock: 0,
            sample_bytes: self.hook_sample_bytes().unwrap_or(0),
            first_order: mean_bytes(self.first_level()),
            attacher_pid: std::process::id(),
            owner: 0,
            iterate_modules: 0,
            main_stack: 0..0,
            charges_mappings: false,
            plan: Plan::default(),
            python: None,
            described: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut TraceConfig)) -> Result<(), ConfigError> {
        let mut config = TraceConfig::default();
        change(&mut config);
        config.check()
    }

    #[test]
    fn a_wrong_setting_is_named() {
        assert_eq!(check(|_| {}), Ok(()));
        assert_eq!(check(|c| c.depth = 0), Err(ConfigError::Depth(0)));
        assert_eq!(
            check(|c| (c.min_size, c.max_size) = (Some(5), Some(4))),
            Err(ConfigError::CrossedSizes { min: 5, max: 4 })
        );
        for bytes in [1000, 32 << 10, 128 << 20] {
            let found = check(|c| c.ring_bytes = bytes);
            assert_eq!(found, Err(ConfigError::RingBytes(bytes)));
        }
        let found = check(|c| c.sizes = vec![1; MAX_EXACT_SIZES + 1]);
        assert_eq!(found, Err(ConfigError::TooManySizes(MAX_EXACT_SIZES + 1)));
        assert_eq!(
            check(|c| c.sample_bytes = Some(0)),
            Err(ConfigError::SampleBytes(0))
        );
        let found = check(|c| (c.sample_bytes, c.on_full) = (Some(512), OnFull::Adapt));
        assert_eq!(found, Err(ConfigError::AdaptedSamples));
        for share in [0.0, -1.0, 0.51, f64::NAN] {
            let found = check(|c| c.overhead = Some(share));
            assert!(matches!(found, Err(ConfigError::Overhead(_))), "{share}");
        }
        let found = check(|c| (c.sample_bytes, c.overhead) = (Some(512), Some(0.02)));
        assert_eq!(found, Err(ConfigError::OtherSamples));
        let found = check(|c| c.functions = vec!["malloc".into(), "maloc".into()]);
        assert_eq!(found, Err(ConfigError::UnknownFunction("maloc".into())));
    }

    #[test]
    fn module_functions_always_come_along() {
        let config = TraceConfig {
            functions: vec!["free".into()],
            ..TraceConfig::default()
        };
        let names = |ids: HashSet<usize>| -> HashSet<&str> {
            ids.into_iter()
                .map(|id| HOOKED_FUNCTIONS[id].name)
                .collect()
        };
        let some = names(config.function_ids());
        assert!(some.contains("free") && some.contains("dlopen") && !some.contains("malloc"));
        let all = names(TraceConfig::default().function_ids());
        assert!(all.contains("malloc") && !all.contains("mmap"));
        let with_mappings = TraceConfig {
            mappings: true,
            accesses: Accesses::IfTold,
            ..TraceConfig::default()
        };
        let with_mappings = with_mappings.function_ids();
        assert_eq!(with_mappings.len(), HOOKED_FUNCTIONS.len());
    }

    #[test]
    fn pairs_are_folded_only_where_releases_have_nothing_of_their_own() {
        let folds = |change: fn(&mut TraceConfig)| {
            let mut config = TraceConfig::default();
            change(&mut config);
            config.flags() & flags::FOLD_PAIRS != 0
        };
        assert!(folds(|_| {}));
        assert!(!folds(|c| c.stacks = Stacks::All));
        assert!(!folds(|c| c.min_size = Some(1)));
        assert!(!folds(|c| c.sample_bytes = Some(512)));
        assert!(!folds(|c| c.clock = Clock::Tsc));
        assert!(!folds(|c| c.check_memo = true));
    }
}
