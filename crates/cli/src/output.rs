//! Where reports go, and in which form.

use crate::options::Color;
use anyhow::bail;
use crossbeam_channel::{Sender, TrySendError, bounded};
use memhook_foreign::{OutputFile, visible_colored, visible_json, visible_lines};
use memhook_report::{ReportModel, Style};
use std::{
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    thread::JoinHandle,
};

/// Prints a line on standard output, as all of ours are: see [`crate::printing`].
macro_rules! say {
    ($($text:tt)*) => { crate::printing::out(format_args!($($text)*)) };
}
pub(crate) use say;

/// Reports that wait for a slow reader; more are left out.
const BACKLOG: usize = 64;

/// Where reports go that are not for a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error: the output is that of the program which is traced.
    Err,
}

/// A standard stream or a file; text or JSON.
///
/// A thread does the writing: a pager that waits for a key must not keep the attacher from its rings, nor
/// a full disk from detaching.
pub struct Output {
    reports: Option<Sender<String>>,
    writer: Option<JoinHandle<std::io::Result<()>>>,
    left_out: u64,
    json: bool,
    style: Style,
}

impl Output {
    /// Opens the output; an existing file is refused unless `force`, and keeps its contents until the
    /// first report.
    pub fn open(
        path: Option<&Path>,
        force: bool,
        json: bool,
        style: Style,
    ) -> anyhow::Result<Output> {
        Output::open_or(Stream::Out, path, force, json, style)
    }

    /// As [`Output::open`], with the stream to use where no file is named.
    pub fn open_or(
        stream: Stream,
        path: Option<&Path>,
        force: bool,
        json: bool,
        style: Style,
    ) -> anyhow::Result<Output> {
        let file = path
            .map(|path| OutputFile::create(path, force))
            .transpose()?;
        let (reports, inbox) = bounded::<String>(BACKLOG);
        let writer = std::thread::Builder::new()
            .name("output".into())
            .spawn(move || write_all(stream, file, inbox.iter()))?;
        Ok(Output {
            reports: Some(reports),
            writer: Some(writer),
            left_out: 0,
            json,
            style,
        })
    }

    /// Writes one report, sooner or later, below a title; in JSON there is none.
    pub fn write_titled(&mut self, title: &str, report: &ReportModel) {
        let Some(reports) = &self.reports else { return };
        let Ok(text) = memhook_report::document(report, self.json, self.style) else {
            self.left_out += 1;
            return;
        };
        let text = if self.json {
            visible_json(&text).into_owned()
        } else {
            // An empty line between reports.
            shown(&format!("{title}{text}\n"), self.style).into_owned()
        };
        if report.is_final {
            // Nothing is traced any more: this one may wait for its reader.
            let _ = reports.send(text);
        } else if let Err(TrySendError::Full(_)) = reports.try_send(text) {
            self.left_out += 1;
        }
    }

    /// Nothing will be written: no new file stays, and an old one is as it was.
    pub fn abandon(mut self) {
        let _ = self.finish();
    }

    /// Whether nothing more can be written: the reader went away, or the disk is full.
    pub fn is_closed(&self) -> bool {
        self.writer.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Waits until everything is written. A reader that went away has seen enough: no error.
    pub fn finish(&mut self) -> anyhow::Result<()> {
        self.reports = None;
        let written = match self.writer.take().map(JoinHandle::join) {
            Some(Ok(written)) => written,
            _ => Ok(()),
        };
        match written {
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => return Err(e.into()),
            _ => {}
        }
        if self.left_out > 0 {
            bail!("{} reports found no reader in time", self.left_out);
        }
        Ok(())
    }
}

/// A report as text: nothing in it acts on a terminal but our own colours.
pub fn shown(text: &str, style: Style) -> std::borrow::Cow<'_, str> {
    if style.color {
        visible_colored(text)
    } else {
        visible_lines(text)
    }
}

/// How text looks there.
pub fn style(path: Option<&Path>, color: Color, verbose: bool) -> Style {
    Style {
        color: is_colored(color, path.is_none() && std::io::stdout().is_terminal()),
        verbose,
    }
}

/// Whether to use colours (<https://no-color.org>).
pub fn is_colored(color: Color, terminal: bool) -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    color == Color::Always || (color == Color::Auto && terminal && wanted)
}

/// `%p` is the process id, `%h` this host, `%%` a percent sign.
pub fn expand(path: &Path, pid: i32) -> anyhow::Result<PathBuf> {
    let Some(text) = path.to_str().filter(|text| text.contains('%')) else {
        return Ok(path.to_owned());
    };
    let mut expanded = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            expanded.push(c);
            continue;
        }
        match rest.next() {
            Some('p') => expanded += &pid.to_string(),
            Some('h') => {
                let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
                expanded += host.unwrap_or_default().trim_end();
            }
            Some('%') => expanded.push('%'),
            other => bail!(
                "--output {text}: %{} means nothing: use %p (process id), %h (host) or %%",
                other.map_or(String::new(), String::from)
            ),
        }
    }
    Ok(expanded.into())
}

fn write_all(
    stream: Stream,
    file: Option<OutputFile>,
    reports: impl Iterator<Item = String>,
) -> std::io::Result<()> {
    let mut reports = reports.peekable();
    if reports.peek().is_none() {
        return Ok(());
    }
    let mut to: Box<dyn Write> = match file {
        None if stream == Stream::Err => Box::new(std::io::stderr()),
        None => Box::new(std::io::stdout()),
        Some(file) => Box::new(file.keep()?),
    };
    for report in reports {
        to.write_all(report.as_bytes()).and_then(|()| to.flush())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_outputs() {
        let expand = |text: &str| expand(Path::new(text), 42).map(|p| p.display().to_string());
        assert_eq!(expand("a.json").unwrap(), "a.json");
        assert_eq!(
            expand("/x/heap-%p-100%%.json").unwrap(),
            "/x/heap-42-100%.json"
        );
        assert!(!expand("%h").unwrap().contains('%'));
        assert!(
            expand("%q")
                .unwrap_err()
                .to_string()
                .contains("%q means nothing")
        );
    }
}
