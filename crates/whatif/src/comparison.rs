//! Comparison of replays with other allocators, as text and JSON.

use crate::child::Measured;
use crate::operations::Sums;
use crate::threads::MOST_THREADS;
use crate::truth::mean_over_time;
use crate::variants::Variant;
use memhook_recording::Recording;
use memhook_report::{Document, Style, bytes, change, count, counted, wrapped};
use serde::Serialize;
use std::fmt::Write;

/// Name of the JSON schema.
const SCHEMA: &str = "memhook-rs/what-if/1";
/// Width of the text if the output has none.
const COLUMNS: usize = 100;
/// Column heads for each replay.
pub(crate) const COLUMN_HEADS: [&str; 5] = [
    "peak RSS",
    "at the end",
    "mean",
    "page faults",
    "in the allocator",
];

/// Memory that a run would need with other allocators.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Name of the JSON schema.
    pub schema: &'static str,
    /// Command line of the recorded process.
    pub command: String,
    /// Process id of the recorded process.
    pub pid: u32,
    /// Number of allocations and releases that were replayed.
    pub calls: u64,
    /// Number of threads in the replay.
    pub threads: u16,
    /// Peak of live requested bytes.
    pub peak_live_bytes: u64,
    /// Allocator of the recorded process.
    pub recorded_allocator: String,
    /// Part of each block that the replay wrote to: `ends` for its first and its last page, `all`
    /// for all of its pages.
    pub touched: &'static str,
    /// Comparison between the recorded process and the replay that uses the recorded allocator;
    /// `None` if it is not possible.
    pub truth: Option<Truth>,
    /// All replays. The replay with the recorded allocator comes first.
    pub rows: Vec<ReplayRow>,
    /// Recommendation; `None` if no allocator would need less memory, or if the replays are not
    /// accurate.
    pub recommendation: Option<Recommendation>,
    /// Limitations of these numbers.
    pub notes: Vec<String>,
}

/// Comparison of the recorded process with its replay, by the growth of anonymous memory since the
/// start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Truth {
    /// Number of moments that were compared.
    pub moments: usize,
    /// Largest growth of the recorded process at the compared moments.
    pub recorded_peak_bytes: u64,
    /// Largest growth of the replay at these moments.
    pub replayed_peak_bytes: u64,
    /// Median of the errors, ordered by absolute value. The value -0.1 means 10 % less than
    /// recorded.
    pub median_error: f64,
    /// Error of the mean over time.
    pub mean_error: f64,
    /// Error of the peak.
    pub peak_error: f64,
    /// Error at the last moment.
    pub end_error: f64,
    /// True if the errors of the mean, the peak and the end are small enough.
    pub holds: bool,
}

impl Truth {
    /// Returns the largest of the errors that decide.
    pub(crate) fn error(&self) -> f64 {
        let all = [self.mean_error, self.peak_error, self.end_error];
        all.into_iter().map(f64::abs).fold(0.0, f64::max)
    }
}

/// Result of one replay.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayRow {
    /// The allocator.
    pub allocator: String,
    /// Settings of the allocator, as environment variables.
    pub settings: String,
    /// Library of the allocator; `None` for the allocator of the C library.
    pub library: Option<String>,
    /// True if the recorded process used this allocator.
    pub is_recorded: bool,
    /// Peak of resident bytes.
    pub peak_rss_bytes: u64,
    /// Resident bytes at the end.
    pub end_rss_bytes: u64,
    /// Average resident bytes over time.
    pub mean_rss_bytes: u64,
    /// Number of page faults.
    pub page_faults: u64,
    /// Number of calls.
    pub calls: u64,
    /// Time in the allocator, in ms.
    pub allocator_ms: f64,
    /// Number of calls that returned no memory.
    pub failed_calls: u64,
    /// Reason why the replay did not finish, if it did not.
    pub problem: Option<String>,
    /// Resident bytes over time: nanoseconds since the attach, bytes.
    pub curve: Vec<(u64, u64)>,
}

/// Recommended allocator or setting that would need less memory.
#[derive(Clone, Debug, Serialize)]
pub struct Recommendation {
    /// The allocator.
    pub allocator: String,
    /// Settings of the allocator.
    pub settings: String,
    /// Library of the allocator.
    pub library: Option<String>,
    /// Average resident bytes saved over time.
    pub mean_saved_bytes: u64,
    /// Resident bytes saved at the peak.
    pub peak_saved_bytes: i64,
    /// Additional time in the allocator, in ms.
    pub allocator_ms_more: f64,
}

impl Comparison {
    pub(crate) fn of(recording: &Recording, sums: &Sums) -> Comparison {
        let meta = recording.meta();
        let mut notes = Vec::new();
        if sums.unknown_releases > 0 {
            notes.push(format!(
                "{} of older blocks, which are not in the recording, could not be replayed",
                counted(sums.unknown_releases, "release")
            ));
        }
        if sums.threads == MOST_THREADS {
            notes.push(format!(
                "if the run had more than {MOST_THREADS} threads at a time, some of them shared a thread of the replay"
            ));
        }
        if recording.end().is_none() {
            notes.push("the end of the recording is missing".to_owned());
        }
        Comparison {
            schema: SCHEMA,
            command: meta.command.clone(),
            pid: meta.pid,
            calls: sums.allocations + sums.releases,
            threads: sums.threads,
            peak_live_bytes: sums.peak_live_bytes,
            recorded_allocator: String::new(),
            touched: "ends",
            truth: None,
            rows: Vec::new(),
            recommendation: None,
            notes,
        }
    }

    /// Returns a heading that describes the comparison.
    pub(crate) fn heading(&self) -> String {
        let touched = match self.touched {
            "all" => "all of its pages were",
            _ => "its first and its last page were",
        };
        format!(
            "What-if: {} of process {} ({}), {}, replayed. Of each block, {touched} written to. Resident memory is \
             that of the replayed heap alone.",
            counted(self.calls, "call"),
            self.pid,
            self.command,
            counted(self.threads.into(), "thread"),
        )
    }

    /// Returns all limitations of the numbers.
    pub(crate) fn all_notes(&self) -> impl Iterator<Item = String> + '_ {
        let failed = self.rows.iter().filter(|row| row.failed_calls > 0);
        let failed = failed.map(|row| {
            let calls = counted(row.failed_calls, "call");
            format!("{calls} of {} returned no memory", row.allocator)
        });
        failed.chain(self.notes.iter().cloned())
    }

    /// Returns an HTML page that needs no network and no script.
    pub fn page(&self) -> String {
        crate::page::page(self)
    }

    pub(crate) fn verdict(&self) -> String {
        let Some(truth) = self.truth else {
            return "Nothing is recommended: the recording shows the resident memory too rarely to tell whether these \
                    replays are accurate."
                .to_owned();
        };
        let compared = format!(
            "The replay under the recorded allocator is off by {} on average over {}, by {} at the end and by {} at the \
             peak ({} recorded, {} replayed)",
            percent(truth.mean_error),
            counted(truth.moments as u64, "moment"),
            percent(truth.end_error),
            percent(truth.peak_error),
            bytes(truth.recorded_peak_bytes),
            bytes(truth.replayed_peak_bytes),
        );
        if !truth.holds {
            return format!(
                "Nothing is recommended. {compared}, and only differences of at most 5% are trusted."
            );
        }
        let Some(best) = &self.recommendation else {
            return format!("Nothing takes clearly less. {compared}.");
        };
        let settings = match best.settings.as_str() {
            "" => String::new(),
            settings => format!(" with {settings}"),
        };
        format!(
            "Recommended: {}{settings}: {} less on average over time, {} at the peak, {:+.1} ms in the \
             allocator. {compared}.",
            best.allocator,
            bytes(best.mean_saved_bytes),
            change(-best.peak_saved_bytes),
            best.allocator_ms_more,
        )
    }
}

impl ReplayRow {
    pub(crate) fn of(variant: &Variant, measured: &Measured, is_recorded: bool) -> ReplayRow {
        let curve = &measured.curve;
        let resident = curve.iter().map(|(_, bytes)| *bytes);
        let library = variant.library.as_ref();
        ReplayRow {
            allocator: variant.allocator.clone(),
            settings: variant.settings_text(),
            library: library.map(|path| path.display().to_string()),
            is_recorded,
            peak_rss_bytes: resident.max().unwrap_or(0),
            end_rss_bytes: curve.last().map_or(0, |(_, bytes)| *bytes),
            mean_rss_bytes: mean_over_time(curve),
            page_faults: measured.page_faults,
            calls: measured.calls,
            allocator_ms: measured.allocator_ns as f64 / 1e6,
            failed_calls: measured.failed_calls,
            problem: measured.problem.clone(),
            curve: curve.clone(),
        }
    }

    /// Returns the name of the replay.
    pub(crate) fn name(&self) -> String {
        let recorded = if self.is_recorded {
            " (as recorded)"
        } else {
            ""
        };
        let settings = match self.settings.as_str() {
            "" => String::new(),
            settings => format!(" {settings}"),
        };
        format!("{}{recorded}{settings}", self.allocator)
    }

    /// Returns the numbers of the row, in the order of [`COLUMN_HEADS`].
    pub(crate) fn numbers(&self) -> [String; 5] {
        [
            bytes(self.peak_rss_bytes),
            bytes(self.end_rss_bytes),
            bytes(self.mean_rss_bytes),
            count(self.page_faults),
            format!("{:.1} ms", self.allocator_ms),
        ]
    }
}

fn percent(share: f64) -> String {
    format!("{:+.1}%", share * 100.0)
}

impl Document for Comparison {
    fn text(&self, style: Style) -> String {
        let width = style.width.unwrap_or(COLUMNS);
        let mut out = wrapped(&format!("{}\n\n", self.heading()), width);
        let cells: Vec<_> = self.rows.iter().map(|row| (row.name(), row)).collect();
        let longest = cells.iter().map(|(name, _)| name.chars().count());
        let longest = longest.max().unwrap_or(0).max("allocator".len());
        let _ = write!(out, "{:<longest$}", "allocator");
        for head in COLUMN_HEADS {
            let _ = write!(out, "  {head:>11}");
        }
        out.push('\n');
        for (name, row) in &cells {
            let _ = write!(out, "{name:<longest$}");
            if let Some(problem) = &row.problem {
                let _ = writeln!(out, "  {problem}");
                continue;
            }
            for (cell, head) in row.numbers().iter().zip(COLUMN_HEADS) {
                let columns = head.len().max(11);
                let _ = write!(out, "  {cell:>columns$}");
            }
            out.push('\n');
        }
        let notes = self.all_notes();
        let notes = notes.map(|note| format!("Note: {note}.\n"));
        let end = format!("\n{}\n{}", self.verdict(), notes.collect::<String>());
        out + &wrapped(&end, width)
    }
}
