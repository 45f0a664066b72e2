//! Files that the commands about recordings read and write, and the progress that the user sees.

use super::sources;
use crate::exit_code;
use crate::options::ColorArgs;
use anyhow::Context;
use memhook_foreign::{OutputFile, visible_json};
use memhook_gate::template_matches;
use memhook_recording::{Recording, RecordingEnd};
use memhook_report::recorded::{self, Contents, Window};
use memhook_report::{Document, Nature, Profile, Progress, ReportStream, Style, counted};
use memhook_symbols::Symbolizer;
use std::{
    borrow::Cow,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    time::Duration,
};

/// Opens a recording. The error names it. `-` is standard input.
pub fn open(path: &Path) -> anyhow::Result<Recording> {
    const STDIN: &str = "standard input";
    let (opened, name) = if path == Path::new("-") {
        let read = Recording::read(STDIN, std::io::stdin().lock());
        (read, Path::new(STDIN))
    } else {
        (Recording::open(path), path)
    };
    opened.map_err(|error| match error {
        // These errors name the file and the cause themselves.
        memhook_recording::Error::Io { .. } => anyhow::anyhow!("{error}"),
        error => anyhow::anyhow!("{}: {error}", name.display()),
    })
}

/// Reads the activity in a window of a recording, with names. The error names the file.
pub fn read(
    recording: &Recording,
    path: &Path,
    sources: &sources::Args,
    window: Window,
    contents: Contents,
) -> anyhow::Result<(Profile, Symbolizer)> {
    let mut symbols = sources::symbolizer(recording, sources)?;
    let progress = Progress::of_reading(recording.meter());
    let profile = recorded::profile(recording, &mut symbols, window, contents);
    drop(progress);
    let profile = profile.with_context(|| path.display().to_string())?;
    sources::tell_refused(&symbols);
    tell_end(recording, path);
    Ok((profile, symbols))
}

/// Options that choose the blocks to show.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct BlockArgs {
    /// Only blocks with this function or line on their call stacks
    ///
    /// As in 'write_audit', '^Session::*' or 'shop.cc:28': the text occurs in the name of a function or in its
    /// FILE:LINE. An asterisk is any text; ^ and $ are the beginning and the end of the name. Sums over the whole run
    /// do not change.
    #[arg(long, value_name = "PATTERN")]
    focus: Option<String>,
    /// Only blocks whose type has this in its name
    ///
    /// As in 'Node' or '^std::vector*>$': an asterisk is any text; ^ and $ are the beginning and the end of the name.
    /// Blocks of no known type are called unknown. Sums over the whole run do not change.
    #[arg(long = "type", value_name = "PATTERN")]
    pattern: Option<String>,
}

impl BlockArgs {
    /// Removes blocks that are not shown, if options choose some. Returns true if any chosen block
    /// exists.
    pub fn apply(&self, profile: &mut Profile, symbols: &Symbolizer) -> bool {
        if let Some(pattern) = &self.focus {
            recorded::keep_frames(profile, |name| template_matches(pattern, name));
        }
        if let Some(pattern) = &self.pattern {
            recorded::add_types(profile, symbols);
            recorded::keep_types(profile, |name| template_matches(pattern, name));
        }
        self.option().is_none() || !profile.sites.is_empty()
    }

    /// Returns the error for names that do not occur in a recording.
    pub fn refuse(&self, path: &Path) -> anyhow::Error {
        let path = path.display();
        match (&self.focus, &self.pattern) {
            (Some(focus), Some(pattern)) => anyhow::anyhow!(
                "--focus {focus} --type {pattern}: no block in {path} fits both; leave one of them out"
            ),
            (None, Some(pattern)) => anyhow::anyhow!(
                "--type {pattern}: no block in {path} has such a type; \
                 memhook-rs report {path} --by type lists the types"
            ),
            (focus, None) => anyhow::anyhow!(
                "--focus {}: no call stack in {path} has such a function or line; \
                 memhook-rs report {path} --by function lists the functions",
                focus.as_deref().unwrap_or_default()
            ),
        }
    }

    /// Returns the name of the option that leaves blocks out.
    pub fn option(&self) -> Option<&'static str> {
        let of_type = self.pattern.as_ref().map(|_| "--type");
        of_type.or(self.focus.as_ref().map(|_| "--focus"))
    }
}

/// Reports a recording that ended before the run did, and how much of it was read.
fn tell_end(recording: &Recording, path: &Path) {
    let why = match recording.end() {
        Some(RecordingEnd::Finished) => return,
        Some(end) => end.to_string(),
        None => "its recorder died or the end of the file is missing".to_owned(),
    };
    let (from_ns, to_ns) = recording.span_ns();
    let span = Duration::from_nanos(to_ns - from_ns);
    let read = if recording.is_summary() {
        format!("only the first {span:.1?} could be read")
    } else if recording.events() == 0 {
        "no event could be read".to_owned()
    } else {
        let events = counted(recording.events(), "event");
        format!("only {events} of the first {span:.1?} could be read")
    };
    eprintln!(
        "memhook-rs: {} is not the whole run: {why}; {read}",
        path.display()
    );
}

/// Returns the exit code of a command that read a recording. A missing end is not a success.
pub fn code_of(recording: &Recording) -> u8 {
    match recording.end() {
        Some(_) => exit_code::DONE,
        None => exit_code::BAD_INPUT,
    }
}

/// Output of a command, and the style of text in it.
#[derive(clap::Args, Clone)]
#[group(skip)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Overwrite the output file if it exists
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub color: ColorArgs,
}

impl OutputArgs {
    /// Returns the style of text.
    pub fn style(&self) -> memhook_report::Style<'static> {
        let path = self.output.as_deref();
        crate::output::style(path, ReportStream::Out, self.color.color)
    }

    /// Writes a document as text or as JSON.
    pub fn write_document(&self, document: &impl Document, as_json: bool) -> anyhow::Result<()> {
        let text = memhook_report::document(document, as_json, self.style())?;
        let nature = if as_json { Nature::Json } else { Nature::Text };
        self.write(text.as_bytes(), nature)
    }

    /// Writes all bytes. In text for people, only our own colours can act on a terminal.
    pub fn write(&self, bytes: &[u8], nature: Nature) -> anyhow::Result<()> {
        let shown = presentable(bytes, nature, self.style());
        write(self.output.as_deref(), self.force, &shown)
    }
}

/// Returns the part of these bytes that may be written to a terminal.
pub fn presentable<'a>(bytes: &'a [u8], nature: Nature, style: Style) -> Cow<'a, [u8]> {
    let shown = match (nature, std::str::from_utf8(bytes)) {
        (Nature::Text, Ok(text)) => memhook_report::shown(text, style),
        (Nature::Json, Ok(text)) => visible_json(text),
        // Compressed bytes are not text.
        _ => return Cow::Borrowed(bytes),
    };
    match shown {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

/// Writes to standard output or into a file. Fails if the file exists, unless `force` is set.
pub fn write(path: Option<&Path>, force: bool, bytes: &[u8]) -> anyhow::Result<()> {
    let Some(path) = path else {
        let mut out = std::io::stdout().lock();
        return match out.write_all(bytes).and_then(|()| out.flush()) {
            // A reader that has closed the pipe is not an error.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => written.context("cannot write to standard output"),
        };
    };
    let output = OutputFile::create(path, force)?;
    // The file replaces an existing one only when it is complete, so a full disk does no harm.
    let mut file = output.file();
    let written = file.write_all(bytes).and_then(|()| output.keep());
    written.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}
