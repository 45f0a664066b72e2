//! Serves one page to browsers of this machine.

use crate::signals;
use anyhow::{Context, anyhow};
use std::{net::SocketAddr, process::ExitCode, time::Duration};
use tiny_http::{Header, Method, Request, Response, Server};

/// How often it is looked whether Ctrl-C has come.
const TURN: Duration = Duration::from_millis(200);

/// Takes the address.
pub fn listen(address: SocketAddr) -> anyhow::Result<Server> {
    Server::http(address).map_err(|error| anyhow!("cannot serve at {address}: {error}"))
}

/// Answers until Ctrl-C.
pub fn run(server: &Server, page: &[u8]) -> anyhow::Result<ExitCode> {
    signals::catch_stops();
    println!("http://{}/", server.server_addr());
    while !signals::stop_requested() {
        let request = server
            .recv_timeout(TURN)
            .context("cannot serve any longer")?;
        if let Some(request) = request {
            // A browser that went away has seen enough.
            let _ = answer(request, page);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(request: Request, page: &[u8]) -> std::io::Result<()> {
    let path = request
        .url()
        .split('?')
        .next()
        .unwrap_or_default()
        .to_owned();
    match (request.method(), path.as_str()) {
        (Method::Get | Method::Head, "/") => {
            let html = "text/html; charset=utf-8";
            let header = Header::from_bytes("Content-Type", html);
            let response = Response::from_data(page);
            request.respond(match header {
                Ok(header) => response.with_header(header),
                Err(()) => response,
            })
        }
        (Method::Get | Method::Head, _) => request.respond(Response::empty(404)),
        _ => request.respond(Response::empty(405)),
    }
}
