//! Load generator for servers that answer each request with a fixed number of bytes.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

/// Connections, each of which sends `pipeline` requests in a row.
pub struct Pump {
    connections: Vec<UnixStream>,
    pipeline: usize,
    answers: Vec<u8>,
}

impl Pump {
    /// Opens the connections.
    pub fn connect(socket: &str, connections: usize, pipeline: usize) -> Result<Pump, String> {
        let connect = || {
            let stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            Ok(stream)
        };
        let connections: std::io::Result<Vec<UnixStream>> =
            (0..connections).map(|_| connect()).collect();
        Ok(Pump {
            connections: connections.map_err(|e| format!("{socket}: {e}"))?,
            pipeline,
            answers: Vec::new(),
        })
    }

    /// Returns the answer to `request`. The answer is complete when the server pauses.
    pub fn answer(&mut self, request: &str) -> Result<Vec<u8>, String> {
        let error = |e: std::io::Error| format!("the server: {e}");
        let stream = &mut self.connections[0];
        stream.write_all(request.as_bytes()).map_err(error)?;
        let mut answer = vec![0; 1 << 16];
        let mut length = stream.read(&mut answer).map_err(error)?;
        stream
            .set_read_timeout(Some(Duration::from_millis(200)))
            .map_err(error)?;
        while let Ok(more @ 1..) = stream.read(&mut answer[length..]) {
            length += more;
        }
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .map_err(error)?;
        answer.truncate(length);
        Ok(answer)
    }

    /// Sends `request(n)` for the given time, and expects `answer_bytes` bytes for each. Returns
    /// the number of requests.
    pub fn run(
        &mut self,
        time: Duration,
        answer_bytes: usize,
        request: impl Fn(u64, &mut Vec<u8>),
    ) -> Result<f64, String> {
        let start = Instant::now();
        let count = self.send_while(answer_bytes, request, |_| start.elapsed() < time)?;
        Ok(count as f64)
    }

    /// Sends at least `count` requests.
    pub fn run_count(
        &mut self,
        count: u64,
        answer_bytes: usize,
        request: impl Fn(u64, &mut Vec<u8>),
    ) -> Result<(), String> {
        self.send_while(answer_bytes, request, |sent| sent < count)?;
        Ok(())
    }

    fn send_while(
        &mut self,
        answer_bytes: usize,
        request: impl Fn(u64, &mut Vec<u8>),
        more: impl Fn(u64) -> bool,
    ) -> Result<u64, String> {
        let error = |e: std::io::Error| format!("the server: {e}");
        self.answers.resize(answer_bytes * self.pipeline, 0);
        let (mut text, mut sent) = (Vec::new(), 0);
        while more(sent) {
            for stream in &mut self.connections {
                text.clear();
                for _ in 0..self.pipeline {
                    request(sent, &mut text);
                    sent += 1;
                }
                stream.write_all(&text).map_err(error)?;
            }
            for stream in &mut self.connections {
                stream.read_exact(&mut self.answers).map_err(error)?;
            }
        }
        Ok(sent)
    }
}
