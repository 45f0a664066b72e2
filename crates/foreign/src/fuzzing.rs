//! Functions that the fuzzer calls (`fuzz/README.md`).

use crate::http_server::parsed_request;

/// Result of a request, or of the beginning of one.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// There has to come more.
    Incomplete,
    /// It is answered with this status.
    Refused(&'static str),
    /// This path is asked for, of us or of somebody else.
    For(String, bool),
}

/// Reads a request as the server does whose only name is `name`.
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
