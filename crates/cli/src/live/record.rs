//! Options of a recording, and the file that they name.

use crate::tracing::Tracing;
use anyhow::bail;
use memhook_attach::{Recorded, Recording, Trace, TraceConfig};
use memhook_foreign::units;
use memhook_ledger::Observer;
use memhook_recording::{Mode, Options, RecordingEnd, STREAM};
use memhook_report::output_name;
use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
};

/// A file, if there is one.
type Output = Option<PathBuf>;

/// Options of a recording.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
#[command(next_help_heading = "Recording")]
pub struct Args {
    /// What to record: events, summary or summary=TIME
    ///
    /// events, the default if the name of the output file ends in .mhk, records every event. summary records the sums
    /// of each call stack in each interval (default: 10s): a small file, for long runs.
    #[arg(long, value_name = "WHAT", requires = "output", value_parser = what)]
    record: Option<Mode>,
    /// Stop at this size (100M), or keep several files (100M,5)
    ///
    /// With a number of files, another file begins when a file has reached the size: run.1.mhk, run.2.mhk, and so on.
    /// Only this number of the latest files is kept.
    #[arg(long, value_name = "SIZE[,FILES]", value_parser = file_size)]
    max_file_size: Option<FileSize>,
}

/// Limit of the size of a file, and the number of files that are kept.
#[derive(Clone, Copy, Debug)]
struct FileSize {
    bytes: u64,
    files: u32,
}

/// Parses `events`, `summary` or `summary=10s`.
fn what(text: &str) -> Result<Mode, String> {
    let summary = |interval: &str| {
        units::duration(interval)
            .map(|interval| Mode::Summary { interval })
            .map_err(|error| error.to_string())
    };
    match text.split_once('=') {
        None if text == "events" => Ok(Mode::Events),
        None if text == "summary" => summary("10s"),
        Some(("summary", interval)) => summary(interval),
        _ => Err("expected events, summary or summary=TIME".into()),
    }
}

/// Parses `100M` or `100M,5`.
fn file_size(text: &str) -> Result<FileSize, String> {
    let (size, files) = text.split_once(',').unwrap_or((text, "1"));
    let files = files
        .parse()
        .ok()
        .filter(|files| (1..=10_000).contains(files));
    Ok(FileSize {
        bytes: units::size(size).map_err(|error| error.to_string())?,
        files: files.ok_or("expected SIZE,FILES with up to 10000 files")?,
    })
}

/// Minimum size of a recording, which the modules and stacks of a large program need.
const MIN_FILE_BYTES: u64 = 1 << 20;

impl Args {
    /// Returns true if sums are recorded instead of events.
    pub fn is_summary(&self) -> bool {
        matches!(self.record, Some(Mode::Summary { .. }))
    }

    /// Returns the files of the recording and of the reports. The name of an output decides whether it is a recording
    /// or a report.
    pub fn split(&self, output: Option<&Path>, pid: i32) -> anyhow::Result<(Output, Output)> {
        if output == Some(Path::new("-")) {
            if std::io::stdout().is_terminal() {
                bail!(
                    "-o -: a recording is not for a terminal; pipe it: memhook-rs attach PID -o - | ..."
                );
            }
            if std::fs::metadata("/proc/self/fd/1").is_ok_and(|out| out.is_file()) {
                bail!("-o -: standard output is a file; name it instead: -o FILE.mhk");
            }
            if self.max_file_size.is_some_and(|limit| limit.files > 1) {
                bail!(
                    "--max-file-size SIZE,FILES with -o -: a stream is one recording; leave FILES out"
                );
            }
            return Ok((Some(PathBuf::from(STREAM)), None));
        }
        let path = output.map(|path| output_name(path, pid)).transpose()?;
        let is_named = path
            .as_ref()
            .is_some_and(|path| path.extension().is_some_and(|e| e == "mhk"));
        Ok(if self.record.is_some() || is_named {
            (path, None)
        } else {
            (None, path)
        })
    }

    /// Returns the settings of the file. With `force`, it may overwrite an existing one.
    pub fn resolve(&self, force: bool, tracing: &Tracing) -> anyhow::Result<Options> {
        let mode = self.record.unwrap_or(Mode::Events);
        let files = self.max_file_size.map_or(1, |limit| limit.files);
        if mode != Mode::Events {
            if tracing.sample_bytes().is_some() {
                bail!(
                    "--record summary with --sample: sums of samples are not estimates; use --record events"
                );
            }
            if tracing.overhead.is_some() || tracing.adapts() {
                bail!(
                    "--record summary with --overhead or --on-full adapt: sums of samples are not estimates; use --record events"
                );
            }
            if files > 1 {
                bail!(
                    "--max-file-size SIZE,FILES with --record summary: such a recording stays in one file; leave FILES out"
                );
            }
        }
        let max_bytes = self.max_file_size.map(|limit| limit.bytes);
        if let Some(bytes) = max_bytes.filter(|&bytes| bytes < MIN_FILE_BYTES) {
            bail!("--max-file-size {bytes}: at least 1M is needed");
        }
        Ok(Options {
            mode,
            max_file_bytes: max_bytes,
            max_parts: files,
            overwrite: force,
            ..Options::default()
        })
    }
}

/// Refuses to write a recording to standard output.
pub fn refuse_stream(path: Option<&Path>, why: &str) -> anyhow::Result<()> {
    if path == Some(Path::new(STREAM)) {
        bail!("-o -: {why}; name a file: -o FILE.mhk");
    }
    Ok(())
}

/// Reports the end of a recording. Returns true if it is complete.
pub fn tell(recorded: &Recorded, quiet: bool) -> bool {
    if let Some(notice) = &recorded.notice {
        eprintln!("memhook-rs: {notice}");
    }
    if !quiet && recorded.end == RecordingEnd::Finished {
        let (path, size) = (
            recorded.path.display(),
            memhook_report::bytes(recorded.bytes),
        );
        match recorded.events {
            0 => eprintln!("Recorded into {path}: {size}"),
            events => eprintln!(
                "Recorded {} into {path}: {size}, {:.2} bytes each",
                memhook_report::counted(events, "event"),
                recorded.bytes as f64 / events as f64
            ),
        }
    }
    recorded.is_complete()
}

/// Starts a trace that is recorded. If the trace fails, no recording remains.
pub fn start<O: Observer + Send>(
    pid: i32,
    config: TraceConfig,
    recording: Option<Recording>,
    observer: O,
) -> Result<Trace<O>, memhook_attach::Error> {
    match Trace::observed(pid, config, observer) {
        Ok(mut trace) => {
            if let Some(recording) = recording {
                trace.record(recording);
            }
            Ok(trace)
        }
        Err(error) => {
            if let Some(recording) = recording {
                recording.abandon();
            }
            Err(error)
        }
    }
}
