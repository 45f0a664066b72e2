//! Options of a recording, and the file that they ask for.

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
    time::Duration,
};

/// A file, if there is one.
type Output = Option<PathBuf>;

/// Contents of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum What {
    /// Every event
    Events,
    /// The sums of each call stack in each interval: a small file, for long runs
    Summary,
}

/// Options of a recording.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
#[command(next_help_heading = "Recording")]
pub struct Args {
    /// What to record: events or summary
    ///
    /// Without this option, all events are recorded if the name of the output file ends in .mhk.
    #[arg(long, value_enum, value_name = "WHAT", requires = "output")]
    record: Option<What>,
    /// Interval of a summary
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "10s")]
    summary_interval: Duration,
    /// Stop at this file size (100M, 2G)
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    max_file_size: Option<u64>,
    /// Number of latest files to keep
    ///
    /// With 2 or more, another file begins when one has reached --max-file-size: run.1.mhk, run.2.mhk,
    /// and so on.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "max_file_size",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    max_files: u32,
}

/// Minimum size of a recording, which the modules and stacks of a large program need.
const MIN_FILE_BYTES: u64 = 1 << 20;

impl Args {
    /// Returns true if sums are recorded rather than events.
    pub fn is_summary(&self) -> bool {
        self.record == Some(What::Summary)
    }

    /// Returns the files of the recording and of the reports; the name of an output decides which it is.
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
            if self.max_files > 1 {
                bail!("--max-files with -o -: a stream is one recording; leave it out");
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

    /// Returns the settings of the file. With `force`, it may overwrite another one.
    pub fn resolve(&self, force: bool, tracing: &Tracing) -> anyhow::Result<Options> {
        let mode = match self.record.unwrap_or(What::Events) {
            What::Events => Mode::Events,
            What::Summary => Mode::Summary {
                interval: self.summary_interval,
            },
        };
        if mode != Mode::Events {
            if tracing.sample_bytes().is_some() {
                bail!(
                    "--record summary with --sample: sums of samples are no estimates; use --record events"
                );
            }
            if tracing.overhead.is_some() || tracing.adapts() {
                bail!(
                    "--record summary with --overhead or --on-full adapt: sums of samples are no estimates; use --record events"
                );
            }
            if self.max_files > 1 {
                bail!(
                    "--max-files with --record summary: such a recording stays in one file; leave it out"
                );
            }
        }
        if let Some(bytes) = self.max_file_size.filter(|&bytes| bytes < MIN_FILE_BYTES) {
            bail!("--max-file-size {bytes}: at least 1M is needed");
        }
        Ok(Options {
            mode,
            max_file_bytes: self.max_file_size,
            max_parts: self.max_files,
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

/// Reports the end of a recording. Returns whether it is complete.
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

/// Starts a trace that is recorded, or leaves nothing of the recording.
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
