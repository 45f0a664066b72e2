//! Limits of a demangled name.

use std::fmt;

/// Maximum length of names, mangled or demangled. Longer names are shown mangled and truncated. The longest names in
/// legitimate programs have a few thousand bytes.
pub const MOST_NAME_BYTES: usize = 16 << 10;

/// Writer that fails beyond its limit, which ends the demangling. Too many visits to parts that produce no output also
/// end the demangling, because each visit takes time.
#[derive(Default)]
pub(crate) struct Bounded {
    pub text: String,
    visits: usize,
    is_full: bool,
}

/// Maximum number of visits to parts for a name of maximum length.
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
