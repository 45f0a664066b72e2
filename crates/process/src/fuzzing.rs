//! Parsers of texts that normally come only from /proc, for the fuzzer (`fuzz/README.md`).

use crate::preflight::Status;
use crate::threads::{in_stat, in_status};

/// Parses a text with the parser of each of the files in turn.
pub fn proc_text(text: &str) {
    let maps = crate::parse_maps(text);
    assert!(maps.len() <= text.lines().count());
    Status::from_text(text.to_owned()).field("Seccomp:");
    for name in ["Seccomp:", "Seccomp_filters:", "NSpid:"] {
        in_status(text, name);
    }
    for number in [0, 3, 22, usize::MAX] {
        in_stat(text, number);
    }
}
