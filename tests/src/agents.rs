//! Agents under test, and a store that receives their profiles.

pub use crate::pprof::Pprof;
use crate::pprof::unpacked;
use crate::{JsonSchema, binary, patience, programs::Folder, until};
use prost::Message;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// An agent; dropping it kills the process.
pub struct Agent {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
    /// Thread that reads the output up to the last line.
    listener: JoinHandle<()>,
    folder: Arc<Folder>,
}

impl Agent {
    /// Starts an agent with these rules and stores. The agent keeps its state in the directory,
    /// listens on a port that it chooses, and has no limit on its resource use, because it shares
    /// two processors with the tests' targets.
    pub fn start(folder: &Arc<Folder>, configuration: &str) -> Agent {
        Agent::start_with(folder, configuration, &[])
    }

    /// Starts an agent with further arguments.
    pub fn start_with(folder: &Arc<Folder>, configuration: &str, arguments: &[&str]) -> Agent {
        let mut agent = Agent::launch_with(folder, configuration, arguments);
        agent.hear("the agent runs");
        agent
    }

    /// Starts an agent without waiting for it.
    pub fn launch(folder: &Arc<Folder>, configuration: &str) -> Agent {
        Agent::launch_with(folder, configuration, &[])
    }

    /// Starts an agent whose long pauses are divided by this number, and which is otherwise
    /// unchanged.
    pub fn start_hastily(folder: &Arc<Folder>, configuration: &str, by: u32) -> Agent {
        let by = by.to_string();
        let mut command = Command::new(binary());
        command.env("MEMHOOK_AGENT_HASTE", by);
        let mut agent = Agent::launch_as(command, folder, configuration, &[]);
        agent.hear("the agent runs");
        agent
    }

    fn launch_with(folder: &Arc<Folder>, configuration: &str, arguments: &[&str]) -> Agent {
        Agent::launch_as(Command::new(binary()), folder, configuration, arguments)
    }

    fn launch_as(
        mut command: Command,
        folder: &Arc<Folder>,
        configuration: &str,
        arguments: &[&str],
    ) -> Agent {
        configure(folder, configuration);
        let mut child = command
            .args(["agent", "--config", &folder.path("agent.toml")])
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let to = Arc::clone(&said);
        let listener = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                lock(&to).push(line);
            }
        });
        Agent {
            child,
            said,
            listener,
            folder: Arc::clone(folder),
        }
    }

    /// Returns the output so far.
    pub fn said(&self) -> String {
        lock(&self.said).join("\n")
    }

    /// Waits until the agent has printed a line with this text.
    pub fn hear(&mut self, words: &str) {
        until(&format!("the agent says {words:?}"), || {
            let ended = self.child.try_wait().expect("a child");
            if ended.is_some() {
                self.hear_all();
            }
            assert!(
                ended.is_none() || self.said().contains(words),
                "{ended:?}: {}",
                self.said()
            );
            self.said().contains(words)
        });
    }

    /// Reads the whole output of an exited agent.
    fn hear_all(&self) {
        until("its last word is heard", || self.listener.is_finished());
    }

    /// Makes the agent load another configuration.
    pub fn reconfigure(&self, configuration: &str) {
        configure(&self.folder, configuration);
        self.signal(libc::SIGHUP);
    }

    /// Returns whether the agent is still running.
    pub fn lives(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// Returns the agent's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the agent.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes plain integers; the child has not been waited for.
        let sent = unsafe { libc::kill(self.child.id() as i32, signal) };
        assert_eq!(sent, 0);
    }

    /// Returns the address on which the agent listens.
    pub fn address(&self) -> SocketAddr {
        let mut found = None;
        until("the agent says where its metrics are", || {
            let said = self.said();
            let address = said.split("metrics are at http://").nth(1);
            found = address.and_then(|rest| rest.split('/').next()?.parse().ok());
            found.is_some()
        });
        found.expect("an address")
    }

    /// Returns the agent's answer for this path.
    pub fn get(&self, path: &str) -> String {
        get(self.address(), path)
    }

    /// Returns the agent's targets by process id. Checks the document against the schema.
    pub fn targets(&self) -> BTreeMap<u64, Value> {
        let document: Value = serde_json::from_str(&self.get("/targets")).expect("JSON");
        JsonSchema::load("targets-1").check(&document);
        let targets = document["targets"].as_array().expect("targets").iter();
        targets
            .map(|target| (target["pid"].as_u64().expect("a pid"), target.clone()))
            .collect()
    }

    /// Waits until a process reaches this phase, such as traced or refused.
    pub fn await_phase(&self, pid: u32, phase: &str) {
        let mut last = Value::Null;
        until(&format!("process {pid} is {phase}"), || {
            last = self.targets().remove(&u64::from(pid)).unwrap_or_default();
            last["phase"] == phase || {
                let is_refused = phase == "traced" && last["phase"] == "refused";
                // The agent retries an attach that failed because no processor was free.
                let is_for_now = patience::is_for_want_of_a_processor(&last.to_string());
                assert!(!is_refused || is_for_now, "{last}");
                false
            }
        });
    }

    /// Waits until this field of a traced process has this value.
    pub fn await_number(&self, pid: u32, name: &str, value: u64) {
        let mut last = Value::Null;
        until(&format!("{name} of process {pid} is {value}"), || {
            let target = self.targets().remove(&u64::from(pid)).unwrap_or_default();
            if target["numbers"][name] != last {
                last = target["numbers"][name].clone();
                eprintln!("{name} of process {pid}: {last}");
            }
            last == value
        });
    }

    /// Returns the value of a metric whose labels contain all of these labels.
    pub fn metric(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let text = self.get("/metrics");
        assert!(text.ends_with("# EOF\n"), "{text}");
        let line = text.lines().find(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        });
        line?.rsplit_once(' ')?.1.parse().ok()
    }

    /// Stops the agent with SIGTERM. Returns its exit code and its output.
    pub fn end(mut self) -> (Option<i32>, String) {
        self.signal(libc::SIGTERM);
        let status = patience::end_of(&mut self.child);
        self.hear_all();
        (status.code(), self.said())
    }

    /// Kills the agent.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configure(folder: &Folder, configuration: &str) {
    let text = format!(
        "[agent]\nstate = \"{}\"\nmax_cpu = \"100%\"\nmax_memory = \"90%\"\nmax_targets = 60\nscan = \"100ms\"\nretry = \"1s\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n{configuration}",
        folder.path("state")
    );
    // The file is replaced atomically, because the agent may read it at any time.
    let beside = folder.path("agent.toml.part");
    std::fs::write(&beside, text).expect("written");
    std::fs::rename(beside, folder.path("agent.toml")).expect("renamed");
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().expect("no panic")
}

/// Returns the number of words in a process's mapped files that point into the hook. While the
/// process is traced, these words are its slots.
pub fn wrapped_slots(pid: u32) -> usize {
    let maps = memhook_process::mappings(pid as i32).expect("it lives");
    let is_hook = |path: &str| path.starts_with("/memfd:memhook");
    let hooks = maps.iter().filter(|m| is_hook(&m.path) && m.exec);
    let hooks: Vec<_> = hooks.map(|m| m.start..m.end).collect();
    let memory = std::fs::File::open(memhook_process::proc_path(pid as i32, "mem"));
    let memory = memory.expect("its memory");
    let files = maps
        .iter()
        // /dev/zero is the name of shared memory without a file.
        .filter(|m| m.path.starts_with('/') && m.read && !is_hook(&m.path))
        .filter(|m| !m.path.starts_with("/dev/zero"));
    let words = files.flat_map(|m| {
        let mut bytes = vec![0; (m.end - m.start) as usize];
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, m.start).map_or_else(
            |_| Vec::new(),
            |()| {
                let words = bytes
                    .chunks_exact(8)
                    .map(|w| w.try_into().expect("eight bytes"));
                words.map(u64::from_ne_bytes).collect()
            },
        )
    });
    words
        .filter(|word| hooks.iter().any(|hook| hook.contains(word)))
        .count()
}

/// Returns the body of a response. Retries if the agent closed the connection because the request
/// came too late.
pub fn get(address: SocketAddr, path: &str) -> String {
    let mut found = None;
    until("it answers", || {
        found = ask(address, path);
        found.is_some()
    });
    found.expect("an answer")
}

/// Returns the body of the response to a single request, without a retry.
pub fn get_at_once(address: SocketAddr, path: &str) -> String {
    ask(address, path).expect("an answer")
}

/// Returns `None` if the connection ends without a response.
fn ask(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    Some(body.to_owned())
}

/// Returns an address for a later listener: a loopback address that nothing else uses, so its port
/// stays free.
pub fn free_address() -> SocketAddr {
    static COUNT: AtomicU8 = AtomicU8::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) % 100;
    let [.., high, low] = std::process::id().to_be_bytes();
    let own = IpAddr::from([127, 100 + count, high, low]);
    let listener = TcpListener::bind((own, 0)).expect("a port");
    listener.local_addr().expect("an address")
}

/// Sends a request to a server that may not be ready yet, and accepts any form of response.
pub fn get_if_ready(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    // HTTP/1.0 has no chunked answers.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.split(' ').nth(1).filter(|status| *status == "200")?;
    Some(body.to_owned())
}

/// A push request (push/v1/push.proto).
#[derive(Clone, PartialEq, Message)]
struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<RawProfileSeries>,
}

#[derive(Clone, PartialEq, Message)]
struct RawProfileSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawSample>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct RawSample {
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
}

/// Reaction of the store to a request.
#[derive(Clone, Debug)]
pub enum Reaction {
    /// Accepts the request.
    Take,
    /// Answers with this status and these headers.
    Status(&'static str, String),
    /// Announces more bytes than it sends.
    Half,
    /// Sends no answer.
    Silence,
}

/// A request received by a store.
#[derive(Clone, Debug)]
pub struct Request {
    /// Request line.
    pub line: String,
    /// Headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Body, as sent.
    pub body: Vec<u8>,
    /// True if the store accepted it.
    pub is_taken: bool,
}

impl Request {
    /// Returns the profiles of a push.
    pub fn profiles(&self) -> Vec<Pprof> {
        let request = PushRequest::decode(&unpacked(&self.body)[..]).expect("a push");
        let series = request.series.into_iter().map(|series| {
            assert_eq!(series.samples.len(), 1);
            assert!(series.samples[0].raw_profile.len() < 4 << 20);
            let labels = series
                .labels
                .into_iter()
                .map(|label| (label.name, label.value));
            Pprof {
                labels: labels.collect(),
                ..Pprof::read(&series.samples[0].raw_profile)
            }
        });
        series.collect()
    }
}

/// A store that first answers as scripted, and then accepts everything.
pub struct ScriptedStore {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    script: Arc<Mutex<Vec<Reaction>>>,
}

impl ScriptedStore {
    /// Starts listening.
    pub fn start(script: Vec<Reaction>) -> ScriptedStore {
        ScriptedStore::listen(TcpListener::bind("127.0.0.1:0").expect("a port"), script)
    }

    /// Starts a store that accepts everything, at an address of [`free_address`].
    pub fn start_at(address: SocketAddr) -> ScriptedStore {
        let listener = TcpListener::bind(address).expect("the port is free");
        ScriptedStore::listen(listener, Vec::new())
    }

    fn listen(listener: TcpListener, script: Vec<Reaction>) -> ScriptedStore {
        let store = ScriptedStore {
            address: listener.local_addr().expect("an address"),
            requests: Arc::default(),
            script: Arc::new(Mutex::new(script)),
        };
        let (requests, script) = (Arc::clone(&store.requests), Arc::clone(&store.script));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (requests, script) = (Arc::clone(&requests), Arc::clone(&script));
                std::thread::spawn(move || serve(stream, &requests, &script));
            }
        });
        store
    }

    /// Returns the URL of the store.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns all requests so far.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.requests).clone()
    }

    /// Returns the profiles that the store accepted.
    pub fn profiles(&self) -> Vec<Pprof> {
        let requests = self.requests();
        let taken = requests.iter().filter(|request| request.is_taken);
        taken.flat_map(Request::profiles).collect()
    }

    /// Returns the number of scripted responses that are still unused.
    pub fn left(&self) -> usize {
        lock(&self.script).len()
    }
}

/// Serves any number of requests on one connection.
fn serve(stream: TcpStream, requests: &Mutex<Vec<Request>>, script: &Mutex<Vec<Reaction>>) {
    let Ok(mut to) = stream.try_clone() else {
        return;
    };
    let mut from = BufReader::new(stream);
    while let Some(mut request) = read(&mut from) {
        let reaction = {
            let mut script = lock(script);
            if script.is_empty() {
                Reaction::Take
            } else {
                script.remove(0)
            }
        };
        request.is_taken = matches!(reaction, Reaction::Take);
        lock(requests).push(request);
        let answer = match reaction {
            Reaction::Take => {
                "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: 0\r\n\r\n"
                    .into()
            }
            Reaction::Status(status, headers) => {
                format!("HTTP/1.1 {status}\r\n{headers}Content-Length: 2\r\n\r\nno")
            }
            Reaction::Half => {
                let _ = to.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
                return;
            }
            Reaction::Silence => {
                // Waits until the client gives up.
                let _ = from.read(&mut [0]);
                return;
            }
        };
        if to.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

pub(crate) fn read(from: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    from.read_line(&mut line)
        .ok()
        .filter(|&length| length > 0)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut header = String::new();
        from.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    // A request without a body has no Content-Length.
    let length = headers.get("content-length").map_or("0", String::as_str);
    let length = length.parse().ok()?;
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    Some(Request {
        line: line.trim_end().to_owned(),
        headers,
        body,
        is_taken: false,
    })
}
