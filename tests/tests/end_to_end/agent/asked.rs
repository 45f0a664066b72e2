//! Clients of the agent: slow clients, clients that do not read, and many simultaneous clients.

use memhook_tests::agents::{Agent, get_at_once, get_if_ready};
use memhook_tests::programs::Folder;
use memhook_tests::until;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

fn agent(name: &str) -> Agent {
    let rule = "[[rule]]\nname = \"none\"\nexecutable = \"/nowhere\"\n";
    Agent::start(&Arc::new(Folder::new(name)), rule)
}

/// A hundred connections send a request byte by byte, or do not read the response.
#[test]
fn slow_clients_keep_nobody_out() {
    let agent = agent("agent-slow-clients");
    let address = agent.address();
    let begin = |request: &'static str| {
        move |_| {
            let mut client = TcpStream::connect(address).expect("it listens");
            client.write_all(request.as_bytes()).expect("sent");
            client
        }
    };
    let mut slow: Vec<TcpStream> = (0..100)
        .map(begin("GET /metrics HTTP/1.1\r\nX: "))
        .collect();
    let _deaf: Vec<TcpStream> = (0..100)
        .map(begin("GET /metrics HTTP/1.1\r\n\r\n"))
        .collect();
    until("the answers to the deaf ones are made", || {
        get_if_ready(address, "/metrics").is_some()
    });
    let mut dripping = 0;
    for _ in 0..20 {
        // A disconnected client gets an error when it writes.
        dripping = slow
            .iter_mut()
            .map(|client| client.write_all(b"x"))
            .filter(Result::is_ok)
            .count();
        assert_eq!(get_at_once(address, "/healthz"), "ok\n");
        assert_eq!(
            agent.metric("memhook_agent_targets", &["traced"]),
            Some(0.0)
        );
        assert!(agent.targets().is_empty());
    }
    assert!(dripping < 100, "as many as ask may be connected");
    // Each connection has a total time limit, not a limit per byte, even if no other client waits.
    let mut last = begin("GET /metrics HTTP/1.1\r\nX: ")(0);
    last.set_nonblocking(true).expect("it is open");
    until("a slow client is sent away", || {
        let _ = last.write_all(b"x");
        let ended = last.read(&mut [0]);
        !ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    });
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
}

/// Stops one thread until dropped.
struct Stopped(i32);

impl Stopped {
    fn thread(tid: u32) -> Stopped {
        let tid = tid as i32;
        // SAFETY: these requests write to none of our memory; the thread is part of a child
        // process.
        let stopped = unsafe {
            libc::ptrace(libc::PTRACE_SEIZE, tid, 0, 0) == 0
                && libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0) == 0
        };
        assert!(stopped, "{}", std::io::Error::last_os_error());
        // SAFETY: a null pointer is allowed for results that are not needed.
        let waited = unsafe { libc::waitpid(tid, std::ptr::null_mut(), libc::__WALL) };
        assert_eq!(waited, tid);
        Stopped(tid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0, 0) };
    }
}

/// Checks that the agent reports a stopped supervisor thread for as long as it is stopped.
#[test]
fn an_agent_that_hangs_says_so() {
    let agent = agent("agent-hangs");
    // The agent disconnects a client that pauses before its request is complete.
    let answer = || {
        let mut stream = TcpStream::connect(agent.address()).expect("it listens");
        let mut answer = String::new();
        let _ = stream
            .write_all(b"GET /healthz HTTP/1.1\r\n\r\n")
            .and_then(|()| stream.read_to_string(&mut answer));
        answer
    };
    until("it is well", || answer().starts_with("HTTP/1.1 200"));
    let stopped = Stopped::thread(agent.pid());
    until("it is seen to hang", || {
        answer().starts_with("HTTP/1.1 503")
    });
    assert!(agent.get("/metrics").ends_with("# EOF\n"));
    drop(stopped);
    until("it gets on", || answer().starts_with("HTTP/1.1 200"));
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
}
