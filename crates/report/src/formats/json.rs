//! JSON: one object on one line.

use super::{Document, Format, FormatOptions, Nature};
use std::io::{Result, Write};

/// A document as JSON.
pub struct Json;

impl<D: Document> Format<D> for Json {
    fn name(&self) -> &'static str {
        "json"
    }

    fn nature(&self) -> Nature {
        Nature::Json
    }

    fn write(&self, document: &D, _: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        serde_json::to_writer(&mut *out, document)?;
        writeln!(out)
    }
}
