//! Output formats: one trait, one file per format, and one line in a table that registers it.
//!
//! A document that people read (a report, a tree, a comparison) is a [`Document`], which can be written as [`Text`] and
//! as [`Json`]. A profile can be written in any of [`EXPORTS`]. Other crates have their own tables for their documents.

mod flamegraph;
mod folded;
mod heaptrack;
mod heaptrack_events;
mod heaptrack_lines;
mod json;
mod locations;
mod massif;
mod otlp;
mod otlp_messages;
mod pprof;
mod pprof_messages;
mod pprof_names;
mod speedscope;
mod text;

pub use crate::view::Html;
pub use json::Json;
pub use otlp::{OtlpSource, otlp_request};
pub use pprof::{PprofShape, pprof};
pub use pprof_names::{AddedNames, PprofError, PprofNames, StoredPprof};
pub use text::Text;

use crate::view::Editor;
use crate::{Amount, Measure, Measures, Profile, Style, Unit};
use flate2::{Compression, write::GzEncoder};
use serde::Serialize;
use std::{
    fmt,
    io::{BufWriter, Result, Write},
    str::FromStr,
};

/// All formats for profiles apart from text and JSON.
pub static EXPORTS: [&dyn Format<Profile>; 7] = [
    &folded::Folded,
    &flamegraph::Flamegraph,
    &pprof::Pprof,
    &heaptrack::Heaptrack,
    &speedscope::Speedscope,
    &massif::Massif,
    &Html,
];

/// A format for documents of one type.
pub trait Format<D: ?Sized>: Sync {
    /// Returns the format's name on the command line.
    fn name(&self) -> &'static str;

    /// Returns the nature of the bytes.
    fn nature(&self) -> Nature {
        Nature::Text
    }

    /// Writes a document.
    ///
    /// # Errors
    /// Errors of `out`.
    fn write(&self, document: &D, options: &FormatOptions, out: &mut dyn Write) -> Result<()>;
}

/// Kind of data in a format, which decides how it is written to a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// Lines of text.
    Text,
    /// JSON.
    Json,
    /// Compressed bytes, which are not written to a terminal.
    Binary,
}

/// A document with a text form for people, and a JSON form with its own schema for programs.
pub trait Document: Serialize {
    /// Returns the document as text.
    fn text(&self, style: Style) -> String;
}

/// Options for writing a document. Formats with several measures (pprof, heaptrack, html) contain all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FormatOptions {
    /// Style of text.
    pub style: Style<'static>,
    /// Measure exported by single-value formats.
    pub measure: Measure,
    /// Unit of the values.
    pub unit: Unit,
    /// True to compress with gzip, unless the format itself already compresses. heaptrack_print
    /// recognizes gzip by the suffix `.gz`.
    pub gzip: bool,
    /// Number of findings that are shown in detail.
    pub top: usize,
    /// True to also list items without findings.
    pub lists_all: bool,
    /// Directory to which source paths are shown relative.
    pub source_root: String,
    /// Editor that opens a source line of the page.
    pub editor: Option<Editor>,
}

impl FormatOptions {
    /// Returns the value of a site.
    pub fn of(&self, measures: &Measures) -> u64 {
        let amount: Amount = self.measure.of(measures);
        self.unit.of(amount)
    }
}

/// Returns the format with this name.
pub fn export_format(name: &str) -> Option<&'static dyn Format<Profile>> {
    EXPORTS.into_iter().find(|format| format.name() == name)
}

/// Writes a document, compressed if the options say so.
///
/// # Errors
/// Errors of `out`.
pub fn write<D: ?Sized>(
    format: &dyn Format<D>,
    document: &D,
    options: &FormatOptions,
    out: &mut dyn Write,
) -> Result<()> {
    if options.gzip && format.nature() != Nature::Binary {
        let mut packed = BufWriter::new(GzEncoder::new(out, Compression::default()));
        format.write(document, options, &mut packed)?;
        let packed = packed.into_inner().map_err(|error| error.into_error())?;
        return packed.finish().map(drop);
    }
    let mut out = BufWriter::new(out);
    format.write(document, options, &mut out)?;
    out.flush()
}

/// Formats in which a recording can be written.
#[derive(Clone, Copy)]
pub enum FormatChoice {
    /// A document as text.
    Text,
    /// A document as JSON.
    Json,
    /// The whole profile.
    Export(&'static dyn Format<Profile>),
}

impl FormatChoice {
    /// Returns the nature of the format's bytes.
    pub fn nature(self) -> Nature {
        match self {
            FormatChoice::Text => Nature::Text,
            FormatChoice::Json => Nature::Json,
            FormatChoice::Export(format) => format.nature(),
        }
    }
}

impl fmt::Debug for FormatChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FormatChoice::Text => "text",
            FormatChoice::Json => "json",
            FormatChoice::Export(format) => format.name(),
        })
    }
}

impl FromStr for FormatChoice {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<FormatChoice, String> {
        match (word, export_format(word)) {
            ("text", _) => Ok(FormatChoice::Text),
            ("json", _) => Ok(FormatChoice::Json),
            (_, Some(format)) => Ok(FormatChoice::Export(format)),
            (_, None) => {
                let names = EXPORTS.map(|format| format.name()).join(", ");
                Err(format!(
                    "unknown format {word}: use one of text, json, {names}"
                ))
            }
        }
    }
}

/// Writes a document as text or as JSON, with a newline at the end.
///
/// # Errors
/// Fails if the document cannot be serialized.
pub fn document<D: Document>(document: &D, as_json: bool, style: Style<'static>) -> Result<String> {
    let format: &dyn Format<D> = if as_json { &Json } else { &Text };
    let options = FormatOptions {
        style,
        ..FormatOptions::default()
    };
    let mut out = Vec::new();
    write(format, document, &options, &mut out)?;
    String::from_utf8(out).map_err(std::io::Error::other)
}
