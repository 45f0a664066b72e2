//! A server of fixed answers to GET, for the agent's numbers and the page of a recording.
//!
//! One request a connection, without keep-alive, uploads or TLS. Requests are parsed by httparse. A client gets a
//! bounded time, in all and not for each byte, and a bounded number of bytes. Only a few are served at the same time: a
//! new one takes the place of the one that has asked nothing for the longest time, so that whoever only holds
//! connections keeps nobody else out. A browser that was led here by a name of somebody else gets no answer.

use crate::asks_for_us;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// From the connection to the end of the request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest request that is read, headers included; no browser sends a longer one.
const MOST_OF_A_REQUEST: usize = 64 << 10;
const MOST_HEADERS: usize = 64;

/// What is asked for.
pub struct Request {
    method: String,
    /// Without a query.
    pub path: String,
    /// Whom the client believes to ask. A client that does not say it is no browser.
    hosts: Vec<String>,
}

/// An answer.
pub struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: Arc<[u8]>,
}

impl Answer {
    /// What was asked for.
    pub fn ok(content_type: &'static str, body: impl Into<Arc<[u8]>>) -> Answer {
        Answer {
            status: "200 OK",
            content_type,
            body: body.into(),
        }
    }

    /// A status (RFC 9110), with a line of text or with nothing.
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

    /// The status, beginning with its number.
    pub fn status(&self) -> &'static str {
        self.status
    }
}

/// What answers, and to whom.
pub struct HttpServer {
    /// Names by which this machine may be asked, beside its addresses and `localhost`.
    pub names: Vec<String>,
    /// Clients that are served at the same time.
    pub most_clients: usize,
    /// For the end of an answer, from the end of its request.
    pub answer_within: Duration,
    /// Answers a request that is meant for us.
    pub answer: Box<dyn Fn(&Request) -> Answer + Send + Sync>,
}

impl HttpServer {
    /// Answers on threads of its own, until the process ends.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(self, listener: TcpListener) -> Result<()> {
        let clients = Arc::default();
        let thread = std::thread::Builder::new().name("http".into());
        thread.spawn(move || Arc::new(self).accept(&listener, &clients))?;
        Ok(())
    }

    fn accept(self: Arc<Self>, listener: &TcpListener, clients: &Arc<Clients>) {
        for (number, stream) in (0..).zip(listener.incoming()) {
            let Ok(stream) = stream else {
                // No descriptor is free: it may be later.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            let Ok(place) = clients.enter(number, self.most_clients, &stream) else {
                continue;
            };
            let server = Arc::clone(&self);
            let thread = std::thread::Builder::new().name("http client".into());
            // Where no thread can be started, the client is sent away.
            let _ = thread.spawn(move || {
                let _ = server.respond(stream, &place);
            });
        }
    }

    fn respond(&self, mut stream: TcpStream, place: &Place) -> Result<()> {
        let request = read_request(&mut stream, Instant::now() + PATIENCE)?;
        place.has_asked();
        let until = Instant::now() + self.answer_within;
        let (answer, has_body) = match request {
            Ok(request) => (self.found(&request), request.method != "HEAD"),
            Err(status) => (Answer::text(status, status), true),
        };
        let allow = if answer.status.starts_with("405") {
            "Allow: GET, HEAD\r\n"
        } else {
            ""
        };
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}X-Frame-Options: DENY\r\n\
             X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n\
             Connection: close\r\n\r\n",
            answer.status,
            answer.content_type,
            answer.body.len()
        );
        write_all(&mut stream, head.as_bytes(), until)?;
        if has_body {
            write_all(&mut stream, &answer.body, until)?;
        }
        Ok(())
    }

    fn found(&self, request: &Request) -> Answer {
        let is_for_us = |host: &String| asks_for_us(host, self.names.iter().map(String::as_str));
        if request.hosts.len() > 1 || !request.hosts.iter().all(is_for_us) {
            let why = "this is not the server of that name: ask by an address";
            return Answer::text("421 Misdirected Request", why);
        }
        let answer = (self.answer)(request);
        match request.method.as_str() {
            "GET" | "HEAD" => answer,
            _ if answer.status != "200 OK" => answer,
            _ => Answer::text("405 Method Not Allowed", "only GET is possible"),
        }
    }
}

/// Those that are served, the oldest first.
#[derive(Default)]
struct Clients(Mutex<Vec<Client>>);

struct Client {
    number: u64,
    /// To end it from outside.
    stream: TcpStream,
    /// Its request is complete.
    has_asked: bool,
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, Vec<Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one in, in the place of another if all are taken: of one that has asked nothing, or else of the one that
    /// takes its answer for the longest time.
    fn enter(self: &Arc<Clients>, number: u64, most: usize, stream: &TcpStream) -> Result<Place> {
        let stream = stream.try_clone()?;
        let mut clients = self.lock();
        if clients.len() >= most {
            let silent = clients.iter().position(|client| !client.has_asked);
            let sent_away = clients.remove(silent.unwrap_or(0));
            let _ = sent_away.stream.shutdown(Shutdown::Both);
        }
        clients.push(Client {
            number,
            stream,
            has_asked: false,
        });
        let clients = Arc::clone(self);
        Ok(Place { clients, number })
    }
}

/// The place of a client, for as long as it lives.
struct Place {
    clients: Arc<Clients>,
    number: u64,
}

impl Place {
    fn has_asked(&self) {
        let mut clients = self.clients.lock();
        let own = clients
            .iter_mut()
            .find(|client| client.number == self.number);
        if let Some(own) = own {
            own.has_asked = true;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut clients = self.clients.lock();
        clients.retain(|client| client.number != self.number);
    }
}

/// The time that is left, as long as there is some.
fn left(until: Instant) -> Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(left)
}

/// A request, or the status to refuse it with.
type Parsed = std::result::Result<Request, &'static str>;

fn read_request(stream: &mut TcpStream, until: Instant) -> Result<Parsed> {
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
fn parsed(bytes: &[u8]) -> Option<Parsed> {
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
        Ok(httparse::Status::Partial) if bytes.len() < MOST_OF_A_REQUEST => None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            Some(Err("431 Request Header Fields Too Large"))
        }
        Err(_) => Some(Err("400 Bad Request")),
    }
}

fn write_all(stream: &mut TcpStream, mut bytes: &[u8], until: Instant) -> Result<()> {
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
    use std::net::SocketAddr;

    const MOST_CLIENTS: usize = 8;

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).expect("connected");
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn only_what_is_there_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let server = HttpServer {
            names: vec!["agent.example".into()],
            most_clients: MOST_CLIENTS,
            answer_within: PATIENCE,
            answer: Box::new(|request| match request.path.as_str() {
                "/healthz" => Answer::ok("text/plain", *b"ok\n"),
                _ => Answer::text("404 Not Found", "there is /healthz"),
            }),
        };
        let clients: Arc<Clients> = Arc::default();
        let own = Arc::clone(&clients);
        std::thread::spawn(move || Arc::new(server).accept(&listener, &own));
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
        // Those that say nothing, however many they are, keep nobody out; each has its place until another needs it.
        let silent: Vec<TcpStream> = (0..3 * MOST_CLIENTS)
            .map(|_| TcpStream::connect(address).expect("connected"))
            .collect();
        for _ in 0..3 * MOST_CLIENTS {
            assert_eq!(status("GET /healthz HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK");
            assert!(clients.lock().len() <= MOST_CLIENTS);
        }
        drop(silent);
    }

    /// Who has asked stays before those that have not.
    #[test]
    fn the_silent_ones_go_first() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let connect = || {
            let client = TcpStream::connect(address).expect("connected");
            (client, listener.accept().expect("a client").0)
        };
        let clients: Arc<Clients> = Arc::default();
        let all: Vec<_> = (0..MOST_CLIENTS + 4).map(|_| connect()).collect();
        let mut places = Vec::new();
        for (number, (_, stream)) in (0..).zip(&all) {
            let place = clients
                .enter(number, MOST_CLIENTS, stream)
                .expect("a place");
            if number < 2 {
                place.has_asked();
            }
            places.push(place);
        }
        let numbers =
            || -> Vec<u64> { clients.lock().iter().map(|client| client.number).collect() };
        assert_eq!(numbers(), [0, 1, 6, 7, 8, 9, 10, 11]);
        let mut byte = [0];
        let (gone, _) = &mut { all.into_iter().nth(2).expect("there") };
        assert_eq!(gone.read(&mut byte).expect("closed"), 0);
        places.drain(..6);
        assert_eq!(numbers(), [6, 7, 8, 9, 10, 11]);
    }
}
