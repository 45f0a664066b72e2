//! Files and streams to which verdicts are written.

use crate::formats::rendered;
use crate::formats::text::{conclusion, details};
use crate::{Baseline, Error, FORMATS, Judgement, Outcome, outcome};
use memhook_foreign::{OutputError, OutputFile, is_program, visible, visible_json, visible_lines};
use memhook_report::{FormatOptions, Nature};
use std::{
    borrow::Cow,
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

/// Destinations of verdicts, and the style of their text. The path `-` means standard output.
#[derive(Clone, Debug, Default)]
pub struct OutputOptions {
    /// For each form: its name, true if it is appended to the file, and the file.
    pub forms: Vec<(&'static str, bool, PathBuf)>,
    /// File for a baseline of the findings.
    pub baseline: Option<PathBuf>,
    /// True if annotations for GitHub Actions are printed to standard output.
    pub github: bool,
    /// File from which GitHub Actions reads the outputs of a step (`GITHUB_OUTPUT`).
    pub github_output: Option<PathBuf>,
    /// True if suppressions for the findings are printed before the verdict.
    pub suppressions: bool,
    /// True if only the line with the verdict is printed.
    pub is_verdict_only: bool,
    /// True if every process is listed, even if it passed.
    pub is_verbose: bool,
    /// True if the verdict line is coloured by the outcome.
    pub is_colored: bool,
    /// True if the text goes to standard error because standard output belongs to the program. It
    /// also goes there if a form goes to standard output, so that a program that reads the form
    /// gets nothing else.
    pub is_beside_program: bool,
    /// Number of findings to show, and the directory to which source paths are made relative.
    pub format: FormatOptions,
}

/// Output files, opened before a program starts, so that no run is lost because a file cannot be
/// written. They are written in place rather than replaced, because the next build step reads them.
pub struct Outputs {
    options: OutputOptions,
    /// Output of each form in [`OutputOptions::forms`]: its name, true if it is appended, and the
    /// file. `None` is standard output.
    files: Vec<(&'static str, bool, Option<OutputFile>)>,
    baseline: Option<OutputFile>,
}

impl Outputs {
    /// Opens the files.
    ///
    /// # Errors
    /// Fails if a file cannot be opened.
    pub fn open(mut options: OutputOptions) -> Result<Outputs, OutputError> {
        options.format.lists_all = options.is_verbose;
        let open_form = |(form, appends, path): &(&'static str, bool, PathBuf)| {
            open(path).map(|file| (*form, *appends, file))
        };
        let files = options.forms.iter().map(open_form);
        let files = files.collect::<Result<_, _>>()?;
        let baseline = options.baseline.as_deref().map(open).transpose()?;
        Ok(Outputs {
            options,
            files,
            baseline: baseline.flatten(),
        })
    }

    /// Writes the verdicts on all processes in every requested form.
    ///
    /// # Errors
    /// Fails if a form cannot be created, or a file cannot be written.
    pub fn write(self, verdicts: &Judgement) -> Result<(), Error> {
        let options = &self.options;
        let form = |name| rendered(name, verdicts, &options.format).map_err(Error::Verdict);
        for (name, appends, file) in self.files {
            let text = form(name)?;
            match file {
                None => to_stdout(&shown(name, &text)),
                Some(file) => put(file, !appends, &text).map_err(Error::Verdict)?,
            }
        }
        if let Some(file) = self.baseline {
            let text = Baseline::of_all(verdicts).write();
            let written = text.map_err(Into::into).and_then(|t| put(file, true, &t));
            written.map_err(Error::WriteBaseline)?;
        }
        if options.github {
            to_stdout(&shown("github", &form("github")?));
        }
        if let Some(path) = &options.github_output {
            let of_step = step_outputs(options, verdicts);
            put(
                OutputFile::reopen(path)
                    .map_err(OutputError::into_io)
                    .map_err(Error::Verdict)?,
                false,
                &of_step,
            )
            .map_err(Error::Verdict)?;
        }
        let mut text = String::new();
        if !options.is_verdict_only {
            text += &visible_lines(&details(verdicts, &options.format));
        }
        if options.suppressions {
            text += "\n";
            text += &shown("suppressions", &form("suppressions")?);
            text += "\n";
        }
        text += &concluded(options, verdicts);
        let is_form_printed = options
            .forms
            .iter()
            .any(|(.., path)| path == Path::new("-"));
        if options.is_beside_program || is_form_printed {
            let _ = std::io::stderr().lock().write_all(text.as_bytes());
        } else {
            to_stdout(&text);
        }
        Ok(())
    }
}

/// Returns a text in a form that is safe for a terminal.
fn shown<'a>(form: &str, text: &'a str) -> Cow<'a, str> {
    let format = FORMATS.into_iter().find(|format| format.name() == form);
    match format.map(|format| format.nature()) {
        Some(Nature::Json) => visible_json(text),
        _ => visible_lines(text),
    }
}

/// Returns the verdict, coloured by the outcome, with the remedy.
fn concluded(options: &OutputOptions, verdicts: &Judgement) -> String {
    let (line, remedy) = conclusion(verdicts, &options.format);
    let line = visible_lines(line.trim_end());
    let remedy = if options.is_verdict_only { "" } else { remedy };
    let color = match outcome(verdicts) {
        Outcome::Passed => "32",
        Outcome::Failed => "31",
        Outcome::Unsound => "33",
    };
    match options.is_colored {
        true => format!("\x1b[1;{color}m{line}\x1b[0m\n{remedy}"),
        false => format!("{line}\n{remedy}"),
    }
}

/// Writes outputs for later steps of a workflow: the number of leaks, their bytes, and the file for
/// code scanning.
fn step_outputs(options: &OutputOptions, verdicts: &Judgement) -> String {
    let leaks = verdicts.leaks(|_| true).len();
    let bytes: u64 = verdicts.iter().map(|v| v.leaked.bytes).sum();
    let mut out = format!("leaks={leaks}\nbytes={bytes}\n");
    let mut forms = options.forms.iter();
    let sarif = forms.find(|(form, _, path)| *form == "sarif" && path != Path::new("-"));
    if let Some((.., path)) = sarif {
        out += &format!("sarif={}\n", visible(&path.to_string_lossy()));
    }
    out
}

/// Opens a file; `None` is standard output. Refuses to overwrite an executable, because the user
/// probably wrote `--json PROGRAM` and meant `--json -- PROGRAM`.
fn open(path: &Path) -> Result<Option<OutputFile>, OutputError> {
    if path == Path::new("-") {
        return Ok(None);
    }
    if is_program(path) {
        return Err(OutputError::Program { path: path.into() });
    }
    OutputFile::reopen(path).map(Some)
}

fn put(file: OutputFile, from_the_start: bool, text: &str) -> std::io::Result<()> {
    let mut file: File = file.keep()?;
    if from_the_start {
        // Devices and pipes have no length.
        let _ = file.set_len(0);
    }
    file.write_all(text.as_bytes())
}

fn to_stdout(text: &str) {
    // A reader that has closed the pipe is not an error.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
