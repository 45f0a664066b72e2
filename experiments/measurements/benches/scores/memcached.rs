//! Cost of requests to a memcached server.

use super::Cost;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Number of records. The paper used Mutilate's defaults: get requests for 10,000 records with keys of 30 bytes and
/// values of 200 bytes.
const RECORDS: usize = 10_000;
const VALUE_BYTES: usize = 200;
const CONNECTIONS: usize = 4;
/// Duration of a measurement, as in the paper.
const LASTS: Duration = Duration::from_secs(5);
/// Number of requests in a `Cost`.
const REQUESTS: f64 = 10_000.0;
/// Time limit for the start of a server, which takes seconds under valgrind.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a server under the wrapper command `with`. Returns its processor time for 10,000 requests and its peak memory.
pub fn cost(server: &Path, with: &[&str]) -> Cost {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let mut words = with.to_vec();
    words.push(server.to_str().expect("UTF-8"));
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command.args(["-p", &port.to_string(), "-U", "0", "-l", "127.0.0.1"]);
    // One thread, as in the paper. With -A, a client may end the server.
    command.args(["-t", "1", "-A", "-u", "root"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut started = command
        .spawn()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let mut first = connected(port, &mut started);
    let said = answer(&mut first, b"stats\r\n");
    let pid = said.lines().find_map(|line| line.strip_prefix("STAT pid "));
    let pid: u32 = pid.and_then(|pid| pid.parse().ok()).expect("its number");
    let keys: Vec<String> = (0..RECORDS).map(|key| format!("key{key:027}")).collect();
    for key in &keys {
        let value = "v".repeat(VALUE_BYTES);
        let set = format!("set {key} 0 0 {VALUE_BYTES}\r\n{value}\r\n");
        first.write_all(set.as_bytes()).expect("written");
        until(&mut first, b"STORED\r\n");
    }
    let clients = (0..CONNECTIONS).map(|_| connected(port, &mut started));
    let mut clients: Vec<TcpStream> = clients.collect();
    let (before, begin, mut requests) = (processor_ns(pid), Instant::now(), 0usize);
    while begin.elapsed() < LASTS {
        // A stride that is coprime to the number of records visits all of them.
        let at = |client: usize| &keys[(requests + client) * 7919 % RECORDS];
        for (number, client) in clients.iter_mut().enumerate() {
            let get = format!("get {}\r\n", at(number));
            client.write_all(get.as_bytes()).expect("written");
        }
        for client in &mut clients {
            until(client, b"END\r\n");
        }
        requests += CONNECTIONS;
    }
    let took_ns = processor_ns(pid) - before;
    let kib = most_resident_kib(pid);
    first.write_all(b"shutdown\r\n").expect("written");
    assert!(started.wait().expect("ended").success(), "{command:?}");
    Cost {
        milliseconds: took_ns / 1e6 / requests as f64 * REQUESTS,
        kib,
    }
}

fn connected(port: u16, server: &mut Child) -> TcpStream {
    let begin = Instant::now();
    loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => {
                stream.set_nodelay(true).expect("no delay");
                return stream;
            }
            Err(error) => {
                assert!(begin.elapsed() < PATIENCE, "memcached: {error}");
                let ended = server.try_wait().expect("a child");
                assert!(ended.is_none(), "memcached: {ended:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn answer(stream: &mut TcpStream, request: &[u8]) -> String {
    stream.write_all(request).expect("written");
    String::from_utf8_lossy(&until(stream, b"END\r\n")).into_owned()
}

/// Reads until the response ends with `end`.
fn until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut said = Vec::new();
    let mut part = [0; 4096];
    while !said.ends_with(end) {
        let bytes = stream.read(&mut part).expect("an answer");
        assert!(bytes > 0, "memcached has hung up");
        said.extend_from_slice(&part[..bytes]);
    }
    said
}

/// Returns the processor time of all threads of a process (the first number of schedstat, sched-stats.rst in the
/// kernel's documentation).
fn processor_ns(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let of_thread = |thread: std::fs::DirEntry| {
        let said = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        said.split(' ').next()?.parse::<f64>().ok()
    };
    threads.flatten().filter_map(of_thread).sum()
}

fn most_resident_kib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let most = most.and_then(|most| most.split_whitespace().next()?.parse().ok());
    most.expect("a number")
}
