//! Options of `gate`.

use crate::exit_code;
use crate::options::{Color, duration, size};
use crate::output::is_colored;
use crate::report::sources;
use crate::tracing::{StartOptions, Tracing};
use anyhow::bail;
use memhook_gate::{Baseline, Exceptions, Limits, SiteLimit, Suppressions, Wrappers};
use memhook_report::FormatOptions;
use std::{
    ffi::OsString,
    io::IsTerminal,
    path::{Path, PathBuf},
    time::Duration,
};

/// Options of `gate`.
#[derive(clap::Args)]
#[command(mut_arg("depth", |arg| arg.default_value("24")))]
// These are refused, because a gate needs every allocation.
#[command(mut_args(|arg| match arg.get_id().as_str() {
    "sample" | "min_size" | "max_size" | "sizes" => arg.hide(true),
    _ => arg,
}))]
pub struct Args {
    #[command(flatten)]
    pub tracing: Tracing,
    #[command(flatten)]
    pub start: StartOptions,
    #[command(flatten)]
    pub limits: LimitOptions,
    #[command(flatten)]
    pub exceptions: ExceptionOptions,
    #[command(flatten)]
    pub outputs: OutputOptions,
    /// Exit code when a limit is exceeded
    #[arg(long, default_value_t = exit_code::LIMIT_EXCEEDED, value_name = "N")]
    pub error_exitcode: u8,
    /// Give a verdict even if not everything was seen
    #[arg(long)]
    pub allow_partial: bool,
    /// List what is possibly lost, too: blocks that only pointers into blocks reach, of which memcheck says so. They
    /// fail no gate
    #[arg(long)]
    pub show_possible: bool,
    #[command(flatten)]
    pub running: RunningOptions,
    #[command(flatten)]
    pub files: sources::FileArgs,
    /// The program and its arguments, or a recording (FILE.mhk)
    #[arg(
        required_unless_present = "pid",
        conflicts_with = "pid",
        trailing_var_arg = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

impl Args {
    /// What can be refused before anything is touched.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.tracing.is_selective() || self.tracing.adapts() {
            bail!(
                "a gate needs every allocation: leave out --sample, size filters and --on-full adapt"
            );
        }
        let confidence = self.running.confidence;
        if !(0.5..1.0).contains(&confidence) {
            bail!("--confidence {confidence}: from 0.5 to below 1 is possible; 0.99 is usual");
        }
        Ok(())
    }

    /// The recording that is to be judged, if the command is one.
    pub fn recording(&self) -> Option<&Path> {
        let [file] = self.command.as_slice() else {
            return None;
        };
        let file = Path::new(file);
        (file.extension().is_some_and(|e| e == "mhk") && file.is_file()).then_some(file)
    }
}

/// What takes time.
#[derive(clap::Args)]
#[command(next_help_heading = "Running processes and recordings")]
pub struct RunningOptions {
    /// Judge this running process
    #[arg(short, long)]
    pub pid: Option<i32>,
    /// Trace the process for this time before it is judged (30s, 5m); without it, leaks have no
    /// call stacks. Of a recording, look at this much
    #[arg(short, long, value_parser = duration)]
    pub duration: Option<Duration>,
    /// Fail if sites keep growing, whether their blocks are reachable or not
    #[arg(long)]
    pub growth: bool,
    /// Leave out this much time at the beginning
    #[arg(long, requires = "growth", value_parser = duration, default_value = "30s")]
    pub warmup: Duration,
    /// How sure a verdict of growth must be
    #[arg(long, requires = "growth", default_value_t = 0.99)]
    pub confidence: f64,
}

/// What is allowed.
#[derive(clap::Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitOptions {
    /// Bytes that may be leaked [default: 0, or no limit if only the number of blocks is limited]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    max_leaked: Option<u64>,
    /// Blocks that may be leaked [default: 0, or no limit if only their bytes are limited]
    #[arg(long, value_name = "N")]
    max_leaked_blocks: Option<u64>,
    /// Bytes that may be live at the end, leaked or not
    #[arg(long, value_name = "BYTES", value_parser = size)]
    max_live: Option<u64>,
    /// Bytes that may be live at any one time
    #[arg(long, value_name = "BYTES", value_parser = size)]
    max_peak: Option<u64>,
    /// Allocations that the program may make
    #[arg(long, value_name = "N")]
    max_allocations: Option<u64>,
    /// Bytes that may be live at sites whose function, file or module matches the pattern
    #[arg(long, value_name = "BYTES:PATTERN", value_parser = site_limit)]
    max_site: Vec<SiteLimit>,
    /// By how many percent a site may leak more than in the baseline
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    tolerance: f64,
}

impl LimitOptions {
    /// An option that limits what nothing reaches.
    pub fn of_leaks(&self) -> Option<&'static str> {
        let bytes = self.max_leaked.map(|_| "--max-leaked");
        bytes.or(self.max_leaked_blocks.map(|_| "--max-leaked-blocks"))
    }

    /// The limits.
    pub fn limits(&self) -> anyhow::Result<Limits> {
        if !(self.tolerance >= 0.0 && self.tolerance.is_finite()) {
            bail!(
                "--tolerance {}: a percentage from 0 up is needed",
                self.tolerance
            );
        }
        let none_given = self.max_leaked.is_none() && self.max_leaked_blocks.is_none();
        let default = none_given.then_some(0);
        Ok(Limits {
            leaked_bytes: self.max_leaked.or(default),
            leaked_blocks: self.max_leaked_blocks.or(default),
            live_bytes: self.max_live,
            peak_bytes: self.max_peak,
            allocations: self.max_allocations,
            sites: self.max_site.clone(),
            tolerance_percent: self.tolerance,
        })
    }
}

fn site_limit(text: &str) -> Result<SiteLimit, String> {
    let parts = text
        .split_once(':')
        .filter(|(_, pattern)| !pattern.is_empty());
    let (bytes, pattern) = parts.ok_or("expected BYTES:PATTERN, like 4K:Cache::insert")?;
    Ok(SiteLimit {
        bytes: size(bytes)?,
        pattern: pattern.to_owned(),
    })
}

/// What is put up with.
#[derive(clap::Args)]
#[command(next_help_heading = "Exceptions")]
pub struct ExceptionOptions {
    /// Read suppressions in the syntax of LeakSanitizer (leak:PATTERN) or Valgrind from this file
    #[arg(long, value_name = "FILE")]
    suppressions: Vec<PathBuf>,
    /// Suppress leaks with a matching function, file or module in their stack; the pattern may use
    /// *, ^ and $
    #[arg(long, value_name = "PATTERN")]
    suppress: Vec<String>,
    /// Print suppressions for what was found
    #[arg(long)]
    gen_suppressions: bool,
    /// Treat functions that match as wrappers of the allocator, and blame their callers for leaks;
    /// malloc-like names, the C library and the C++ library are known
    #[arg(long, value_name = "PATTERN")]
    wrapper: Vec<String>,
    /// Count only leaks that are not in this file, or have grown since it was written
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Write what was found to this file, for --baseline
    #[arg(long, value_name = "FILE")]
    write_baseline: Option<PathBuf>,
}

impl ExceptionOptions {
    /// Reads the files.
    pub fn read(&self) -> anyhow::Result<Exceptions> {
        Ok(Exceptions {
            suppressions: Suppressions::of(&self.suppressions, &self.suppress)?,
            baseline: self.baseline.as_deref().map(Baseline::open).transpose()?,
            wrappers: Wrappers::new(self.wrapper.clone()),
        })
    }

    /// Whether there is a baseline, or will be.
    pub fn has_baseline(&self) -> bool {
        self.baseline.is_some() || self.write_baseline.is_some()
    }
}

/// Where the verdict goes, besides the text.
#[derive(clap::Args)]
#[command(next_help_heading = "Output")]
pub struct OutputOptions {
    /// Write JSON to this file (-: standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write JUnit XML to this file (-: standard output)
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write SARIF to this file (-: standard output)
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,
    /// Append Markdown to this file (-: standard output)
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Print annotations for GitHub Actions to standard output
    #[arg(long)]
    github: bool,
    /// The directory that source paths in SARIF and annotations are relative to
    #[arg(long, value_name = "DIR")]
    source_root: Option<PathBuf>,
    /// How many leaks to show in the text
    #[arg(short = 'T', long, default_value_t = 10)]
    top: usize,
    /// When to use colours
    #[arg(long, value_enum, default_value = "auto")]
    color: Color,
    /// Print only the first line of the verdict
    #[arg(short, long)]
    quiet: bool,
}

impl OutputOptions {
    /// Everything that is written. `is_beside_program`: standard output is a program's.
    pub fn resolve(
        &self,
        exceptions: &ExceptionOptions,
        is_beside_program: bool,
    ) -> memhook_gate::OutputOptions {
        let forms = [
            ("json", false, &self.json),
            ("junit", false, &self.junit),
            ("sarif", false, &self.sarif),
            ("markdown", true, &self.markdown),
        ];
        let named = forms
            .into_iter()
            .filter_map(|(form, appends, path)| Some((form, appends, path.clone()?)));
        let is_terminal = if is_beside_program {
            std::io::stderr().is_terminal()
        } else {
            std::io::stdout().is_terminal()
        };
        memhook_gate::OutputOptions {
            forms: named.collect(),
            baseline: exceptions.write_baseline.clone(),
            github: self.github,
            suppressions: exceptions.gen_suppressions,
            is_quiet: self.quiet,
            is_colored: is_colored(self.color, is_terminal),
            is_beside_program,
            format: FormatOptions {
                top: self.top,
                source_root: self.root(),
                ..FormatOptions::default()
            },
        }
    }

    /// The directory that source paths are relative to, by default the present one.
    fn root(&self) -> String {
        let directory = match &self.source_root {
            Some(directory) => directory
                .canonicalize()
                .unwrap_or_else(|_| directory.clone()),
            None => std::env::current_dir().unwrap_or_default(),
        };
        directory.to_string_lossy().trim_end_matches('/').to_owned()
    }
}
