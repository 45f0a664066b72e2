//! An HTTP server that answers only GET requests, for the agent's metrics and the page of a recording.
//!
//! It handles one request per connection, without keep-alive, uploads or TLS. One thread waits for all requests and
//! reads them as they arrive, so that a slow client costs only a descriptor. It also sends the responses that need no
//! work. A few other threads produce and write the remaining responses. Each client has limits on total time and on
//! bytes, and each address has a limit on connections. If there are too many connections, the address with the most
//! connections loses its oldest one, so that a client that only keeps connections open does not lock out others. A
//! browser that uses a foreign host name gets no response.

mod places;
mod request;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use places::{Place, Places, Silent};
pub use request::Request;
pub(crate) use request::parsed as parsed_request;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit from the connection to the end of the request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of connections with an incomplete request, in total and for one address.
const MOST_SILENT: usize = 64;
const MOST_SILENT_OF_ONE: usize = 16;
/// Pause after a connection could not be accepted because no descriptor was free.
const PAUSE: Duration = Duration::from_millis(100);

/// An HTTP response.
pub struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: Arc<[u8]>,
}

impl Answer {
    /// Creates the response to a successful request.
    pub fn ok(content_type: &'static str, body: impl Into<Arc<[u8]>>) -> Answer {
        Answer {
            status: "200 OK",
            content_type,
            body: body.into(),
        }
    }

    /// Creates a response with a status (RFC 9110), and with a line of text or nothing.
    pub fn text(status: &'static str, line: &str) -> Answer {
        let body = if line.is_empty() {
            String::new()
        } else {
            format!("{line}\n")
        };
        Answer {
            status,
            content_type: "text/plain; charset=utf-8",
            body: body.into_bytes().into(),
        }
    }

    /// Returns the status, beginning with its number.
    pub fn status(&self) -> &'static str {
        self.status
    }

    /// Returns the bytes to send.
    fn bytes(&self, without_body: bool) -> Vec<u8> {
        let allow = if self.status.starts_with("405") {
            "Allow: GET, HEAD\r\n"
        } else {
            ""
        };
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}X-Frame-Options: DENY\r\n\
             X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n\
             Connection: close\r\n\r\n",
            self.status,
            self.content_type,
            self.body.len()
        );
        let body: &[u8] = if without_body { &[] } else { &self.body };
        [head.as_bytes(), body].concat()
    }
}

/// Function of a request.
type Respond<T> = Box<dyn Fn(&Request) -> T + Send + Sync>;

/// Server, with its handler and its names.
pub struct HttpServer {
    /// Host names by which clients may address this machine, in addition to its addresses and `localhost`.
    pub names: Vec<String>,
    /// Maximum number of responses that are produced or written at the same time.
    pub most_clients: usize,
    /// The same limit for one address.
    pub most_of_one: usize,
    /// Time limit from the end of a request to the end of its response.
    pub answer_within: Duration,
    /// Answers a request if that is possible immediately. The thread that waits for requests calls this, so it must not
    /// block.
    pub answer_at_once: Respond<Option<Answer>>,
    /// Answers any other request to us.
    pub answer: Respond<Answer>,
}

impl HttpServer {
    /// Answers on separate threads, until the process ends.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(self, listener: TcpListener) -> Result<()> {
        listener.set_nonblocking(true)?;
        let thread = std::thread::Builder::new().name("http".into());
        thread.spawn(move || Arc::new(self).serve(&listener))?;
        Ok(())
    }

    fn serve(self: Arc<Self>, listener: &TcpListener) {
        let answered = Arc::default();
        let mut silent: Vec<Silent> = Vec::new();
        let mut no_room_until: Option<Instant> = None;
        loop {
            let now = Instant::now();
            no_room_until = no_room_until.filter(|until| *until > now);
            let ready = await_any(listener, &silent, no_room_until);
            // The loop runs backwards, because served clients are removed from the list.
            for at in (0..silent.len()).rev().filter(|at| ready.clients[*at]) {
                match silent[at].client.read() {
                    Ok(None) => {}
                    Ok(Some(request)) => self.take(silent.remove(at).client, request, &answered),
                    Err(_) => drop(silent.remove(at)),
                }
            }
            // This check uses the time from before the wait, and is made after reading. So a client that sent its
            // request in time is answered even if this thread was stopped in between.
            silent.retain(|client| client.until > now);
            // Only a few connections are accepted in a row, so that existing clients are served too.
            for _ in 0..if ready.has_new { MOST_SILENT } else { 0 } {
                match listener.accept() {
                    Ok((stream, address)) => {
                        self.enter(stream, address.ip(), &mut silent, &answered)
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                    Err(_) => {
                        // This makes room for a client that sends a request.
                        silent.drain(..silent.len().min(1));
                        no_room_until = Some(Instant::now() + PAUSE);
                        break;
                    }
                }
            }
        }
    }

    /// Accepts a connection. A client that has already sent its request does not count as silent.
    fn enter(
        self: &Arc<Self>,
        stream: TcpStream,
        address: IpAddr,
        silent: &mut Vec<Silent>,
        answered: &Arc<Places>,
    ) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let mut client = Client {
            stream,
            address,
            bytes: Vec::new(),
        };
        match client.read() {
            Ok(None) => Silent::enter(silent, client, Instant::now() + PATIENCE),
            Ok(Some(request)) => self.take(client, request, answered),
            Err(_) => {}
        }
    }

    /// Answers a request: immediately, or on a separate thread.
    fn take(self: &Arc<Self>, client: Client, request: Parsed, answered: &Arc<Places>) {
        let at_once = match &request {
            Err(status) => Some(Answer::text(status, status)),
            Ok(request) if !request.is_for(&self.names) => Some(misdirected()),
            Ok(request) => (self.answer_at_once)(request).map(|answer| refined(request, answer)),
        };
        let is_head = matches!(&request, Ok(request) if request.method == "HEAD");
        if let Some(answer) = at_once {
            return client.answer(&answer, is_head);
        }
        let Ok(request) = request else {
            return;
        };
        let Ok(place) = answered.enter(&client, self) else {
            let busy = Answer::text("503 Service Unavailable", "too many answers are not ready");
            return client.answer(&busy, is_head);
        };
        let (server, stream) = (Arc::clone(self), client.stream);
        let thread = std::thread::Builder::new().name("http client".into());
        // If no thread can be started, the client is turned away.
        let _ = thread.spawn(move || {
            let _place: Place = place;
            let until = Instant::now() + server.answer_within;
            let answer = refined(&request, (server.answer)(&request));
            let _ = write_all(&stream, &answer.bytes(is_head), until);
        });
    }
}

fn misdirected() -> Answer {
    let why = "unknown host name: use an IP address";
    Answer::text("421 Misdirected Request", why)
}

/// Returns the response, or an error response if the resource exists but does not allow the method.
fn refined(request: &Request, answer: Answer) -> Answer {
    match request.method.as_str() {
        "GET" | "HEAD" => answer,
        _ if answer.status != "200 OK" => answer,
        _ => Answer::text("405 Method Not Allowed", "only GET is supported"),
    }
}

/// Connections that are readable now.
struct Ready {
    has_new: bool,
    clients: Vec<bool>,
}

/// Waits for a connection, for a part of a request, or until a client's time limit expires.
fn await_any(listener: &TcpListener, silent: &[Silent], no_room_until: Option<Instant>) -> Ready {
    let wanted = |is_wanted: bool| {
        if is_wanted {
            PollFlags::POLLIN
        } else {
            PollFlags::empty()
        }
    };
    let mut sources = vec![PollFd::new(
        listener.as_fd(),
        wanted(no_room_until.is_none()),
    )];
    let clients = silent.iter().map(|one| one.client.stream.as_fd());
    sources.extend(clients.map(|client| PollFd::new(client, PollFlags::POLLIN)));
    let soonest = silent
        .iter()
        .map(|one| one.until)
        .chain(no_room_until)
        .min();
    let timeout = soonest.map_or(PollTimeout::NONE, |until| {
        let left = until.saturating_duration_since(Instant::now());
        // The timeout must not be rounded down, or the loop would poll repeatedly within the last millisecond.
        PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    });
    // An interruption counts as the end of the time.
    let any = poll(&mut sources, timeout).is_ok_and(|ready| ready > 0);
    let mut ready = sources
        .iter()
        .map(|source| any && source.any() == Some(true));
    Ready {
        has_new: ready.next().unwrap_or(false),
        clients: ready.collect(),
    }
}

/// A connection.
struct Client {
    stream: TcpStream,
    address: IpAddr,
    /// Beginning of its request.
    bytes: Vec<u8>,
}

impl Client {
    /// Sends as much of a response as fits into the kernel's buffer. Nothing may have been written to the connection
    /// yet.
    fn answer(&self, answer: &Answer, without_body: bool) {
        let _ = (&self.stream).write_all(&answer.bytes(without_body));
    }

    /// Reads the available bytes. `None` if the request is incomplete.
    fn read(&mut self) -> Result<Option<Parsed>> {
        let mut room = [0; 1024];
        loop {
            match self.stream.read(&mut room) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.bytes.extend_from_slice(&room[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            if let Some(request) = request::parsed(&self.bytes) {
                return Ok(Some(request));
            }
        }
    }
}

/// Request, or the status of its refusal.
type Parsed = std::result::Result<Request, &'static str>;

fn write_all(mut stream: &TcpStream, mut bytes: &[u8], until: Instant) -> Result<()> {
    stream.set_nonblocking(false)?;
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
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
    use std::net::SocketAddr;

    const MOST_CLIENTS: usize = 8;

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        loop {
            let begin = Instant::now();
            let mut stream = TcpStream::connect(address).expect("connected");
            let _ = stream.write_all(request);
            let is_in_time = begin.elapsed() < PATIENCE;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            // A client that paused before its request is turned away.
            if is_in_time || !answer.is_empty() {
                return String::from_utf8_lossy(&answer).into_owned();
            }
        }
    }

    #[test]
    fn only_what_is_there_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let server = HttpServer {
            names: vec!["agent.example".into()],
            most_clients: MOST_CLIENTS,
            most_of_one: MOST_CLIENTS / 2,
            // The thread that writes a response may be stopped before it writes.
            answer_within: Duration::from_secs(600),
            answer_at_once: Box::new(|request| {
                let is_prompt = request.path == "/at-once";
                is_prompt.then(|| Answer::ok("text/plain", *b"ok\n"))
            }),
            answer: Box::new(|request| match request.path.as_str() {
                "/healthz" => Answer::ok("text/plain", *b"ok\n"),
                "/endless" => loop {
                    std::thread::park();
                },
                "/large" => Answer::ok("text/plain", vec![b'x'; 64 << 20]),
                _ => Answer::text("404 Not Found", "there is /healthz"),
            }),
        };
        server.start(listener).expect("it serves");
        let status = |request: &str| {
            ask(address, request.as_bytes())
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(
            status("GET /healthz HTTP/1.1\r\nHost: 10.1.2.3:9464\r\n\r\n"),
            "HTTP/1.1 200 OK"
        );
        assert_eq!(
            status("GET /healthz?x=1 HTTP/1.0\r\n\r\n"),
            "HTTP/1.1 200 OK"
        );
        assert_eq!(
            status("GET /../etc/passwd HTTP/1.1\r\n\r\n"),
            "HTTP/1.1 404 Not Found"
        );
        assert_eq!(
            status("POST /healthz HTTP/1.1\r\n\r\n"),
            "HTTP/1.1 405 Method Not Allowed"
        );
        assert_eq!(status("\0\x01nonsense\r\n\r\n"), "HTTP/1.1 400 Bad Request");
        let long = format!(
            "GET /healthz HTTP/1.1\r\nX: {}\r\n\r\n",
            "x".repeat(request::MOST_BYTES)
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
        for (hosts, is_answered) in [
            ("Host: localhost:9464\r\n", true),
            ("Host: agent.example\r\n", true),
            ("Host: [::1]:1\r\n", true),
            ("host: evil.example\r\n", false),
            ("Host: localhost\r\nHost: evil.example\r\n", false),
            ("Host: \r\n", false),
        ] {
            let status = status(&format!("GET /healthz HTTP/1.1\r\n{hosts}\r\n"));
            let expected = match is_answered {
                true => "HTTP/1.1 200 OK",
                false => "HTTP/1.1 421 Misdirected Request",
            };
            assert_eq!(status, expected, "{hosts}");
        }
        // Silent clients do not lock out other clients, regardless of their number.
        let connect = |_| TcpStream::connect(address).expect("connected");
        let _silent: Vec<TcpStream> = (0..3 * MOST_SILENT).map(connect).collect();
        for path in ["/healthz", "/at-once"] {
            let request = format!("GET {path} HTTP/1.1\r\n\r\n");
            for _ in 0..2 * MOST_CLIENTS {
                assert_eq!(status(&request), "HTTP/1.1 200 OK");
            }
        }
        // Clients whose response takes forever, and clients that do not read their response, do not lock out others
        // either.
        for path in ["/large", "/endless"] {
            let ask = |number| {
                let mut client = connect(number);
                write!(client, "GET {path} HTTP/1.1\r\n\r\n").expect("sent");
                client
            };
            let mut deaf: Vec<TcpStream> = (0..3 * MOST_CLIENTS).map(ask).collect();
            for _ in 0..2 * MOST_CLIENTS {
                let prompt = status("GET /at-once HTTP/1.1\r\n\r\n");
                assert_eq!(prompt, "HTTP/1.1 200 OK", "{path}");
            }
            // A resource that hangs does not occupy one thread per client.
            let other = || status("GET /healthz HTTP/1.1\r\n\r\n");
            let until = Instant::now() + Duration::from_secs(60);
            let expected = match path {
                "/endless" => "HTTP/1.1 503 Service Unavailable",
                _ => "HTTP/1.1 200 OK",
            };
            while other() != expected {
                assert!(Instant::now() < until, "{path}");
                // If several connections arrived at the same moment, some may have been closed in favor of others
                // before they were read.
                deaf.extend((path == "/endless").then(|| ask(0)));
            }
            drop(deaf);
        }
    }
}
