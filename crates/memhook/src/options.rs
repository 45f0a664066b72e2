//! Options of a trace.

use memhook_attach::TraceConfig;

/// Which allocations are reported, and how much of their call stacks.
///
/// ```
/// let options = memhook::Options::new().depth(32).min_size(64);
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
pub struct Options {
    config: TraceConfig,
}

impl Options {
    /// Every allocation, with ten frames of its call stack.
    pub fn new() -> Options {
        Options::default()
    }

    /// Frames to collect of each call stack, from 1 to 128.
    pub fn depth(mut self, frames: u32) -> Options {
        self.config.depth = frames;
        self
    }

    /// Reports only blocks of at least this size in bytes.
    pub fn min_size(mut self, bytes: u64) -> Options {
        self.config.min_size = Some(bytes);
        self
    }

    /// Reports only blocks of at most this size in bytes.
    pub fn max_size(mut self, bytes: u64) -> Options {
        self.config.max_size = Some(bytes);
        self
    }

    /// Reports a sample of the allocations, with this mean distance in bytes. [`Heap::weight`](crate::Heap::weight) says
    /// how many blocks each one stands for.
    pub fn sample_bytes(mut self, mean: u64) -> Options {
        self.config.sample_bytes = Some(mean);
        self
    }

    /// Hooks only these functions, by name or kind (`malloc`, `new`); all known ones if none is given.
    pub fn functions<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Options {
        self.config.functions = names.into_iter().map(Into::into).collect();
        self
    }

    /// Bytes of memory that this process may take for live blocks and call stacks, without the data that the profiler
    /// keeps. Beyond that, a part of the blocks is kept, which [`Summary::is_complete`](crate::Summary::is_complete)
    /// reports.
    pub fn max_memory(mut self, bytes: u64) -> Options {
        self.config.max_memory = Some(bytes);
        self
    }

    /// Also collects the call stacks of releases.
    pub fn free_backtraces(mut self, are_wanted: bool) -> Options {
        self.config.stacks = if are_wanted {
            memhook_attach::Stacks::All
        } else {
            memhook_attach::Stacks::Allocations
        };
        self
    }

    pub(crate) fn config(&self) -> &TraceConfig {
        &self.config
    }
}
