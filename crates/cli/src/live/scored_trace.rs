//! Scores of a trace: it is recorded for them, into a file that goes away again.

use crate::report::open;
use anyhow::Context;
use memhook_recording::ScoreOptions;
use memhook_report::recorded::{Window, profile};
use memhook_report::{ProfileScores, ReportModel};
use memhook_symbols::Symbolizer;
use std::path::{Path, PathBuf};

/// A recording that goes away again when it has been read.
pub struct Scratch {
    /// The file.
    pub path: PathBuf,
}

impl Scratch {
    /// Where the recording of this process is made.
    pub fn new(pid: i32) -> Scratch {
        let name = format!(".memhook-scores-{}-{pid}.mhk", std::process::id());
        Scratch {
            path: std::env::temp_dir().join(name),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Often it is gone already, or was never made.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The scores of a recording that was just made, with names from `symbols`.
pub fn of_file(
    path: &Path,
    mut symbols: Symbolizer,
    options: &ScoreOptions,
) -> anyhow::Result<ProfileScores> {
    let recording = open(path)?;
    let profile = profile(&recording, &mut symbols, Window::default(), Some(options));
    let scores = profile.with_context(|| path.display().to_string())?.scores;
    scores.context("nothing was scored")
}

/// Puts the scores of a recording into the last report of the same run.
pub fn add(report: &mut ReportModel, scores: ProfileScores) {
    for site in &mut report.sites {
        site.scores = scores.of_id(site.stack_id);
    }
    report.scores = Some(scores.run);
    report.inferences = Some(scores.inferences);
}
