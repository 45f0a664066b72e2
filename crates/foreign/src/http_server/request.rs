//! Examined part of a request, which httparse parses.

use super::Parsed;
use crate::asks_for_us;

/// Longest request that is read, including headers. Browsers send shorter requests.
pub(super) const MOST_BYTES: usize = 64 << 10;
const MOST_HEADERS: usize = 64;

/// A request.
pub struct Request {
    pub(super) method: String,
    /// Path without a query.
    pub path: String,
    /// Host names that the client asks for. A client that sends none is not a browser.
    hosts: Vec<String>,
}

impl Request {
    /// Returns true if the client asks for a server with these names.
    pub(crate) fn is_for(&self, names: &[String]) -> bool {
        let is_own = |host: &String| asks_for_us(host, names.iter().map(String::as_str));
        self.hosts.len() <= 1 && self.hosts.iter().all(is_own)
    }
}

/// Parses a request; `None` if it is incomplete.
pub(crate) fn parsed(bytes: &[u8]) -> Option<Parsed> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {
            let word = |word: Option<&str>| word.unwrap_or_default().to_owned();
            let headers = request.headers.iter();
            let hosts = headers.filter(|header| header.name.eq_ignore_ascii_case("host"));
            let hosts = hosts.map(|host| String::from_utf8_lossy(host.value).trim().to_owned());
            Some(Ok(Request {
                method: word(request.method),
                path: word(
                    request
                        .path
                        .map(|target| target.split('?').next().unwrap_or_default()),
                ),
                hosts: hosts.collect(),
            }))
        }
        Ok(httparse::Status::Partial) if bytes.len() < MOST_BYTES => None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            Some(Err("431 Request Header Fields Too Large"))
        }
        Err(_) => Some(Err("400 Bad Request")),
    }
}
