//! Style of text.

/// Colours, detail and room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style<'a> {
    /// Use ANSI colours.
    pub color: bool,
    /// Leave nothing out.
    pub verbose: bool,
    /// Columns of the terminal; `None`: a line may be of any length.
    pub width: Option<usize>,
    /// Directory that source paths are shown relative to; empty: none is known.
    pub root: &'a str,
}

impl Style<'_> {
    fn paint(self, code: &str, text: &str) -> String {
        if self.color && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Text that stands out.
    pub fn strong(self, text: &str) -> String {
        self.paint("1", text)
    }

    pub(crate) fn faint(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub(crate) fn warning(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    pub(crate) fn number(self, text: &str) -> String {
        self.paint("1;33", text)
    }

    pub(crate) fn name(self, text: &str) -> String {
        self.paint("36", text)
    }
}
