//! Limits of a demangled name.

use std::fmt;

/// No name is longer, mangled or not; longer ones are shown mangled, and cut. The longest of honest programs have a
/// few thousand bytes.
pub const MOST_NAME_BYTES: usize = 16 << 10;

/// Takes so much, and fails then, which ends the demangling. Parts that write nothing end it too when they are too
/// many: each visit of a demangler costs time.
#[derive(Default)]
pub(crate) struct Bounded {
    pub text: String,
    visits: usize,
    is_full: bool,
}

/// As many parts as a name of full length may have.
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
