//! Reports written one after the other while a process is traced.

use crate::charset::in_ascii;
use crate::{ReportModel, Style, document};
use crossbeam_channel::{Sender, TrySendError, bounded};
use memhook_foreign::{OutputError, OutputFile, visible_colored, visible_json, visible_lines};
use std::{
    borrow::Cow,
    io::{Error, ErrorKind, Result, Write},
    path::Path,
    thread::JoinHandle,
};

/// Maximum number of reports that wait for a slow reader. Further reports are dropped.
const BACKLOG: usize = 64;

/// Standard stream for reports that do not go to a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ReportStream {
    /// Standard output.
    Out,
    /// Standard error, because standard output belongs to the traced program.
    Err,
}

/// Writer to a standard stream or a file, as text or JSON.
///
/// A separate thread does the writing. Otherwise a pager that waits for a key would keep the
/// attacher from emptying its rings, and a full disk would keep it from detaching.
pub struct ReportWriter {
    reports: Option<Sender<String>>,
    writer: Option<JoinHandle<Result<()>>>,
    left_out: u64,
    json: bool,
    style: Style<'static>,
}

impl ReportWriter {
    /// Opens the output. Fails for an existing file unless `force` is set, and keeps the old
    /// contents of a file until the first report.
    pub fn open(
        path: Option<&Path>,
        force: bool,
        json: bool,
        style: Style<'static>,
    ) -> Result<ReportWriter> {
        ReportWriter::open_or(ReportStream::Out, path, force, json, style)
    }

    /// Like [`ReportWriter::open`], but uses the given stream if no file is named.
    pub fn open_or(
        stream: ReportStream,
        path: Option<&Path>,
        force: bool,
        json: bool,
        style: Style<'static>,
    ) -> Result<ReportWriter> {
        let file = path
            .map(|path| OutputFile::create(path, force))
            .transpose()
            .map_err(OutputError::into_io)?;
        let (reports, inbox) = bounded::<String>(BACKLOG);
        let writer = std::thread::Builder::new()
            .name("output".into())
            .spawn(move || write_all(stream, file, inbox.iter()))?;
        Ok(ReportWriter {
            reports: Some(reports),
            writer: Some(writer),
            left_out: 0,
            json,
            style,
        })
    }

    /// Queues one report for writing.
    pub fn write(&mut self, report: &ReportModel) {
        self.write_titled("", report);
    }

    /// Queues one report below a title, which JSON leaves out.
    pub fn write_titled(&mut self, title: &str, report: &ReportModel) {
        let Some(reports) = &self.reports else { return };
        let Ok(text) = document(report, self.json, self.style) else {
            self.left_out += 1;
            return;
        };
        let text = if self.json {
            visible_json(&text).into_owned()
        } else {
            // An empty line separates reports.
            shown(&format!("{title}{text}\n"), self.style).into_owned()
        };
        if report.is_final {
            // Tracing has ended, so this report may wait for its reader.
            let _ = reports.send(text);
        } else if let Err(TrySendError::Full(_)) = reports.try_send(text) {
            self.left_out += 1;
        }
    }

    /// Cancels the output: removes the file if it is new, and leaves an existing file unchanged.
    pub fn abandon(mut self) {
        let _ = self.finish();
    }

    /// Returns true if nothing more can be written, because the reader has closed the stream or the
    /// disk is full.
    pub fn is_closed(&self) -> bool {
        self.writer.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Waits until everything is written. A closed pipe is not an error.
    pub fn finish(&mut self) -> Result<()> {
        self.reports = None;
        let written = match self.writer.take().map(JoinHandle::join) {
            Some(Ok(written)) => written,
            _ => Ok(()),
        };
        match written {
            Err(e) if e.kind() != ErrorKind::BrokenPipe => return Err(e),
            _ => {}
        }
        if self.left_out > 0 {
            let why = format!("{} reports found no reader in time", self.left_out);
            return Err(Error::other(why));
        }
        Ok(())
    }
}

/// Makes text safe for a terminal, so that only our own colours take effect.
pub fn shown<'a>(text: &'a str, style: Style) -> Cow<'a, str> {
    let shown = if style.color {
        visible_colored(text)
    } else {
        visible_lines(text)
    };
    match style.ascii {
        true => Cow::Owned(in_ascii(&shown).into_owned()),
        false => shown,
    }
}

fn write_all(
    stream: ReportStream,
    file: Option<OutputFile>,
    reports: impl Iterator<Item = String>,
) -> Result<()> {
    let mut reports = reports.peekable();
    if reports.peek().is_none() {
        return Ok(());
    }
    let mut to: Box<dyn Write> = match file {
        None if stream == ReportStream::Err => Box::new(std::io::stderr()),
        None => Box::new(std::io::stdout()),
        Some(file) => Box::new(file.keep()?),
    };
    for report in reports {
        to.write_all(report.as_bytes()).and_then(|()| to.flush())?;
    }
    Ok(())
}
