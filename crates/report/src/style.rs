//! Style of text.

/// Colours, amount of detail, and width of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style<'a> {
    /// True to use ANSI colours.
    pub color: bool,
    /// True to use only ASCII characters.
    pub ascii: bool,
    /// True to leave nothing out.
    pub verbose: bool,
    /// Columns of the terminal; `None` for lines of any length.
    pub width: Option<usize>,
    /// Directory relative to which source paths are shown; empty if unknown.
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

    /// Makes a text bold.
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
