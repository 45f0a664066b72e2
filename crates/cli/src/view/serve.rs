//! Serves one page to browsers of this machine.
//!
//! One request a connection, each on a thread of its own: who reads slowly, or only holds a connection, keeps nobody else
//! waiting.

use crate::signals;
use anyhow::anyhow;
use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often it is looked whether Ctrl-C has come.
const TURN: Duration = Duration::from_millis(200);
/// Connections at the same time.
const MOST_READERS: usize = 64;
/// For a whole request; and for a reader to take anything at all.
const PATIENCE: Duration = Duration::from_secs(10);
/// No browser asks at greater length.
const LONGEST_REQUEST: usize = 64 << 10;

/// A port of this machine for itself, or an address and a port.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse().map(|port: u16| (Ipv4Addr::LOCALHOST, port));
    port.map(SocketAddr::from)
        .or_else(|_| text.parse())
        .map_err(|_| "expected a port, or an address and a port like 127.0.0.1:8080".into())
}

/// Takes the address.
pub fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| anyhow!("cannot serve at {address}: {error}"))
}

/// Answers until Ctrl-C.
pub fn run(listener: TcpListener, page: Vec<u8>) -> anyhow::Result<ExitCode> {
    signals::catch_stops();
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        eprintln!("memhook-rs: everybody who reaches this address can read the page");
    }
    println!("http://{address}/");
    let own_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let served = Arc::new(Served {
        page,
        own_name: own_name.trim().to_owned(),
    });
    // It ends with the process.
    std::thread::Builder::new().spawn(move || accept(&listener, &served))?;
    while !signals::stop_requested() {
        std::thread::sleep(TURN);
    }
    Ok(ExitCode::SUCCESS)
}

struct Served {
    page: Vec<u8>,
    own_name: String,
}

fn accept(listener: &TcpListener, served: &Arc<Served>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // No descriptor is left, perhaps: until a reader is done.
            std::thread::sleep(TURN);
            continue;
        };
        // Each thread holds a reference. The connection ends where there are too many, or no thread is to be had.
        if Arc::strong_count(served) > MOST_READERS {
            continue;
        }
        let served = Arc::clone(served);
        // A browser that went away has seen enough.
        let _ = std::thread::Builder::new().spawn(move || answer(stream, &served));
    }
}

fn answer(mut stream: TcpStream, served: &Served) -> std::io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let Some(request) = head_of(&mut stream)? else {
        return Ok(());
    };
    let (status, method) = status_of(&request, &served.own_name);
    let page = match status {
        "200 OK" => &served.page[..],
        _ => &[],
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\n\
         X-Frame-Options: DENY\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n\
         Connection: close\r\n\r\n",
        page.len()
    );
    stream.write_all(head.as_bytes())?;
    if method != "HEAD" {
        stream.write_all(page)?;
    }
    Ok(())
}

/// A request up to the empty line; `None` if there is none in time, or in that length.
fn head_of(stream: &mut TcpStream) -> std::io::Result<Option<String>> {
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

/// The status of the answer (RFC 9110), and the method of the request.
fn status_of<'a>(request: &'a str, own_name: &str) -> (&'static str, &'a str) {
    let mut lines = request.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let hosts = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| name.eq_ignore_ascii_case("host"));
    let mut hosts = hosts.map(|(_, host)| host.trim());
    // A page from elsewhere can have a name of its own that leads here, and would be allowed to read what it asks for by
    // that name (DNS rebinding); by an address nobody else's page is. Each browser says whom it asks.
    let is_meant_for_us = match (hosts.next(), hosts.next()) {
        (Some(host), None) => is_own(host, own_name),
        _ => false,
    };
    let path = target.split('?').next().unwrap_or_default();
    let status = match (method, path) {
        _ if !is_meant_for_us => "421 Misdirected Request",
        ("GET" | "HEAD", "/") => "200 OK",
        ("GET" | "HEAD", _) => "404 Not Found",
        _ => "405 Method Not Allowed",
    };
    (status, method)
}

fn is_own(host: &str, own_name: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => host,
    };
    let inner = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    inner.unwrap_or(name).parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || (!own_name.is_empty() && name.eq_ignore_ascii_case(own_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_hosts() {
        assert_eq!(address("8080").unwrap().to_string(), "127.0.0.1:8080");
        assert_eq!(address("[::1]:80").unwrap().to_string(), "[::1]:80");
        assert_eq!(address("0.0.0.0:1").unwrap().to_string(), "0.0.0.0:1");
        assert!(address("nowhere").is_err() && address("70000").is_err());
        for host in [
            "127.0.0.1:80",
            "127.0.0.1",
            "[::1]:80",
            "localhost:8080",
            "LocalHost",
            "box:1",
        ] {
            assert!(is_own(host, "box"), "{host}");
        }
        for host in [
            "evil.example:80",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "box.evil:1",
        ] {
            assert!(!is_own(host, "box") && !is_own(host, ""), "{host}");
        }
    }
}
