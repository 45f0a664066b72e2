//! Writing a verdict in every form that was asked for.

use super::options::{Args, OutputOptions};
use anyhow::Context;
use memhook_foreign::{OutputFile, visible_json, visible_lines};
use memhook_gate::{Baseline, FORMATS, Outcome, Verdict, outcome, rendered};
use memhook_report::{FormatOptions, Nature};
use std::{
    borrow::Cow,
    fs::File,
    io::{IsTerminal, Write},
    path::Path,
};

/// Files, opened before the program starts: a run must not be lost because one cannot be written. Those that were
/// there before stay the same files: the next step of a build reads them.
pub struct Outputs {
    /// The name of a form, whether it is added to what the file holds, and the file.
    files: Vec<(&'static str, bool, Option<OutputFile>)>,
    baseline: Option<OutputFile>,
}

impl Outputs {
    /// Opens them.
    pub fn open(args: &Args) -> anyhow::Result<Outputs> {
        let options = &args.outputs;
        let forms = [
            ("json", false, &options.json),
            ("junit", false, &options.junit),
            ("sarif", false, &options.sarif),
            ("markdown", true, &options.markdown),
        ];
        let mut files = Vec::new();
        for (form, adds, path) in forms {
            if let Some(path) = path {
                files.push((form, adds, open(path)?));
            }
        }
        let baseline = args.exceptions.write_baseline.as_deref().map(open);
        Ok(Outputs {
            files,
            baseline: baseline.transpose()?.flatten(),
        })
    }

    /// Writes everything; the text goes to standard error if that of the program fills standard output.
    pub fn write(
        self,
        args: &Args,
        verdicts: &[Verdict],
        beside_program: bool,
    ) -> anyhow::Result<()> {
        let options = FormatOptions {
            top: args.outputs.top,
            source_root: args.outputs.root(),
            ..FormatOptions::default()
        };
        let form = |name| rendered(name, verdicts, &options).context("cannot write the verdict");
        for (name, adds, file) in self.files {
            let text = form(name)?;
            match file {
                None => to_stdout(&shown(name, &text)),
                Some(file) => put(file, !adds, &text).context("cannot write the verdict")?,
            }
        }
        if let Some(file) = self.baseline {
            let baseline = Baseline::of_all(verdicts);
            put(file, true, &baseline.write()?).context("cannot write the baseline")?;
        }
        if args.outputs.github {
            to_stdout(&shown("github", &form("github")?));
        }
        let mut text = colored(&args.outputs, verdicts, &form("text")?, beside_program);
        if args.exceptions.gen_suppressions {
            text += "\n";
            text += &shown("suppressions", &form("suppressions")?);
        }
        if beside_program {
            let _ = std::io::stderr().lock().write_all(text.as_bytes());
        } else {
            to_stdout(&text);
        }
        Ok(())
    }
}

/// As a terminal may have it.
fn shown<'a>(form: &str, text: &'a str) -> Cow<'a, str> {
    let format = FORMATS.into_iter().find(|format| format.name() == form);
    match format.map(|format| format.nature()) {
        Some(Nature::Json) => visible_json(text),
        _ => visible_lines(text),
    }
}

/// The text, its first line in the colour of the outcome.
fn colored(options: &OutputOptions, verdicts: &[Verdict], text: &str, to_stderr: bool) -> String {
    let mut text = visible_lines(text).into_owned();
    let end = text.find('\n').unwrap_or(text.len());
    if options.quiet {
        text.truncate(end + 1);
    }
    let is_terminal = if to_stderr {
        std::io::stderr().is_terminal()
    } else {
        std::io::stdout().is_terminal()
    };
    if crate::output::is_colored(options.color, is_terminal) {
        let color = match outcome(verdicts) {
            Outcome::Passed => "32",
            Outcome::Failed => "31",
            Outcome::Unsound => "33",
        };
        let (first, rest) = text.split_at(end);
        return format!("\x1b[1;{color}m{first}\x1b[0m{rest}");
    }
    text
}

/// `None`: standard output.
fn open(path: &Path) -> anyhow::Result<Option<OutputFile>> {
    if path == Path::new("-") {
        return Ok(None);
    }
    Ok(Some(OutputFile::reopen(path)?))
}

fn put(file: OutputFile, from_the_start: bool, text: &str) -> std::io::Result<()> {
    let mut file: File = file.keep()?;
    if from_the_start {
        // Devices and pipes have no length to set.
        let _ = file.set_len(0);
    }
    file.write_all(text.as_bytes())
}

fn to_stdout(text: &str) {
    // A reader that went away is not our error.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
