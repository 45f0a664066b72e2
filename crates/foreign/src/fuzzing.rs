//! Functions that the fuzzer calls (`fuzz/README.md`).

use crate::http_server::parsed_request;

/// Result of a request, or of the beginning of one.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// The request is incomplete.
    Incomplete,
    /// The request is refused with this status.
    Refused(&'static str),
    /// Path of the request, and true if it is meant for us.
    For(String, bool),
}

/// Reads a request as a server whose only name is `name` would.
pub fn asked(bytes: &[u8], name: &str) -> Asked {
    match parsed_request(bytes) {
        None => Asked::Incomplete,
        Some(Err(status)) => Asked::Refused(status),
        Some(Ok(request)) => {
            let is_for_us = request.is_for(&[name.to_owned()]);
            Asked::For(request.path, is_for_us)
        }
    }
}
