//! A debuginfod server, for `DEBUGINFOD_URLS`.

use crate::until;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Serves the debug information of one file. Every client waits until `release` is called.
pub struct DebugServer {
    /// URL of the server.
    pub url: String,
    is_released: Arc<AtomicBool>,
}

impl DebugServer {
    /// Starts a server with the debug information of this program.
    pub fn start(program: &Path) -> DebugServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = DebugServer {
            url: format!("http://{}", listener.local_addr().expect("an address")),
            is_released: Arc::default(),
        };
        let wanted = format!("GET /buildid/{}/debuginfo HTTP/1.1", build_id(program));
        let file: Arc<[u8]> = std::fs::read(program).expect("readable").into();
        let released = Arc::clone(&server.is_released);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (released, wanted, file) = (released.clone(), wanted.clone(), file.clone());
                std::thread::spawn(move || {
                    until("the release", || released.load(Relaxed));
                    answer(stream, &wanted, &file);
                });
            }
        });
        server
    }

    /// Answers all waiting and future clients.
    pub fn release(&self) {
        self.is_released.store(true, Relaxed);
    }
}

fn answer(mut stream: TcpStream, wanted: &str, file: &[u8]) {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
        request.push(byte[0]);
    }
    let (status, body) = match request.starts_with(wanted.as_bytes()) {
        true => ("200 OK", file),
        false => ("404 Not Found", &[][..]),
    };
    let length = body.len();
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let _ = stream.write_all(body);
}

/// Returns the build-id of an ELF file in hexadecimal.
pub fn build_id(program: &Path) -> String {
    let notes = Command::new("readelf").arg("-n").arg(program).output();
    let notes = String::from_utf8(notes.expect("readelf runs").stdout).expect("text");
    let line = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "));
    line.expect("a build-id").to_owned()
}
