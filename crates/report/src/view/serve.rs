//! Serves one page to browsers of this machine.
//!
//! The page shows the contents of a process's memory, and other users of the machine can connect
//! too, so its URL contains a random token.

use memhook_foreign::{Answer, HttpServer};
use std::{
    fs::File,
    io::{Read, Result},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

/// Maximum number of simultaneous connections.
const MOST_READERS: usize = 64;
/// Time limit for a browser to receive the page, long enough for a slow connection.
const PATIENCE: Duration = Duration::from_secs(600);

/// Parses a port of this machine, or an address and a port.
///
/// # Errors
/// The error describes the expected form.
pub fn address(text: &str) -> std::result::Result<SocketAddr, String> {
    let port = text.parse().map(|port: u16| (Ipv4Addr::LOCALHOST, port));
    port.map(SocketAddr::from)
        .or_else(|_| text.parse())
        .map_err(|_| "expected a port, or an address and a port like 127.0.0.1:8080".into())
}

/// A server of one page, bound to its address.
pub struct Server {
    listener: TcpListener,
    /// Part of the path that every request must have.
    token: String,
    /// Name of this host.
    own_name: String,
}

impl Server {
    /// Binds to the address. `own_name` is the name of this host, which browsers may use in
    /// requests.
    ///
    /// # Errors
    /// Fails if the address is in use, or if there are no random numbers.
    pub fn bind(address: SocketAddr, own_name: &str) -> Result<Server> {
        let mut random = [0; 16];
        // Reading never blocks once the machine has started (random(4)).
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        Ok(Server {
            listener: TcpListener::bind(address)?,
            token: random.iter().map(|byte| format!("{byte:02x}")).collect(),
            own_name: own_name.to_owned(),
        })
    }

    /// Returns true if other machines can reach the server.
    ///
    /// # Errors
    /// Errors of getsockname(2).
    pub fn is_public(&self) -> Result<bool> {
        Ok(!self.listener.local_addr()?.ip().is_loopback())
    }

    /// Returns the URL of the page.
    ///
    /// # Errors
    /// Errors of getsockname(2).
    pub fn url(&self) -> Result<String> {
        Ok(format!(
            "http://{}/{}/",
            self.listener.local_addr()?,
            self.token
        ))
    }

    /// Answers in separate threads until the process ends.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(self, page: Vec<u8>) -> Result<()> {
        let page: Arc<[u8]> = page.into();
        let server = HttpServer {
            names: vec![self.own_name],
            most_clients: MOST_READERS,
            // A browser connects from one address, and the page is for a single browser.
            most_of_one: MOST_READERS,
            answer_within: PATIENCE,
            answer_at_once: Box::new(|_| None),
            answer: Box::new(move |request| answer(&request.path, &self.token, &page)),
        };
        server.start(self.listener)
    }
}

/// Returns the page if the path has the token.
fn answer(path: &str, token: &str, page: &Arc<[u8]>) -> Answer {
    let mut names = path.trim_start_matches('/').splitn(2, '/');
    let is_known = names.next().is_some_and(|given| is_equal(given, token));
    match names.next() {
        _ if !is_known => Answer::text("403 Forbidden", ""),
        None | Some("") => Answer::ok("text/html; charset=utf-8", Arc::clone(page)),
        Some(_) => Answer::text("404 Not Found", ""),
    }
}

/// Compares tokens in constant time, so that the time does not reveal how much of a guess is right.
fn is_equal(given: &str, token: &str) -> bool {
    let differing = given
        .bytes()
        .zip(token.bytes())
        .fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == token.len() && differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_does_not_know_the_token_gets_nothing() {
        let (token, page): (&str, Arc<[u8]>) = ("0123456789abcdef", (*b"page").into());
        for (path, status) in [
            ("/0123456789abcdef/", "200 OK"),
            ("/0123456789abcdef", "200 OK"),
            ("/0123456789abcdef/other", "404 Not Found"),
            ("/", "403 Forbidden"),
            ("", "403 Forbidden"),
            ("/0123456789abcdee/", "403 Forbidden"),
            ("/0123456789abcdef0/", "403 Forbidden"),
            ("/0123456789abcde/", "403 Forbidden"),
        ] {
            assert_eq!(answer(path, token, &page).status(), status, "{path}");
        }
    }

    /// Each token is different.
    #[test]
    fn tokens_are_random() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let token = || Server::bind(any, "box").expect("a port").token;
        let (first, second) = (token(), token());
        assert_eq!((first.len(), first == second), (32, false));
    }

    #[test]
    fn addresses() {
        assert_eq!(address("8080").unwrap().to_string(), "127.0.0.1:8080");
        assert_eq!(address("[::1]:80").unwrap().to_string(), "[::1]:80");
        assert_eq!(address("0.0.0.0:1").unwrap().to_string(), "0.0.0.0:1");
        assert!(address("nowhere").is_err() && address("70000").is_err());
    }
}
