//! Serves `GET /metrics`, `/healthz`, `/targets` and `/advice/PID`, to clients on the same machine
//! unless configured otherwise.

use crate::board::Board;
use crate::config::Http;
use crate::{metrics, targets_document};
use memhook_foreign::{Answer, HttpServer};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of responses served at the same time, in total and for one client address.
const MOST_CLIENTS: usize = 8;
const MOST_OF_ONE: usize = 4;
/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Silence of the supervisor that counts as a hang.
const HANGS_AFTER: Duration = Duration::from_secs(30);

/// Reason why the agent cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct ListenError {
    /// Address to listen on.
    address: SocketAddr,
    /// Reason.
    #[source]
    source: std::io::Error,
}

/// Answers in a separate thread, until the process ends.
pub fn serve(address: SocketAddr, http: &Http, board: &Arc<Board>) -> Result<(), ListenError> {
    let failed = |source| ListenError { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    if let Ok(address) = listener.local_addr() {
        tracing::info!("metrics are at http://{address}/metrics");
    }
    let (own, board, per_process) = (Arc::clone(board), Arc::clone(board), http.per_process);
    let server = HttpServer {
        names: names(&http.hosts),
        most_clients: MOST_CLIENTS,
        most_of_one: MOST_OF_ONE,
        answer_within: PATIENCE,
        answer_at_once: Box::new(move |request| {
            (request.path == "/healthz").then(|| health(own.silent_for()))
        }),
        answer: Box::new(move |request| answer(&board, per_process, &request.path)),
    };
    server.start(listener).map_err(failed)
}

/// Returns the names by which clients may address this machine: its own, and the configured ones.
fn names(configured: &[String]) -> Vec<String> {
    let own = rustix::system::uname();
    let own = own.nodename().to_string_lossy().into_owned();
    configured.iter().cloned().chain([own]).collect()
}

/// Returns the health, judged by the time since the supervisor last made progress. Computing it
/// needs neither a lock nor a thread, so that only the supervisor itself can make the agent look
/// hung.
fn health(silent: Duration) -> Answer {
    if silent > HANGS_AFTER {
        let why = format!("the agent has done nothing for {} s", silent.as_secs());
        return Answer::text("503 Service Unavailable", &why);
    }
    Answer::text("200 OK", "ok")
}

fn answer(board: &Arc<Board>, per_process: bool, path: &str) -> Answer {
    if let Some(pid) = path.strip_prefix("/advice/") {
        return match targets_document::advice(board, pid) {
            Some(advice) => Answer::ok("application/json", advice.into_bytes()),
            None => Answer::text("404 Not Found", "there is no advice on this process"),
        };
    }
    let (content_type, body) = match path {
        "/metrics" => (
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            metrics::text(board, per_process).ok(),
        ),
        "/targets" => ("application/json", targets_document::json(board).ok()),
        _ => {
            return Answer::text(
                "404 Not Found",
                "there are /metrics, /targets, /advice/PID and /healthz",
            );
        }
    };
    match body {
        Some(body) => Answer::ok(content_type, body.into_bytes()),
        None => Answer::text("500 Internal Server Error", "cannot prepare the answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_there_is_answered() {
        let board = Board::new();
        for (path, status) in [
            ("/metrics", "200 OK"),
            ("/targets", "200 OK"),
            ("/../etc/passwd", "404 Not Found"),
            ("/advice/7", "404 Not Found"),
            ("/advice/x", "404 Not Found"),
        ] {
            assert_eq!(answer(&board, true, path).status(), status, "{path}");
        }
        assert_eq!(health(HANGS_AFTER).status(), "200 OK");
        let hangs = health(HANGS_AFTER + Duration::from_secs(1));
        assert_eq!(hangs.status(), "503 Service Unavailable");
    }
}
