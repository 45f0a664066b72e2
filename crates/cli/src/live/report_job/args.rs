//! Options of `attach` and `run` about reports and recordings.

use super::Handover;
use crate::live::{record, triggered};
use crate::options::{ColorArgs, HoldLimit, View, format};
use crate::tracing::{Access, Tracing};
use memhook_recording::{Mode, Options};
use memhook_report::{AccessSource, FormatChoice, ReportStream, ReportWriter};
use std::path::{Path, PathBuf};

/// Options about reports and recordings of a trace.
#[derive(clap::Args, Clone)]
#[group(skip)]
pub struct Args {
    /// Print no status lines
    ///
    /// With a recording, print no reports either.
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub view: View,
    /// Format: text, folded, pprof, ...
    ///
    /// Reports are text. `attach` also writes one of the other formats at the end, for other programs: folded, flamegraph, pprof, heaptrack, speedscope, massif, html.
    #[arg(short, long, value_name = "FORMAT", value_parser = format, default_value = "text")]
    pub format: FormatChoice,
    /// Write JSON
    #[arg(short, long, conflicts_with = "format")]
    json: bool,
    #[command(flatten)]
    color: ColorArgs,
    /// Write the reports, or a recording (.mhk), to this file
    ///
    /// If FILE ends in .mhk, it becomes a recording of every event, for `memhook-rs report`. In the name, %p becomes
    /// the process id and %h the host name. Without this option, reports go to standard output, or to standard error
    /// for `run`. If there are several processes, each is recorded into a file of its own; without %p, all but the
    /// first are recorded into NAME.PID.mhk.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Overwrite the output file if it exists
    #[arg(long)]
    pub force: bool,
    /// At the end, also report blocks that nothing reaches
    ///
    /// memhook-rs copies the memory of the process and searches it for pointers. It reports blocks that nothing points
    /// to any more, with the call stacks that allocated them.
    #[arg(long)]
    pub(super) leaks: bool,
    /// With --leaks, also report what is possibly lost
    ///
    /// Possibly lost blocks are reached only by pointers to their interior (memcheck calls them "possibly lost").
    #[arg(long, requires = "leaks")]
    pub(super) show_possible: bool,
    #[command(flatten)]
    pub(super) hold: HoldLimit,
    /// Show in each report what is resident
    ///
    /// Each resident byte of the process is in one part: live blocks, the rest of the allocator's memory, stacks,
    /// mappings, files. This stops no thread.
    ///
    /// --rss=pins also lists at the end which blocks prevent memory from being returned: memhook-rs copies the memory
    /// of the process, with all threads held for at most --max-hold (50 ms), and walks its glibc heap. It lists blocks
    /// by the call stack that allocated them, with the memory that would be returned if they were freed and the heap
    /// trimmed.
    #[arg(long, value_enum, value_name = "MORE", num_args = 0..=1, require_equals = true, default_missing_value = "parts",
          hide_possible_values = true)]
    pub(super) rss: Option<Resident>,
    #[command(flatten)]
    pub(super) triggers: triggered::Args,
    #[command(flatten)]
    pub scores: crate::scores::Args,
    #[command(flatten)]
    pub recording: record::Args,
    #[command(flatten)]
    pub tracing: Tracing,
}

/// Contents of a report about the resident memory.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum Resident {
    /// The parts of the memory
    Parts,
    /// Also the blocks that keep memory from going back
    Pins,
}

impl Args {
    /// Opens the output of the reports.
    pub fn open(&self, stream: ReportStream, path: Option<&Path>) -> std::io::Result<ReportWriter> {
        let is_json = self.json || matches!(self.format, FormatChoice::Json);
        let style = crate::output::style(path, stream, self.color.color);
        ReportWriter::open_or(stream, path, self.force, is_json, style)
    }

    /// Refuses formats that need a recording.
    pub fn check_format(&self, command: &str) -> anyhow::Result<()> {
        if let FormatChoice::Export(format) = self.format {
            anyhow::bail!(
                "{command} writes text or JSON: for {0}, record with -o FILE.mhk, and then: memhook-rs report FILE.mhk -f {0}",
                format.name()
            );
        }
        Ok(())
    }

    /// Refuses conditions that this kernel cannot check.
    pub fn check_triggers(&self) -> anyhow::Result<()> {
        self.triggers.check()
    }

    /// Refuses scores that a trace with these options cannot compute, and limits without effect. `recording` is the
    /// kind of recording, if there is one.
    pub fn check_scores(&self, recording: Option<&Options>) -> anyhow::Result<()> {
        if self.hold.max_hold.is_some() && !self.leaks && self.rss != Some(Resident::Pins) {
            anyhow::bail!(
                "--max-hold is for --leaks and --rss=pins: nothing else is held for a copy"
            );
        }
        if self.tracing.access.access == Access::Sampled && recording.is_none() {
            anyhow::bail!(
                "--access sampled is for scores: add --scores, or record with -o FILE.mhk"
            );
        }
        if !self.scores.are_wanted() {
            return Ok(());
        }
        self.scores.formulas()?;
        // Otherwise the value is known at the end.
        let source = match self.tracing.access.access {
            Access::Off => Some(None),
            Access::Sampled => Some(Some(AccessSource::Sampled)),
            _ => None,
        };
        if let Some(source) = source {
            self.scores.check_formulas(source)?;
        }
        if recording.is_some_and(|options| options.mode != Mode::Events) {
            anyhow::bail!(
                "--scores with --record summary: sums do not show the lifetime of each block; use --record events"
            );
        }
        if self.tracing.overhead.is_some() {
            anyhow::bail!(
                "--scores with --overhead: scores need every allocation; leave --overhead out"
            );
        }
        if self.tracing.adapts() {
            anyhow::bail!(
                "--scores with --on-full adapt: scores need every allocation; use --on-full wait"
            );
        }
        if self.tracing.sample_bytes().is_some() {
            anyhow::bail!(
                "--scores with --sample: scores need every allocation; leave --sample out"
            );
        }
        if recording.is_some_and(|options| options.max_parts > 1) {
            anyhow::bail!(
                "--scores with --max-file-size SIZE,FILES: scores need the whole run in one file"
            );
        }
        Ok(())
    }

    /// Returns a slot through which the job receives the last copy of the memory, if leaks were requested.
    pub fn handover(&self) -> Option<Handover> {
        self.leaks.then(Handover::default)
    }
}
