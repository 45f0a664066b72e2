//! Text for people.

use super::{Document, Format, FormatOptions};
use crate::wrap::wrapped;
use std::io::{Result, Write};

/// A document as text.
pub struct Text;

impl<D: Document> Format<D> for Text {
    fn name(&self) -> &'static str {
        "text"
    }

    fn write(&self, document: &D, options: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        let text = document.text(options.style);
        match options.style.width {
            Some(width) => out.write_all(wrapped(&text, width).as_bytes()),
            None => out.write_all(text.as_bytes()),
        }
    }
}
