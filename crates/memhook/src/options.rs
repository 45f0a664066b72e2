//! Options of a trace.

use memhook_attach::TraceConfig;

/// Selects the allocations to report, and the depth of their call stacks.
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
    /// Returns options that report every allocation, with ten frames of its call stack.
    pub fn new() -> Options {
        Options::default()
    }

    /// Sets the number of frames to collect from each call stack, from 1 to 128.
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

    /// Reports a sample of the allocations, with this mean distance between samples in bytes.
    /// [`Heap::weight`](crate::Heap::weight) returns the number of blocks that each reported block represents.
    pub fn sample_bytes(mut self, mean: u64) -> Options {
        self.config.sample_bytes = Some(mean);
        self
    }

    /// Hooks only these functions, by name or kind (`malloc`, `new`); hooks all known functions if the list is empty.
    pub fn functions<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Options {
        self.config.functions = names.into_iter().map(Into::into).collect();
        self
    }

    /// Limits the memory that this process uses for live blocks and call stacks, in bytes, not counting the profiler's
    /// own data. Beyond the limit, only some of the blocks are kept, and
    /// [`Summary::is_complete`](crate::Summary::is_complete) becomes false.
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
