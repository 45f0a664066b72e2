//! Fast tracepoints of gdbserver. They are placed through GDB's remote protocol, as GDB does, in a program that has
//! loaded the in-process agent (GDB manual, "Tracepoint Packets" and "Relocate instruction reply packet").

use memhook_process::mappings;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Possible paths of the in-process agent.
const AGENTS: [&str; 2] = [
    "/usr/lib/libinproctrace.so",
    "/usr/lib/x86_64-linux-gnu/libinproctrace.so",
];
/// Required first instruction of the function. It is as long as a jump, and position-independent.
const FIVE_BYTES: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the path of the in-process agent, which must be preloaded into the program.
pub fn in_process_agent() -> Result<PathBuf, String> {
    let is_there = Command::new("gdbserver").arg("--version").output();
    is_there.map_err(|error| format!("gdbserver cannot be run: {error}"))?;
    let agent = AGENTS.iter().map(Path::new).find(|path| path.exists());
    Ok(agent.ok_or("libinproctrace.so is not installed")?.into())
}

/// A tracepoint in a running program.
pub struct FastTracepoint {
    server: Child,
    connection: Connection,
}

impl FastTracepoint {
    /// Places a tracepoint at the address of a function in a program. Also returns the time that this took. The program
    /// must lead a process group, because gdbserver interrupts it with a signal to the group.
    pub fn place(
        pid: u32,
        agent: &Path,
        function: u64,
    ) -> Result<(FastTracepoint, Duration), String> {
        let begin = Instant::now();
        let mut server = Command::new("gdbserver")
            .args(["--attach", "127.0.0.1:0", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("gdbserver cannot be run: {error}"))?;
        let port = port(&mut server);
        let connection = port.and_then(|port| Connection::to(&port));
        let mut tracepoint = match connection {
            Ok(connection) => FastTracepoint { server, connection },
            Err(why) => {
                let _ = server.kill();
                let _ = server.wait();
                return Err(why);
            }
        };
        tracepoint.start(pid, agent, function)?;
        Ok((tracepoint, begin.elapsed()))
    }

    fn start(&mut self, pid: u32, agent: &Path, function: u64) -> Result<(), String> {
        let connection = &mut self.connection;
        connection.ask("qSupported:multiprocess-;qRelocInsn+")?;
        connection.ask("QStartNoAckMode")?;
        connection.acknowledges = false;
        connection.ask("?")?;
        connection.tell_symbols(&symbols_of(pid, agent)?)?;
        if connection.memory(function, FIVE_BYTES.len())? != FIVE_BYTES {
            return Err("the function has no place for it".into());
        }
        connection.ok("QTinit")?;
        let length = FIVE_BYTES.len();
        connection.ok(&format!("QTDP:1:{function:x}:E:0:0:F{length:x}"))?;
        connection.send("QTStart")?;
        loop {
            let reply = connection.receive()?;
            let Some(places) = reply.strip_prefix("qRelocInsn:") else {
                is_ok("QTStart", &reply)?;
                break;
            };
            let (_, to) = places.split_once(';').ok_or("half a request")?;
            let bytes: String = FIVE_BYTES.iter().map(|b| format!("{b:02x}")).collect();
            connection.ok(&format!("M{to},{length:x}:{bytes}"))?;
            connection.send(&format!("qRelocInsn:{length:x}"))?;
        }
        connection.send("vCont;c")
    }

    /// Removes the tracepoint, detaches from the program, and returns the number of collected calls.
    pub fn finish(mut self) -> Result<u64, String> {
        let connection = &mut self.connection;
        connection.stream().write_all(&[3]).map_err(lost)?;
        connection.receive()?;
        connection.ok("QTStop")?;
        let status = connection.ask("qTStatus")?;
        connection.ok("D")?;
        let frames = status.split(';').find_map(|s| s.strip_prefix("tframes:"));
        frames
            .and_then(|frames| u64::from_str_radix(frames, 16).ok())
            .ok_or_else(|| format!("gdbserver answers {status:?}"))
    }
}

impl Drop for FastTracepoint {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Reads gdbserver's port from its first messages.
fn port(server: &mut Child) -> Result<String, String> {
    let mut said = BufReader::new(server.stderr.take().expect("piped"));
    let mut line = String::new();
    let mut all = String::new();
    while said.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        if let Some(port) = line.trim().strip_prefix("Listening on port ") {
            let port = port.to_owned();
            // gdbserver keeps writing, and must not block on a full pipe.
            std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
            return Ok(port);
        }
        all.push_str(&std::mem::take(&mut line));
    }
    Err(format!("gdbserver does not listen: {}", all.trim()))
}

/// Returns the addresses of the agent's symbols in the process.
fn symbols_of(pid: u32, agent: &Path) -> Result<HashMap<String, u64>, String> {
    let real = std::fs::canonicalize(agent).map_err(|error| error.to_string())?;
    let maps = mappings(pid as i32).map_err(|error| error.to_string())?;
    let of_agent = maps.iter().filter(|m| Path::new(&m.path) == real);
    let base = of_agent.map(|m| m.start).min();
    let base = base.ok_or("the program has not loaded the agent")?;
    let listed = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(&real)
        .output()
        .map_err(|error| format!("nm cannot be run: {error}"))?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    let symbol = |line: &str| {
        let mut words = line.split_whitespace();
        let offset = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((words.nth(1)?.to_owned(), base + offset))
    };
    Ok(listed.lines().filter_map(symbol).collect())
}

fn lost(error: std::io::Error) -> String {
    format!("gdbserver: {error}")
}

fn is_ok(request: &str, reply: &str) -> Result<(), String> {
    match reply {
        "OK" => Ok(()),
        _ => Err(format!("gdbserver answers {reply:?} to {request:?}")),
    }
}

/// Connection that exchanges packets of the remote protocol.
struct Connection {
    reader: BufReader<TcpStream>,
    acknowledges: bool,
}

impl Connection {
    fn to(port: &str) -> Result<Connection, String> {
        let stream = TcpStream::connect(format!("127.0.0.1:{port}")).map_err(lost)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        Ok(Connection {
            reader: BufReader::new(stream),
            acknowledges: true,
        })
    }

    fn stream(&mut self) -> &mut TcpStream {
        self.reader.get_mut()
    }

    fn send(&mut self, text: &str) -> Result<(), String> {
        let sum = text.bytes().fold(0u8, u8::wrapping_add);
        let packet = format!("${text}#{sum:02x}");
        self.stream().write_all(packet.as_bytes()).map_err(lost)
    }

    fn receive(&mut self) -> Result<String, String> {
        let mut raw = Vec::new();
        self.reader.read_until(b'$', &mut raw).map_err(lost)?;
        raw.clear();
        self.reader.read_until(b'#', &mut raw).map_err(lost)?;
        self.reader.read_exact(&mut [0; 2]).map_err(lost)?;
        if self.acknowledges {
            self.stream().write_all(b"+").map_err(lost)?;
        }
        if raw.pop() != Some(b'#') {
            return Err("gdbserver has ended".into());
        }
        Ok(expanded(&raw))
    }

    fn ask(&mut self, text: &str) -> Result<String, String> {
        self.send(text)?;
        self.receive()
    }

    fn ok(&mut self, text: &str) -> Result<(), String> {
        let reply = self.ask(text)?;
        is_ok(text, &reply)
    }

    fn memory(&mut self, address: u64, length: usize) -> Result<Vec<u8>, String> {
        let reply = self.ask(&format!("m{address:x},{length:x}"))?;
        Ok(bytes(&reply))
    }

    /// Answers gdbserver's symbol requests until there are no more.
    fn tell_symbols(&mut self, symbols: &HashMap<String, u64>) -> Result<(), String> {
        let mut reply = self.ask("qSymbol::")?;
        while let Some(asked) = reply.strip_prefix("qSymbol:") {
            let name = String::from_utf8_lossy(&bytes(asked)).into_owned();
            let value = symbols.get(&name);
            let value = value.map_or(String::new(), |value| format!("{value:x}"));
            reply = self.ask(&format!("qSymbol:{value}:{asked}"))?;
        }
        Ok(())
    }
}

fn bytes(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks_exact(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map_while(byte).collect()
}

/// Expands run-length encoding: a character, `*`, and another character whose code minus 29 is the number of further
/// repetitions (GDB manual, "Overview" of the remote protocol).
fn expanded(raw: &[u8]) -> String {
    let mut text = String::new();
    let mut at = raw.iter();
    while let Some(&byte) = at.next() {
        match (byte, text.chars().last()) {
            (b'*', Some(last)) => {
                let times = at.next().map_or(0, |&code| code.saturating_sub(29));
                text.extend(std::iter::repeat_n(last, times.into()));
            }
            _ => text.push(byte.into()),
        }
    }
    text
}
