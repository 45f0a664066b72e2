//! Destination and form of reports.

use crate::log;
use crate::options::Color;
use memhook_foreign::visible_json;
use memhook_report::{Document, ReportStream, Style, document, shown, terminal_has_utf8};
use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::Path;
use terminal_size::{Width, terminal_size_of};

/// Prints a line on standard output, made safe as by [`crate::printing`].
macro_rules! say {
    ($($text:tt)*) => { crate::printing::out(format_args!($($text)*)) };
}
pub(crate) use say;

/// Returns the style of text in a file, or else on a standard stream.
pub fn style(path: Option<&Path>, stream: ReportStream, color: Color) -> Style<'static> {
    let (is_terminal, size) = match stream {
        _ if path.is_some() => (false, None),
        ReportStream::Out => (stdout().is_terminal(), terminal_size_of(stdout())),
        ReportStream::Err => (stderr().is_terminal(), terminal_size_of(stderr())),
    };
    let width = columns(size.map(|(width, _)| width));
    Style {
        color: is_colored(color, is_terminal),
        ascii: is_terminal && !terminal_has_utf8(),
        verbose: log::is_verbose(),
        // A terminal of unknown size reports 0.
        width: width.filter(|&columns| path.is_none() && columns > 0),
        root: "",
    }
}

/// Returns the number of columns of standard output; `None` if it has no width.
pub fn width() -> Option<usize> {
    columns(terminal_size_of(stdout()).map(|(width, _)| width))
}

/// Returns the width that the user chose, or else the terminal's.
fn columns(terminal: Option<Width>) -> Option<usize> {
    let wanted = std::env::var("COLUMNS").ok();
    let wanted = wanted.and_then(|columns| columns.parse().ok());
    wanted.or(terminal.map(|Width(columns)| usize::from(columns)))
}

/// Returns true if colours are used (<https://no-color.org>). A dumb terminal would show their
/// codes.
pub fn is_colored(color: Color, terminal: bool) -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    color == Color::Always || (color == Color::Auto && terminal && wanted)
}

/// The option `--json` of commands that write one or more documents.
#[derive(clap::Args, Clone, Copy)]
#[group(skip)]
pub struct Json {
    /// Write JSON instead of text
    #[arg(short, long)]
    pub json: bool,
}

impl Json {
    /// Prints a document on standard output, without colours.
    pub fn print(self, report: &impl Document) -> anyhow::Result<()> {
        let style = style(None, ReportStream::Out, Color::Never);
        let text = document(report, self.json, style)?;
        let text = if self.json {
            visible_json(&text)
        } else {
            shown(&text, style)
        };
        // A reader that has closed the pipe is not an error.
        let _ = stdout().lock().write_all(text.as_bytes());
        Ok(())
    }
}
