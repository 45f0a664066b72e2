//! `GET /metrics`, `/healthz` and `/targets`, for those who are on the same machine unless the configuration says
//! otherwise.
//!
//! A server of its own rather than a crate for it: three fixed answers to one method, without keep-alive, uploads or
//! TLS, take fewer lines than the settings that would bound a larger server. Requests are parsed by httparse. A client
//! gets a bounded time, in all and not for each byte, and a bounded number of bytes; no more than a few are served at
//! the same time, and others are sent away.

use crate::board::Board;
use crate::said::say;
use crate::{metrics, targets_document};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Clients that are served at the same time.
const MOST_CLIENTS: usize = 8;
/// From the connection to the end of the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A request is not longer, its headers included.
const MOST_OF_A_REQUEST: usize = 8 << 10;
const MOST_HEADERS: usize = 64;
/// A supervisor that has not come by for so long hangs.
const HANGS_AFTER: Duration = Duration::from_secs(30);

/// Why nobody can be answered.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct ListenError {
    /// Where.
    address: SocketAddr,
    /// Why.
    #[source]
    source: std::io::Error,
}

/// Answers on a thread of its own, until the process ends.
pub fn serve(
    address: SocketAddr,
    per_process: bool,
    board: &Arc<Board>,
) -> Result<(), ListenError> {
    let failed = |source| ListenError { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    if let Ok(address) = listener.local_addr() {
        say(&format!("metrics are at http://{address}/metrics"));
    }
    let server = Server {
        board: Arc::clone(board),
        per_process,
        clients: Arc::new(AtomicUsize::new(0)),
    };
    let thread = std::thread::Builder::new().name("http".into());
    thread
        .spawn(move || server.accept(&listener))
        .map_err(failed)?;
    Ok(())
}

#[derive(Clone)]
struct Server {
    board: Arc<Board>,
    per_process: bool,
    clients: Arc<AtomicUsize>,
}

/// Counts a client for as long as it lives.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// An answer.
struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

const TEXT: &str = "text/plain; charset=utf-8";

impl Answer {
    fn text(status: &'static str, body: &str) -> Answer {
        Answer {
            status,
            content_type: TEXT,
            body: format!("{body}\n"),
        }
    }
}

impl Server {
    fn accept(&self, listener: &TcpListener) {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // No descriptor is free: it may be later.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            let place = Place(Arc::clone(&self.clients));
            if self.clients.fetch_add(1, Relaxed) >= MOST_CLIENTS {
                continue;
            }
            let server = self.clone();
            let thread = std::thread::Builder::new().name("http client".into());
            // Where no thread can be had, the client is sent away.
            let _ = thread.spawn(move || {
                let _place = place;
                let _ = server.answer(stream, Instant::now() + PATIENCE);
            });
        }
    }

    fn answer(&self, mut stream: TcpStream, until: Instant) -> std::io::Result<()> {
        let (answer, has_body) = match read_request(&mut stream, until)? {
            Ok((method, path)) => (self.found(&method, &path), method != "HEAD"),
            Err(status) => (Answer::text(status, status), true),
        };
        let allow = if answer.status.starts_with("405") {
            "Allow: GET, HEAD\r\n"
        } else {
            ""
        };
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            answer.status,
            answer.content_type,
            answer.body.len()
        );
        write_all(&mut stream, head.as_bytes(), until)?;
        if has_body {
            write_all(&mut stream, answer.body.as_bytes(), until)?;
        }
        Ok(())
    }

    fn found(&self, method: &str, path: &str) -> Answer {
        if !["GET", "HEAD"].contains(&method) {
            return Answer::text("405 Method Not Allowed", "only GET is possible");
        }
        let path = path.split('?').next().unwrap_or_default();
        let (content_type, body) = match path {
            "/metrics" => (
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
                metrics::text(&self.board, self.per_process).ok(),
            ),
            "/targets" => ("application/json", targets_document::json(&self.board).ok()),
            "/healthz" => {
                let silent = self.board.silent_for();
                if silent > HANGS_AFTER {
                    let why = format!("the agent has done nothing for {} s", silent.as_secs());
                    return Answer::text("503 Service Unavailable", &why);
                }
                return Answer::text("200 OK", "ok");
            }
            _ => return Answer::text("404 Not Found", "there are /metrics, /targets and /healthz"),
        };
        match body {
            Some(body) => Answer {
                status: "200 OK",
                content_type,
                body,
            },
            None => Answer::text("500 Internal Server Error", "the answer could not be made"),
        }
    }
}

/// The time that is left, as long as there is some.
fn left(until: Instant) -> std::io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(left)
}

/// Method and path, or the status to refuse the request with.
type Request = Result<(String, String), &'static str>;

fn read_request(stream: &mut TcpStream, until: Instant) -> std::io::Result<Request> {
    let mut bytes = Vec::new();
    let mut room = [0; 1024];
    loop {
        stream.set_read_timeout(Some(left(until)?))?;
        let length = stream.read(&mut room)?;
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&room[..length]);
        if let Some(request) = parsed(&bytes) {
            return Ok(request);
        }
    }
}

/// `None`: the request is not complete.
fn parsed(bytes: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {
            let word = |word: Option<&str>| word.unwrap_or_default().to_owned();
            Some(Ok((word(request.method), word(request.path))))
        }
        Ok(httparse::Status::Partial) if bytes.len() < MOST_OF_A_REQUEST => None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            Some(Err("431 Request Header Fields Too Large"))
        }
        Err(_) => Some(Err("400 Bad Request")),
    }
}

fn write_all(stream: &mut TcpStream, mut bytes: &[u8], until: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(bytes)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).expect("connected");
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn only_what_is_there_is_answered() {
        let board = Board::new();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let server = Server {
            board,
            per_process: true,
            clients: Arc::new(AtomicUsize::new(0)),
        };
        let clients = Arc::clone(&server.clients);
        std::thread::spawn(move || server.accept(&listener));
        let status = |request: &str| {
            ask(address, request.as_bytes())
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(
            status("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
            "HTTP/1.1 200 OK"
        );
        assert_eq!(
            status("GET /metrics?x=1 HTTP/1.0\r\n\r\n"),
            "HTTP/1.1 200 OK"
        );
        assert_eq!(status("GET /targets HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK");
        assert_eq!(
            status("GET /../etc/passwd HTTP/1.1\r\n\r\n"),
            "HTTP/1.1 404 Not Found"
        );
        assert_eq!(
            status("POST /metrics HTTP/1.1\r\n\r\n"),
            "HTTP/1.1 405 Method Not Allowed"
        );
        assert_eq!(status("\0\x01nonsense\r\n\r\n"), "HTTP/1.1 400 Bad Request");
        let long = format!(
            "GET /healthz HTTP/1.1\r\nX: {}\r\n\r\n",
            "x".repeat(MOST_OF_A_REQUEST)
        );
        assert_eq!(
            status(&long),
            "HTTP/1.1 431 Request Header Fields Too Large"
        );
        let head = ask(address, b"HEAD /healthz HTTP/1.1\r\n\r\n");
        assert!(
            head.ends_with("\r\n\r\n") && head.contains("Content-Length: 3\r\n"),
            "{head}"
        );
        // Those that say nothing take all places, and whoever comes then is sent away; later there is room again. The
        // last client may have its answer before its place is free.
        let taken = |places: usize| {
            let until = Instant::now() + 2 * PATIENCE;
            while clients.load(Relaxed) != places {
                assert!(Instant::now() < until, "{places} places are not taken");
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        taken(0);
        let silent: Vec<TcpStream> = (0..MOST_CLIENTS)
            .map(|_| TcpStream::connect(address).expect("connected"))
            .collect();
        taken(MOST_CLIENTS);
        assert_eq!(status("GET /healthz HTTP/1.1\r\n\r\n"), "");
        drop(silent);
        taken(0);
        assert_eq!(status("GET /healthz HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK");
    }
}
