//! Text for people.

use super::{Document, Format, FormatOptions};
use std::io::{Result, Write};

/// A document as text.
pub struct Text;

impl<D: Document> Format<D> for Text {
    fn name(&self) -> &'static str {
        "text"
    }

    fn write(&self, document: &D, options: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        out.write_all(document.text(options.style).as_bytes())
    }
}
