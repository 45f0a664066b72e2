//! Profiles for OpenTelemetry collectors: by HTTP, and by gRPC to a server of gRPC's own library.

use super::certificates;
use super::served::{ask, files, service};
use memhook_tests::agents::{Agent, Pprof, Reaction, ScriptedStore};
use memhook_tests::programs::Folder;
use memhook_tests::{not_run, otlp, run, until};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Debian's Python, which its module of gRPC belongs to.
const PYTHON: &str = "/usr/bin/python3";

fn configuration(program: &Path, store: &str, send: &str) -> String {
    format!(
        "{store}\n[labels]\nregion = \"eu\"\n[[rule]]\nname = \"web\"\nexecutable = \"{}\"\nmode = \"exact\"\n\
         send = {send}\ninterval = \"500ms\"\nservice = \"shop\"\nversion = \"1.2\"\n",
        program.display()
    )
}

/// What was sent, beside the files that were written at the same time.
fn expect_sums(arrived: &[Pprof], written: &[Pprof]) {
    for profile in arrived {
        let label = |name: &str| profile.labels.get(name).map(String::as_str);
        assert_eq!(label("service.name"), Some("shop"));
        assert_eq!(label("service.version"), Some("1.2"));
        assert_eq!(label("process.executable.name"), Some("served"));
        assert_eq!((label("region"), label("process.pid")), (Some("eu"), None));
        assert!(label("host.name").is_some_and(|host| !host.is_empty()));
        assert_eq!(profile.values.len(), 4);
    }
    let sum = |of: &[Pprof], value: &str| of.iter().map(|p| p.sum(value)).sum::<i64>();
    for value in ["alloc_space", "alloc_objects"] {
        assert_eq!(sum(arrived, value), sum(written, value), "{value}");
    }
    let leaked = |value: &str| {
        let all = arrived.iter().map(|p| p.of(value, "planted_leak"));
        (all.clone().sum::<i64>(), all.max().unwrap_or(0))
    };
    assert_eq!(leaked("alloc_space").0, 200_000);
    assert_eq!(leaked("inuse_space").1, 200_000);
    assert_eq!(leaked("inuse_objects").1, 200);
}

#[test]
fn a_collector_gets_what_was_measured_over_http() {
    let folder = Arc::new(Folder::new("otlp-http"));
    let (mut target, program) = service(&folder);
    let elsewhere = ScriptedStore::start(Vec::new());
    let store = ScriptedStore::start(vec![
        Reaction::Status("503 Service Unavailable", "Retry-After: 1\r\n".into()),
        Reaction::Status("429 Too Many Requests", String::new()),
        Reaction::Half,
        Reaction::Silence,
        Reaction::Status(
            "307 Temporary Redirect",
            format!("Location: {}/\r\n", elsewhere.url()),
        ),
        Reaction::Status("401 Unauthorized", String::new()),
    ]);
    let directory = folder.path("profiles");
    let text = format!(
        "[files]\ndirectory = \"{directory}\"\n[otlp]\nurl = \"{}/below/\"\ntimeout = \"1s\"\n",
        store.url()
    );
    let text = configuration(&program, &text, "[\"otlp\", \"files\"]");
    let mut agent = Agent::start_with(&folder, &text, &["--experimental-otlp"]);
    agent.await_phase(target.pid(), "traced");
    ask(&mut target, "l");
    until("the collector has misbehaved in all ways", || {
        store.left() == 0
    });
    for words in [
        "it answers 503",
        "it answers 429",
        "is not complete",
        "redirects are not followed",
        "look at the token",
    ] {
        agent.hear(words);
    }
    ask(&mut target, "l");
    agent.await_number(target.pid(), "live_bytes", 200_000);
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());
    assert!(elsewhere.requests().is_empty());
    // What could not be sent within the end of the first agent, the next one sends.
    let queued = || {
        std::fs::read_dir(folder.path("state/queue/otlp"))
            .expect("a queue")
            .count()
    };
    let next = Agent::start_with(&folder, &text, &["--experimental-otlp"]);
    until("everything has arrived", || queued() == 0);
    assert_eq!(next.end().0, Some(0));
    let requests = store.requests();
    for request in &requests {
        assert_eq!(request.line, "POST /below/v1development/profiles HTTP/1.1");
        assert_eq!(request.headers["content-type"], "application/x-protobuf");
        assert_eq!(request.headers["content-encoding"], "gzip");
    }
    let taken = requests.iter().filter(|request| request.is_taken);
    let arrived: Vec<Pprof> = taken.map(|r| otlp::read_gzipped(&r.body)).collect();
    expect_sums(&arrived, &files(&directory));
}

/// A request that the protocol says must not be sent again is not, and is counted.
#[test]
fn a_collector_that_cannot_take_a_profile_is_not_asked_twice() {
    let folder = Arc::new(Folder::new("otlp-refused"));
    let (mut target, program) = service(&folder);
    let store = ScriptedStore::start(vec![
        Reaction::Status("500 Internal Server Error", String::new()),
        Reaction::Status("400 Bad Request", String::new()),
    ]);
    let text = format!("[otlp]\nurl = \"{}\"\n", store.url());
    let text = configuration(&program, &text, "[\"otlp\"]");
    // Without a word that it may be used, it is refused.
    std::fs::write(folder.path("check.toml"), &text).expect("written");
    let (code, _, errors) = run(&["agent", "--check", "--config", &folder.path("check.toml")]);
    assert_eq!(code, 2);
    assert!(
        errors.contains(":1:1: ") && errors.contains("experimental_otlp = true"),
        "{errors}"
    );
    let mut agent = Agent::start_with(&folder, &text, &["--experimental-otlp"]);
    ask(&mut target, "l");
    agent.hear("which is dropped: it answers 500");
    agent.hear("which is dropped: it answers 400");
    until("both are counted", || {
        agent.metric(
            "memhook_agent_dropped_profiles_total",
            &["otlp", "reason=\"refused\""],
        ) == Some(2.0)
    });
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());
    let requests = store.requests();
    assert!(requests[0].body != requests[1].body);
}

/// A server of gRPC's library; ended with the test.
struct Collector {
    child: Child,
    directory: String,
}

impl Collector {
    /// None, with the reason said, where the library is missing.
    fn start(folder: &Folder, words: &[&str]) -> Option<Collector> {
        let has_library = Command::new(PYTHON)
            .args(["-c", "import grpc"])
            .stderr(Stdio::null())
            .status();
        if !has_library.is_ok_and(|status| status.success()) {
            not_run("python3-grpcio is not installed");
            return None;
        }
        let directory = folder.path("collector");
        std::fs::create_dir_all(&directory).expect("made");
        let _ = std::fs::remove_file(format!("{directory}/port"));
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/end_to_end/agent/collector.py");
        let child = Command::new(PYTHON)
            .arg(script)
            .arg(&directory)
            .args(words)
            .spawn();
        let collector = Collector {
            child: child.expect("it runs"),
            directory,
        };
        until("the collector listens", || {
            Path::new(&format!("{}/port", collector.directory)).exists()
        });
        Some(collector)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(format!("{}/{name}", self.directory)).expect("readable")
    }

    fn port(&self) -> String {
        String::from_utf8(self.read("port")).expect("a number")
    }

    /// What it was sent, in order, and whether it took it.
    fn messages(&self) -> Vec<(bool, Vec<u8>)> {
        let entries = std::fs::read_dir(&self.directory)
            .expect("a directory")
            .flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names
            .filter(|name| name.ends_with(".taken") || name.ends_with(".refused"))
            .collect();
        names.sort();
        names
            .iter()
            .map(|name| (name.ends_with(".taken"), self.read(name)))
            .collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_collector_gets_what_was_measured_over_grpc() {
    let folder = Arc::new(Folder::new("otlp-grpc"));
    // Unavailable, a pause that was asked for, an invalid argument, no right; an answer that comes too late.
    let Some(collector) = Collector::start(&folder, &["14", "wait:1", "3", "16", "silence"]) else {
        return;
    };
    let (mut target, program) = service(&folder);
    let (directory, token) = (folder.path("profiles"), folder.path("token"));
    std::fs::write(&token, "secret words\n").expect("written");
    let text = format!(
        "[files]\ndirectory = \"{directory}\"\n[otlp]\nurl = \"http://127.0.0.1:{}\"\nprotocol = \"grpc\"\n\
         tenant = \"us\"\ntoken_file = \"{token}\"\ntimeout = \"1s\"\n",
        collector.port()
    );
    let text = configuration(&program, &text, "[\"otlp\", \"files\"]");
    let mut agent = Agent::start_with(&folder, &text, &["--experimental-otlp"]);
    agent.await_phase(target.pid(), "traced");
    for words in [
        "it answers gRPC status 14: not today",
        "it answers gRPC status 8: too many",
        "which is dropped: it answers gRPC status 3: not today",
        "it answers gRPC status 16: look at the token",
        "the store takes too long",
        "otlp takes profiles again",
    ] {
        agent.hear(words);
    }
    // The one that was dropped was made before anything was allocated.
    for live in [100_000, 200_000] {
        ask(&mut target, "l");
        agent.await_number(target.pid(), "live_bytes", live);
    }
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());
    until("everything has arrived", || {
        let queue = std::fs::read_dir(folder.path("state/queue/otlp")).expect("a queue");
        if queue.count() == 0 {
            return true;
        }
        let next = Agent::start_with(&folder, &text, &["--experimental-otlp"]);
        next.end().0 != Some(0)
    });
    let messages = collector.messages();
    assert_eq!(
        messages[0].1, messages[1].1,
        "the same profile is sent again"
    );
    assert_eq!(messages[1].1, messages[2].1);
    assert_ne!(messages[2].1, messages[3].1, "what was refused is not");
    let taken = messages.iter().filter(|(is_taken, _)| *is_taken);
    let arrived: Vec<Pprof> = taken.map(|(_, bytes)| otlp::read(bytes)).collect();
    expect_sums(&arrived, &files(&directory));
    let metadata = String::from_utf8(collector.read("metadata")).expect("text");
    for words in [
        "\"x-scope-orgid\": \"us\"",
        "\"authorization\": \"Bearer secret words\"",
        "\"user-agent\": \"memhook-rs/",
    ] {
        assert!(metadata.contains(words), "{metadata}");
    }
}

/// A collector gets nothing before its certificate has been verified, by gRPC as by HTTP.
#[test]
fn a_certificate_that_does_not_verify_is_refused_by_grpc_too() {
    let folder = Arc::new(Folder::new("otlp-tls"));
    certificates::make(&folder);
    let files = [folder.path("leaf.key"), folder.path("leaf.pem")];
    let Some(collector) = Collector::start(&folder, &["--tls", &files[0], &files[1]]) else {
        return;
    };
    let (target, program) = service(&folder);
    let text = format!(
        "[otlp]\nurl = \"https://127.0.0.1:{}\"\nprotocol = \"grpc\"\ntimeout = \"1s\"\n",
        collector.port()
    );
    let mut agent = Agent::start_with(
        &folder,
        &configuration(&program, &text, "[\"otlp\"]"),
        &["--experimental-otlp"],
    );
    agent.hear("invalid peer certificate");
    assert_eq!(agent.end().0, Some(0));
    assert!(collector.messages().is_empty());
    let trusted = format!("{text}ca = \"{}\"\n", folder.path("ca.pem"));
    let agent = Agent::start_with(
        &folder,
        &configuration(&program, &trusted, "[\"otlp\"]"),
        &["--experimental-otlp"],
    );
    until("the collector gets a profile", || {
        collector.messages().iter().any(|(is_taken, _)| *is_taken)
    });
    assert_eq!(agent.end().0, Some(0));
    assert!(target.finish().success());
}
