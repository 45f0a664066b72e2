//! Contents of a recording, and its limits.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Kind of contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Every event.
    #[default]
    Events,
    /// Sums by site for each interval.
    Summary {
        /// Length of an interval.
        interval: Duration,
    },
}

/// Limits of a recording.
#[derive(Clone, Debug)]
pub struct Options {
    /// Events or sums.
    pub mode: Mode,
    /// Maximum size of a file in bytes.
    pub max_file_bytes: Option<u64>,
    /// Number of files to keep. When a file is full, the next one begins (`run.mhk`, `run.1.mhk`,
    /// ...), and the oldest is deleted. Each file can be read on its own. If the number is 1, the
    /// recording ends instead. A part ends at three quarters of the size, and exceeds the size only
    /// if the disk is too slow.
    pub max_parts: u32,
    /// Minimum free space on the disk, in bytes. With less, the recording ends, or does not start.
    pub min_free_bytes: u64,
    /// Maximum number of bytes waiting in memory to be written. With more, the recording ends.
    pub max_queued_bytes: usize,
    /// True to replace existing files.
    pub overwrite: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: Mode::Events,
            max_file_bytes: None,
            max_parts: 1,
            min_free_bytes: 64 << 20,
            max_queued_bytes: 64 << 20,
            overwrite: false,
        }
    }
}

/// Returns the path of the recording of a run's mappings, next to that of its heap:
/// `run.mappings.mhk` next to `run.mhk`.
pub fn path_of_mappings(of_heap: &Path) -> PathBuf {
    beside(of_heap, "mappings")
}

/// Returns the path of the recording of a described allocator's heap: `run.pool.mhk` next to
/// `run.mhk`.
pub fn path_of_heap(of_heap: &Path, name: &str) -> PathBuf {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let plain = |c: char| if is_plain(c) { c } else { '_' };
    beside(of_heap, &name.chars().map(plain).collect::<String>())
}

fn beside(of_heap: &Path, word: &str) -> PathBuf {
    let stem = of_heap.file_stem().unwrap_or_default().to_string_lossy();
    of_heap.with_file_name(match of_heap.extension() {
        Some(extension) => format!("{stem}.{word}.{}", extension.to_string_lossy()),
        None => format!("{stem}.{word}"),
    })
}
