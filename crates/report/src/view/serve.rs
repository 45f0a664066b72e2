//! Serves one page to browsers of this machine.
//!
//! One request a connection, each on a thread of its own: a client that reads slowly, or only holds a connection, keeps
//! nobody else waiting. The page shows what a process's memory is used for, and other users of the machine can connect
//! too, so its address holds a random token.

use memhook_foreign::asks_for_us;
use std::{
    fs::File,
    io::{Read, Result, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

/// Pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(200);
/// Connections at the same time.
const MOST_READERS: usize = 64;
/// For a whole request; and for a reader to take anything at all.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest request that is read; no browser sends a longer one.
const LONGEST_REQUEST: usize = 64 << 10;

/// A port of this machine for itself, or an address and a port.
///
/// # Errors
/// What is expected instead.
pub fn address(text: &str) -> std::result::Result<SocketAddr, String> {
    let port = text.parse().map(|port: u16| (Ipv4Addr::LOCALHOST, port));
    port.map(SocketAddr::from)
        .or_else(|_| text.parse())
        .map_err(|_| "expected a port, or an address and a port like 127.0.0.1:8080".into())
}

/// Serves a page at an address that was taken.
pub struct Server {
    listener: TcpListener,
    /// Part of the path that every request must have.
    token: String,
    /// The name of this host.
    own_name: String,
}

impl Server {
    /// Takes the address. `own_name`: the name of this host, by which browsers may ask for it.
    ///
    /// # Errors
    /// When the address is taken, or there are no random numbers.
    pub fn bind(address: SocketAddr, own_name: &str) -> Result<Server> {
        let mut random = [0; 16];
        // Never waits once the machine has started (random(4)).
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        Ok(Server {
            listener: TcpListener::bind(address)?,
            token: random.iter().map(|byte| format!("{byte:02x}")).collect(),
            own_name: own_name.to_owned(),
        })
    }

    /// Whether others than this machine can reach it.
    ///
    /// # Errors
    /// Errors of getsockname(2).
    pub fn is_public(&self) -> Result<bool> {
        Ok(!self.listener.local_addr()?.ip().is_loopback())
    }

    /// Where the page is.
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

    /// Answers on threads of its own until the process ends.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(self, page: Vec<u8>) -> Result<()> {
        let served = Arc::new(Served {
            page,
            token: self.token,
            own_name: self.own_name,
        });
        let listener = self.listener;
        std::thread::Builder::new().spawn(move || accept(&listener, &served))?;
        Ok(())
    }
}

struct Served {
    page: Vec<u8>,
    token: String,
    own_name: String,
}

fn accept(listener: &TcpListener, served: &Arc<Served>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Perhaps no descriptor is left, until a reader is done.
            std::thread::sleep(PAUSE);
            continue;
        };
        // Each thread holds a reference. The connection is closed if there are too many, or no thread can be
        // started.
        if Arc::strong_count(served) > MOST_READERS {
            continue;
        }
        let served = Arc::clone(served);
        // A browser that went away has seen enough.
        let _ = std::thread::Builder::new().spawn(move || answer(stream, &served));
    }
}

fn answer(mut stream: TcpStream, served: &Served) -> Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let Some(request) = head_of(&mut stream)? else {
        return Ok(());
    };
    let (status, method) = served.status_of(&request);
    let page = match status {
        "200 OK" => &served.page[..],
        _ => &[],
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\n\
         X-Frame-Options: DENY\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        page.len()
    );
    stream.write_all(head.as_bytes())?;
    if method != "HEAD" {
        stream.write_all(page)?;
    }
    Ok(())
}

/// A request up to the empty line; `None` if there is none in time, or in that length.
fn head_of(stream: &mut TcpStream) -> Result<Option<String>> {
    let deadline = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > LONGEST_REQUEST {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => return Ok(None),
            read => head.extend_from_slice(&piece[..read]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}

impl Served {
    /// The status of the answer (RFC 9110), and the method of the request.
    fn status_of<'a>(&self, request: &'a str) -> (&'static str, &'a str) {
        let mut lines = request.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let method = words.next().unwrap_or_default();
        let target = words.next().unwrap_or_default();
        let mut hosts = lines
            .take_while(|line| !line.is_empty())
            .filter_map(|line| line.split_once(':'))
            .filter(|(name, _)| name.eq_ignore_ascii_case("host"))
            .map(|(_, host)| host.trim());
        // Each browser says whom it asks.
        let is_meant_for_us = match (hosts.next(), hosts.next()) {
            (Some(host), None) => asks_for_us(host, [&*self.own_name]),
            _ => false,
        };
        let path = target.split('?').next().unwrap_or_default();
        let mut names = path.trim_start_matches('/').splitn(2, '/');
        let is_known = names
            .next()
            .is_some_and(|token| is_equal(token, &self.token));
        let status = match (method, names.next()) {
            _ if !is_meant_for_us => "421 Misdirected Request",
            _ if !is_known => "403 Forbidden",
            ("GET" | "HEAD", None | Some("")) => "200 OK",
            ("GET" | "HEAD", _) => "404 Not Found",
            _ => "405 Method Not Allowed",
        };
        (status, method)
    }
}

/// In a time that does not tell how much of it is right.
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
        let served = Served {
            page: Vec::new(),
            token: "0123456789abcdef".into(),
            own_name: "box".into(),
        };
        for (line, status) in [
            ("GET /0123456789abcdef/ HTTP/1.1", "200 OK"),
            ("GET /0123456789abcdef HTTP/1.1", "200 OK"),
            ("HEAD /0123456789abcdef/?x=1 HTTP/1.1", "200 OK"),
            ("GET /0123456789abcdef/other HTTP/1.1", "404 Not Found"),
            ("POST /0123456789abcdef/ HTTP/1.1", "405 Method Not Allowed"),
            ("GET / HTTP/1.1", "403 Forbidden"),
            ("GET /0123456789abcdee/ HTTP/1.1", "403 Forbidden"),
            ("GET /0123456789abcdef0/ HTTP/1.1", "403 Forbidden"),
            ("GET /0123456789abcde/ HTTP/1.1", "403 Forbidden"),
            ("GET /?0123456789abcdef/ HTTP/1.1", "403 Forbidden"),
            ("DELETE / HTTP/1.1", "403 Forbidden"),
            ("", "403 Forbidden"),
        ] {
            let request = format!("{line}\r\nHost: localhost:1\r\n\r\n");
            assert_eq!(served.status_of(&request).0, status, "{line}");
            let elsewhere = format!("{line}\r\nHost: evil.example\r\n\r\n");
            assert_eq!(served.status_of(&elsewhere).0, "421 Misdirected Request");
        }
    }

    /// Another one each time.
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
