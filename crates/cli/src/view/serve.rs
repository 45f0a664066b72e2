//! Serves one page to browsers of this machine.

use crate::signals;
use anyhow::{Context, anyhow};
use std::{
    io::Cursor,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};
use tiny_http::{Header, Method, Request, Response, Server};

/// How often it is looked whether Ctrl-C has come.
const TURN: Duration = Duration::from_millis(200);
/// Answers at the same time; a reader may take as long as it likes for one.
const MOST_READERS: usize = 64;

/// A port of this machine for itself, or an address and a port.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse().map(|port: u16| (Ipv4Addr::LOCALHOST, port));
    port.map(SocketAddr::from)
        .or_else(|_| text.parse())
        .map_err(|_| "expected a port, or an address and a port like 127.0.0.1:8080".into())
}

/// Takes the address.
pub fn listen(address: SocketAddr) -> anyhow::Result<Server> {
    Server::http(address).map_err(|error| anyhow!("cannot serve at {address}: {error}"))
}

/// Answers until Ctrl-C.
pub fn run(server: &Server, page: Vec<u8>) -> anyhow::Result<ExitCode> {
    signals::catch_stops();
    let address = server.server_addr().to_ip();
    if address.is_some_and(|address| !address.ip().is_loopback()) {
        eprintln!("memhook-rs: everybody who reaches this address can read the page");
    }
    println!("http://{}/", server.server_addr());
    // Each answer holds a reference to it.
    let page: Arc<[u8]> = page.into();
    let own_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    while !signals::stop_requested() {
        let request = server
            .recv_timeout(TURN)
            .context("cannot serve any longer")?;
        let Some(request) = request else { continue };
        let code = match is_meant_for_us(&request, own_name.trim()) {
            false => Some(421),
            true if Arc::strong_count(&page) > MOST_READERS => Some(503),
            true => None,
        };
        let page = Arc::clone(&page);
        // On a thread of its own: one that reads slowly, or not at all, keeps nobody else waiting. If there is none to be
        // had, the connection ends.
        let _ = std::thread::Builder::new().spawn(move || match code {
            // A browser that went away has seen enough.
            Some(code) => request.respond(Response::empty(code)),
            None => answer(request, page),
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the browser was told to ask this server. A page from elsewhere can have a name of its own that leads here, and
/// would be allowed to read what it asks for by that name (DNS rebinding); by an address nobody else's page is.
fn is_meant_for_us(request: &Request, own_name: &str) -> bool {
    let mut hosts = request.headers().iter().filter(|h| h.field.equiv("Host"));
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => is_own(host.value.as_str(), own_name),
        // HTTP/1.0, which no browser speaks, has none.
        (None, _) => true,
        _ => false,
    }
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

fn answer(request: Request, page: Arc<[u8]>) -> std::io::Result<()> {
    let path = request
        .url()
        .split('?')
        .next()
        .unwrap_or_default()
        .to_owned();
    match (request.method(), path.as_str()) {
        (Method::Get | Method::Head, "/") => {
            let headers = [
                ("Content-Type", "text/html; charset=utf-8"),
                // Nobody else's page may show it in a frame.
                ("X-Frame-Options", "DENY"),
                ("Cache-Control", "no-store"),
            ];
            let headers = headers.map(|(name, value)| Header::from_bytes(name, value));
            let headers = headers.into_iter().flatten().collect();
            let length = page.len();
            let response =
                Response::new(200.into(), headers, Cursor::new(page), Some(length), None);
            request.respond(response)
        }
        (Method::Get | Method::Head, _) => request.respond(Response::empty(404)),
        _ => request.respond(Response::empty(405)),
    }
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
