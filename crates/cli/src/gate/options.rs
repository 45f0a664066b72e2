//! Options of `gate`.

use super::limits::LimitOptions;
use crate::exit_code;
use crate::log;
use crate::options::{ColorArgs, HoldLimit, Quiet};
use crate::output::is_colored;
use crate::report::sources;
use crate::target::Choice;
use crate::tracing::Tracing;
use anyhow::bail;
use memhook_foreign::units;
use memhook_gate::{Baseline, Exceptions, JudgedPrograms, Suppressions, Wrappers};
use memhook_report::FormatOptions;
use std::{
    ffi::OsString,
    io::IsTerminal,
    path::{Path, PathBuf},
    time::Duration,
};

/// Options of `gate`.
#[derive(clap::Args)]
// These options are refused, because a gate needs every allocation.
#[command(mut_args(|arg| match arg.get_id().as_str() {
    "sample" | "sizes" | "mappings" => arg.hide(true),
    _ => arg,
}))]
pub struct Args {
    /// The program and its arguments, or a recording (FILE.mhk)
    #[arg(
        required_unless_present_any = ["pid", "cgroup"],
        conflicts_with_all = ["pid", "cgroup"],
        trailing_var_arg = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
    #[command(flatten)]
    pub chosen: JudgedOptions,
    /// Exit code when a limit is exceeded
    #[arg(long, default_value_t = exit_code::LIMIT_EXCEEDED, value_name = "N")]
    pub error_exitcode: u8,
    /// Give a verdict even if not everything was seen
    #[arg(long)]
    pub allow_partial: bool,
    /// Also list what is possibly lost
    ///
    /// Possibly lost blocks are reached only by pointers to their interior (memcheck calls them "possibly lost"). A
    /// gate never fails because of them.
    #[arg(long)]
    pub show_possible: bool,
    #[command(flatten)]
    pub quiet: Quiet,
    #[command(flatten)]
    pub limits: LimitOptions,
    #[command(flatten)]
    pub exceptions: ExceptionOptions,
    #[command(flatten)]
    pub outputs: OutputOptions,
    #[command(flatten)]
    pub running: RunningOptions,
    #[command(flatten)]
    pub names: sources::Args,
    #[command(flatten)]
    pub tracing: Tracing,
}

impl Args {
    /// Returns the running process to judge, if there is one.
    pub fn process(&self) -> anyhow::Result<Option<i32>> {
        if !self.command.is_empty() {
            return Ok(None);
        }
        let running = &self.running;
        Ok(Some(running.choice.pid(running.pid.as_deref())?))
    }

    /// Refuses bad options before any process is touched.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.tracing.is_selective() || self.tracing.adapts() {
            bail!(
                "a gate needs every allocation: leave out --sample, size filters and --on-full adapt"
            );
        }
        if self.tracing.mappings {
            bail!(
                "--mappings: a gate judges blocks while a program runs; for its mappings, record them (attach \
                 --mappings -o FILE.mhk) and judge that: memhook-rs gate --growth FILE.mappings.mhk"
            );
        }
        let confidence = self.running.confidence;
        if !(0.5..1.0).contains(&confidence) {
            bail!("--confidence {confidence}: from 0.5 to below 1 is possible; 0.99 is usual");
        }
        Ok(())
    }

    /// Returns the recording to judge, if the command is one.
    pub fn recording(&self) -> Option<&Path> {
        let [file] = self.command.as_slice() else {
            return None;
        };
        let file = Path::new(file);
        (file.extension().is_some_and(|e| e == "mhk") && file.is_file()).then_some(file)
    }
}

/// Options that choose which processes of the command are judged.
#[derive(clap::Args)]
#[group(skip)]
pub struct JudgedOptions {
    /// Also judge these programs of the system
    ///
    /// memhook-rs follows every process that COMMAND starts, and judges processes that run a program of yours: outside
    /// /usr, /bin, /lib, /opt and the like, or below the current directory. A pattern (with *, ^ and $) adds other
    /// processes, by the program or by the file that an interpreter runs; all adds every process.
    #[arg(long, value_name = "PATTERN")]
    judge: Vec<String>,
    /// Judge COMMAND alone
    ///
    /// memhook-rs does not follow the processes that it starts.
    #[arg(long, conflicts_with_all = ["judge", "follow_fork"])]
    no_follow: bool,
    /// Same as --judge all
    #[arg(long, hide = true)]
    follow_fork: bool,
}

impl JudgedOptions {
    /// Returns true if the processes that the command starts are followed.
    pub fn follows(&self) -> bool {
        !self.no_follow
    }

    /// Returns the programs to judge.
    pub fn programs(&self) -> JudgedPrograms {
        let is_all = |pattern: &String| pattern == "all";
        let directory = std::env::current_dir().unwrap_or_default();
        JudgedPrograms {
            all: self.follow_fork || self.judge.iter().any(is_all),
            patterns: self.judge.clone(),
            directory: directory.to_string_lossy().into_owned(),
        }
    }
}

/// Options for running processes and recordings.
#[derive(clap::Args)]
#[command(next_help_heading = "Running processes and recordings")]
pub struct RunningOptions {
    /// Judge this running process, by its id or its name
    #[arg(short, long)]
    pub pid: Option<String>,
    #[command(flatten)]
    pub choice: Choice,
    /// Trace it this long before the verdict (30s, 5m)
    ///
    /// Without this option, leaks of a running process have no call stacks. With a recording, only its first part of
    /// this length is judged.
    #[arg(short, long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,
    #[command(flatten)]
    pub hold: HoldLimit,
    /// Fail if sites keep growing
    ///
    /// Growth counts even if the blocks are reachable.
    #[arg(long)]
    pub growth: bool,
    /// Ignore this much time at the beginning
    #[arg(long, value_name = "TIME", requires = "growth", value_parser = units::duration, default_value = "30s")]
    pub warmup: Duration,
    /// Confidence needed for growth
    #[arg(long, value_name = "P", requires = "growth", default_value_t = 0.99)]
    pub confidence: f64,
}

/// Exceptions to the verdict.
#[derive(clap::Args)]
#[command(next_help_heading = "Exceptions")]
pub struct ExceptionOptions {
    /// Read suppressions from this file
    ///
    /// The file may use the syntax of LeakSanitizer (leak:PATTERN), that of Valgrind, or both.
    #[arg(long, value_name = "FILE")]
    suppressions: Vec<PathBuf>,
    /// Suppress leaks with a match in their stack
    ///
    /// The pattern is compared with functions, files and modules. It may use *, ^ and $.
    #[arg(long, value_name = "PATTERN")]
    suppress: Vec<String>,
    /// Print suppressions for the leaks that were found
    #[arg(long)]
    gen_suppressions: bool,
    /// Blame the callers of matching functions for leaks
    ///
    /// These functions are wrappers of the allocator. Functions with names like malloc's, and functions of the C and
    /// C++ libraries, are already known.
    #[arg(long, value_name = "PATTERN")]
    wrapper: Vec<String>,
    /// Ignore the leaks that this file lists
    ///
    /// Leaks that have grown since it was written count.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Write the leaks that were found to this file
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

    /// Returns true if a baseline is read or written.
    pub fn has_baseline(&self) -> bool {
        self.baseline.is_some() || self.write_baseline.is_some()
    }
}

/// Outputs of the verdict, in addition to the text.
#[derive(clap::Args)]
#[command(next_help_heading = "Output")]
pub struct OutputOptions {
    /// Write JSON to standard output, or to a file
    ///
    /// A file is given as in --json=FILE. If JSON goes to standard output, the text goes to standard error.
    #[arg(short, long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Also write junit=FILE, sarif=FILE, markdown=FILE or github
    ///
    /// JUnit XML and SARIF replace the file; Markdown is appended to it. - is standard output. github prints
    /// annotations for GitHub Actions. May be given several times.
    #[arg(short, long = "output", value_name = "FORM=FILE", value_parser = output)]
    outputs: Vec<Output>,
    /// Directory that source paths are relative to
    ///
    /// SARIF and annotations name files below it. The default is the current directory.
    #[arg(long, value_name = "DIR")]
    source_root: Option<PathBuf>,
    /// Number of leaks to show in the text
    #[arg(
        short = 'T',
        long,
        value_name = "N",
        default_value_t = 10,
        allow_negative_numbers = true
    )]
    top: usize,
    #[command(flatten)]
    color: ColorArgs,
    /// Print only the line with the verdict
    #[arg(long)]
    verdict_only: bool,
}

/// Format of a verdict, and its file.
#[derive(Clone)]
enum Output {
    Github,
    File {
        form: &'static str,
        appends: bool,
        path: PathBuf,
    },
}

/// Parses `junit=FILE` and the like.
fn output(text: &str) -> Result<Output, String> {
    const FORMS: [(&str, bool); 3] = [("junit", false), ("sarif", false), ("markdown", true)];
    if text == "github" {
        return Ok(Output::Github);
    }
    let (name, path) = text.split_once('=').unwrap_or((text, ""));
    let form = FORMS.into_iter().find(|(form, _)| *form == name);
    match form {
        Some((form, appends)) if !path.is_empty() => Ok(Output::File {
            form,
            appends,
            path: path.into(),
        }),
        _ => Err("expected junit=FILE, sarif=FILE, markdown=FILE or github".into()),
    }
}

impl OutputOptions {
    /// Returns all outputs. `is_beside_program` is true if standard output belongs to a started program.
    pub fn resolve(
        &self,
        exceptions: &ExceptionOptions,
        is_beside_program: bool,
    ) -> memhook_gate::OutputOptions {
        let json = self.json.clone().map(|path| ("json", false, path));
        let others = self.outputs.iter().filter_map(|output| match output {
            Output::Github => None,
            Output::File {
                form,
                appends,
                path,
            } => Some((*form, *appends, path.clone())),
        });
        let forms = json.into_iter().chain(others);
        let github = self
            .outputs
            .iter()
            .any(|output| matches!(output, Output::Github));
        let is_terminal = if is_beside_program {
            std::io::stderr().is_terminal()
        } else {
            std::io::stdout().is_terminal()
        };
        let output_of_step = github.then(|| std::env::var_os("GITHUB_OUTPUT"));
        let output_of_step = output_of_step.flatten().filter(|path| !path.is_empty());
        memhook_gate::OutputOptions {
            forms: forms.collect(),
            baseline: exceptions.write_baseline.clone(),
            github,
            github_output: output_of_step.map(PathBuf::from),
            suppressions: exceptions.gen_suppressions,
            is_verdict_only: self.verdict_only,
            is_verbose: log::is_verbose(),
            is_colored: is_colored(self.color.color, is_terminal),
            is_beside_program,
            format: FormatOptions {
                top: self.top,
                source_root: self.root(),
                ..FormatOptions::default()
            },
        }
    }

    /// Returns the directory that source paths are relative to, by default the current one.
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
