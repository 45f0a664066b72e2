//! Scores of a trace. They require a recording, which goes into a temporary file.

use crate::report::open;
use anyhow::Context;
use memhook_foreign::{own_name, unnamed_file};
use memhook_recording::ScoreOptions;
use memhook_report::recorded::{Contents, Window, profile};
use memhook_report::{CustomValues, ProfileScores, ReportModel};
use memhook_symbols::Symbolizer;
use std::fs::File;
use std::path::{Path, PathBuf};

/// File for a recording that is read once. It has no name, so nothing remains of it, no matter how
/// this process ends.
pub struct Scratch {
    /// Path by which the file can be opened while this value exists.
    pub path: PathBuf,
    _file: File,
}

impl Scratch {
    /// Creates the file in the directory for temporary files.
    ///
    /// # Errors
    /// Errors of open(2), with the directory in the message.
    pub fn new() -> std::io::Result<Scratch> {
        let file = unnamed_file()?;
        Ok(Scratch {
            path: own_name(&file),
            _file: file,
        })
    }
}

/// Returns the scores of a finished recording, with names from `symbols`.
pub fn of_file(
    path: &Path,
    mut symbols: Symbolizer,
    options: &ScoreOptions,
) -> anyhow::Result<ProfileScores> {
    let recording = open(path)?;
    let contents = Contents::scored(Some(*options));
    let profile = profile(&recording, &mut symbols, Window::default(), contents);
    let scores = profile.with_context(|| path.display().to_string())?.scores;
    scores.context("nothing was scored")
}

/// Adds the scores of a recording to the last report of its run.
pub fn add(report: &mut ReportModel, scores: ProfileScores) {
    for site in &mut report.sites {
        let scored = scores.site_of_id(site.stack_id);
        site.scores = scored.map(|scored| scored.scores);
        site.custom_scores =
            scored.map_or_else(CustomValues::default, |scored| scores.named_values(scored));
    }
    report.scores = Some(scores.run);
    report.custom_scores = scores.custom;
    report.inferences = Some(scores.inferences);
}
