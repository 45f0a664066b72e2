//! Limits of a demangled name.

use std::fmt;

/// Longest name, mangled or not; longer ones are shown mangled, and cut. The longest of honest programs have a few
/// thousand bytes.
pub const MOST_NAME_BYTES: usize = 16 << 10;

/// A writer that fails beyond its limit, which ends the demangling. Too many parts that write nothing end it, too:
/// each visit of a demangler costs time.
#[derive(Default)]
pub(crate) struct Bounded {
    pub text: String,
    visits: usize,
    is_full: bool,
}

/// Most parts that a name of full length may have.
pub(crate) const MOST_VISITS: usize = MOST_NAME_BYTES * 64;

impl Bounded {
    pub fn visit(&mut self) -> bool {
        self.visits += 1;
        self.is_full |= self.visits > MOST_VISITS;
        !self.is_full
    }

    pub fn finished(self) -> Option<String> {
        (!self.is_full).then_some(self.text)
    }
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.is_full |= self.text.len() + text.len() > MOST_NAME_BYTES;
        if !self.visit() {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}
