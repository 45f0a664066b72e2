//! Writing a verdict in every form that was asked for.

use super::options::{Args, OutputOptions};
use anyhow::Context;
use memhook_foreign::{OutputFile, visible_json, visible_lines};
use memhook_gate::{Baseline, Outcome, Verdict, outcome};
use std::{
    fs::File,
    io::{IsTerminal, Write},
    path::Path,
};

/// Files, opened before the program starts: a run must not be lost because one cannot be written. Those that were
/// there stay the files that they are: the next step of a build reads them.
pub struct Outputs {
    files: Vec<(Form, Option<OutputFile>)>,
    baseline: Option<OutputFile>,
}

#[derive(Clone, Copy)]
enum Form {
    Json,
    Junit,
    Sarif,
    Markdown,
}

impl Outputs {
    /// Opens them.
    pub fn open(args: &Args) -> anyhow::Result<Outputs> {
        let options = &args.outputs;
        let forms = [
            (Form::Json, &options.json),
            (Form::Junit, &options.junit),
            (Form::Sarif, &options.sarif),
            (Form::Markdown, &options.markdown),
        ];
        let mut files = Vec::new();
        for (form, path) in forms {
            if let Some(path) = path {
                files.push((form, open(path)?));
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
        let options = &args.outputs;
        let root = options.root();
        for (form, file) in self.files {
            let text = match form {
                Form::Json => memhook_gate::json(verdicts) + "\n",
                Form::Junit => memhook_gate::junit(verdicts),
                Form::Sarif => memhook_gate::sarif(verdicts, &root) + "\n",
                Form::Markdown => memhook_gate::markdown(verdicts, options.top),
            };
            match file {
                None => to_stdout(&match form {
                    Form::Json | Form::Sarif => visible_json(&text),
                    Form::Junit | Form::Markdown => visible_lines(&text),
                }),
                Some(file) => {
                    let adds = matches!(form, Form::Markdown);
                    put(file, !adds, &text).context("cannot write the verdict")?;
                }
            }
        }
        if let Some(file) = self.baseline {
            let baseline = verdicts.iter().map(|verdict| {
                let not_suppressed = verdict.findings.iter();
                let leaks = not_suppressed
                    .filter(|f| f.standing != memhook_gate::Standing::Suppressed)
                    .map(|f| &f.leak);
                Baseline::of(&verdict.evidence, leaks)
            });
            let baseline = baseline.fold(Baseline::default(), Baseline::or_more);
            put(file, true, &baseline.write()).context("cannot write the baseline")?;
        }
        if options.github {
            to_stdout(&visible_lines(&memhook_gate::github(verdicts, &root)));
        }
        let mut text = text(options, verdicts, beside_program);
        if args.exceptions.gen_suppressions {
            text += "\n";
            text += &visible_lines(&memhook_gate::suppressions(verdicts));
        }
        match beside_program {
            true => drop(std::io::stderr().lock().write_all(text.as_bytes())),
            false => to_stdout(&text),
        }
        Ok(())
    }
}

fn text(options: &OutputOptions, verdicts: &[Verdict], to_stderr: bool) -> String {
    let text = memhook_gate::text(verdicts, options.top);
    let mut text = visible_lines(&text).into_owned();
    let end = text.find('\n').unwrap_or(text.len());
    if options.quiet {
        text.truncate(end + 1);
    }
    let is_terminal = match to_stderr {
        true => std::io::stderr().is_terminal(),
        false => std::io::stdout().is_terminal(),
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
    // A reader that went away is no error of ours.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
