//! The agent: what its rules choose, what it sends, and what it leaves behind.

use memhook_tests::agents::{Agent, Pprof, Reaction, ScriptedStore, wrapped_slots};
use memhook_tests::programs::{Folder, installed};
use memhook_tests::{Target, build_target, run, until};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A target of this test alone: rules go by its path.
fn service(folder: &Folder) -> (Target, PathBuf) {
    let program = PathBuf::from(folder.path("served"));
    if !program.exists() {
        memhook_tests::programs::copy_program(build_target("served", &[]), &program);
    }
    (Target::start(&program, &[]), program)
}

fn rule(program: &Path, more: &str) -> String {
    format!(
        "[[rule]]\nname = \"web\"\nexecutable = \"{}\"\n{more}\n",
        program.display()
    )
}

/// Nothing of ours is in the way of a process.
fn expect_untouched(pid: u32) {
    assert_eq!(
        wrapped_slots(pid),
        0,
        "slots of process {pid} lead to wrappers"
    );
}

fn ask(target: &mut Target, what: &str) {
    target.send(what);
    target.expect("done");
}

fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let text = text.expect("it lives");
    text.split_ascii_whitespace()
        .map(|pid| pid.parse().expect("a number"))
        .collect()
}

fn files(directory: &str) -> Vec<Pprof> {
    let entries = std::fs::read_dir(directory).expect("a directory").flatten();
    entries
        .map(|entry| Pprof::read(&std::fs::read(entry.path()).expect("readable")))
        .collect()
}

#[test]
fn a_service_and_its_child_are_seen_exactly_wherever_they_are_sent() {
    let folder = Arc::new(Folder::new("agent"));
    let (mut target, program) = service(&folder);
    let store = ScriptedStore::start(Vec::new());
    let [profiles, token] = ["profiles", "token"].map(|name| folder.path(name));
    std::fs::write(&token, "secret words\n").expect("written");
    let stores = format!(
        "[labels]\nregion = \"eu\"\n[files]\ndirectory = \"{profiles}\"\n\
         [pyroscope]\nurl = \"{}\"\ntenant = \"us\"\ntoken_file = \"{token}\"\n",
        store.url()
    );
    let more = "mode = \"exact\"\nsend = [\"files\", \"pyroscope\"]\ninterval = \"500ms\"\nservice = \"shop\"\nversion = \"1.2\"";
    let configuration = format!("{stores}{}", rule(&program, more));
    let mut agent = Agent::start(&folder, &configuration);
    assert_eq!(agent.get("/healthz"), "ok\n");
    let pid = target.pid();
    agent.await_phase(pid, "traced");
    ask(&mut target, "l");
    agent.await_number(pid, "live_bytes", 100_000);
    agent.await_number(pid, "allocations", 150);
    // Forks are followed, and a child counts for itself.
    ask(&mut target, "f");
    let child = children(pid)[0];
    agent.await_phase(child, "traced");
    ask(&mut target, "c");
    ask(&mut target, "l");
    agent.await_number(child, "live_bytes", 5_000);
    agent.await_number(pid, "live_bytes", 200_000);
    let label = format!("pid=\"{pid}\"");
    let labels = ["service=\"shop\"", "rule=\"web\"", "mode=\"exact\"", &label];
    for (name, value) in [
        ("memhook_target_live_bytes", 200_000.0),
        ("memhook_target_live_blocks", 200.0),
        ("memhook_target_allocated_bytes_total", 206_400.0),
        ("memhook_target_releases_total", 100.0),
        ("memhook_target_lost_events_total", 0.0),
        ("memhook_target_sample_bytes", 0.0),
    ] {
        assert_eq!(agent.metric(name, &labels), Some(value), "{name}");
    }
    assert_eq!(
        agent.metric("memhook_agent_targets", &["phase=\"traced\""]),
        Some(2.0)
    );
    // A wrong configuration is refused, and the old one goes on.
    agent.reconfigure(&format!("{configuration}nonsense = 1\n"));
    agent.hear("unknown field `nonsense`");
    assert_eq!(
        agent.metric("memhook_agent_configuration_refused", &[]),
        Some(1.0)
    );
    assert_eq!(agent.targets().len(), 2);
    // A right one that means others leaves these.
    agent.reconfigure(&format!("{stores}{}", rule(Path::new("/nowhere"), "")));
    until("both are left", || agent.targets().is_empty());
    assert_eq!(
        agent.metric("memhook_agent_configuration_refused", &[]),
        Some(0.0)
    );
    expect_untouched(pid);
    expect_untouched(child);
    ask(&mut target, "l");
    until("all pushes have arrived", || {
        agent.metric("memhook_agent_queue_bytes", &["pyroscope"]) == Some(0.0)
    });
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());

    let pushes = store.requests();
    for push in &pushes {
        assert_eq!(push.line, "POST /push.v1.PusherService/Push HTTP/1.1");
        for (name, value) in [
            ("content-type", "application/proto"),
            ("content-encoding", "gzip"),
            ("x-scope-orgid", "us"),
            ("authorization", "Bearer secret words"),
        ] {
            assert_eq!(
                push.headers.get(name).map(String::as_str),
                Some(value),
                "{name}"
            );
        }
    }
    let arrived = store.profiles();
    for profile in &arrived {
        assert_eq!(profile.labelled_samples, 0);
        let label = |name: &str| profile.labels.get(name).map(String::as_str);
        assert_eq!(
            (label("__name__"), label("__delta__")),
            (Some("memory"), Some("false"))
        );
        assert_eq!(
            (label("service_name"), label("version")),
            (Some("shop"), Some("1.2"))
        );
        assert_eq!((label("region"), label("pid")), (Some("eu"), None));
        assert!(label("host").is_some_and(|host| !host.is_empty()));
    }
    // What was allocated in all intervals is what was allocated; what lives is what the last one says.
    let written = files(&profiles);
    for (of, all) in [("files", &written), ("pyroscope", &arrived)] {
        let sum =
            |value: &str, function: &str| all.iter().map(|p| p.of(value, function)).sum::<i64>();
        assert_eq!(sum("alloc_space", "planted_leak"), 200_000, "{of}");
        assert_eq!(sum("alloc_objects", "passing"), 100, "{of}");
        assert_eq!(sum("alloc_space", "child_leak"), 5_000, "{of}");
        let most = |value, function: &str| all.iter().map(|p| p.of(value, function)).max();
        assert_eq!(most("inuse_space", "planted_leak"), Some(200_000), "{of}");
        assert_eq!(most("inuse_objects", "child_leak"), Some(10), "{of}");
        assert_eq!(most("inuse_space", "passing"), Some(0), "{of}");
        let all_of = |value: &str| all.iter().map(|p| p.sum(value)).sum::<i64>();
        assert_eq!(
            (all_of("alloc_objects"), all_of("alloc_space")),
            (310, 211_400),
            "{of}"
        );
    }
}

#[test]
fn a_store_that_misbehaves_costs_nothing_but_time() {
    let folder = Arc::new(Folder::new("agent-store"));
    let (mut target, program) = service(&folder);
    let elsewhere = ScriptedStore::start(Vec::new());
    let redirect = format!("Location: {}/push\r\n", elsewhere.url());
    let store = ScriptedStore::start(vec![
        Reaction::Status("500 Internal Server Error", String::new()),
        Reaction::Status("429 Too Many Requests", "Retry-After: 1\r\n".into()),
        Reaction::Take,
        Reaction::Half,
        Reaction::Silence,
        Reaction::Take,
        Reaction::Status("307 Temporary Redirect", redirect),
        Reaction::Status("401 Unauthorized", String::new()),
        Reaction::Take,
        Reaction::Status("400 Bad Request", String::new()),
    ]);
    let password = folder.path("password");
    std::fs::write(&password, "open sesame").expect("written");
    let stores = format!(
        "[pyroscope]\nurl = \"{}/\"\nusername = \"ali\"\npassword_file = \"{password}\"\ntimeout = \"1s\"\n",
        store.url()
    );
    let more = "mode = \"exact\"\nsend = [\"pyroscope\"]\ninterval = \"500ms\"";
    let mut agent = Agent::start(&folder, &format!("{stores}{}", rule(&program, more)));
    agent.await_phase(target.pid(), "traced");
    ask(&mut target, "l");
    until("the store has done all of that", || store.left() == 0);
    for words in [
        "it answers 500",
        "it answers 429",
        "redirects are not followed",
        "look at the token",
        "which is dropped: it answers 400",
    ] {
        agent.hear(words);
    }
    let count = |name: &str, label: &str| agent.metric(name, &["pyroscope", label]).unwrap_or(0.0);
    until("it is taken", || {
        count("memhook_agent_sent_profiles_total", "") >= 2.0
    });
    assert!(count("memhook_agent_send_retries_total", "") >= 6.0);
    assert_eq!(
        count("memhook_agent_dropped_profiles_total", "reason=\"refused\""),
        1.0
    );
    assert_eq!(elsewhere.requests().len(), 0);
    let first = &store.requests()[0];
    assert_eq!(first.headers["authorization"], "Basic YWxpOm9wZW4gc2VzYW1l");
    // All attempts up to the one that was taken are of the oldest profile.
    let requests = store.requests();
    let taken = requests
        .iter()
        .position(|request| request.is_taken)
        .expect("taken");
    assert!(
        requests[..taken]
            .iter()
            .all(|request| request.body == requests[taken].body)
    );
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());
}

/// What has waited for a long time goes to the store a little at a time, and the rest waits for the next start.
#[test]
fn a_backlog_is_not_sent_at_once() {
    let folder = Arc::new(Folder::new("agent-backlog"));
    let queue = folder.path("state/queue/pyroscope");
    std::fs::create_dir_all(&queue).expect("made");
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ms = unix.expect("after 1970").as_millis() as u64;
    // Forty minutes of them, which are sent within four: one each 600 ms, give or take a half.
    const REQUESTS: u64 = 400;
    for number in 0..REQUESTS {
        let stamp = now_ms - 40 * 60_000 + number * 6000;
        std::fs::write(format!("{queue}/{stamp:020}.push"), "a request").expect("written");
    }
    let store = ScriptedStore::start(Vec::new());
    let begin = std::time::Instant::now();
    let stores = format!("[pyroscope]\nurl = \"{}\"\n", store.url());
    let more = "send = [\"pyroscope\"]";
    let rules = rule(Path::new("/nowhere"), more);
    let agent = Agent::start(&folder, &format!("{stores}{rules}"));
    until("some arrive", || store.requests().len() >= 5);
    // However slow this machine is, they came no faster.
    assert!(begin.elapsed() >= std::time::Duration::from_millis(4 * 300));
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    let waiting = std::fs::read_dir(&queue).expect("there").count() as u64;
    assert_eq!(waiting + store.requests().len() as u64, REQUESTS);
}

/// A killed agent leaves processes that go on; the next one finds them, even if no rule means them any more.
#[test]
fn an_agent_that_was_killed_is_cleaned_up_after() {
    let folder = Arc::new(Folder::new("agent-killed"));
    let (mut target, program) = service(&folder);
    let pid = target.pid();
    let traced = rule(&program, "mode = \"exact\"");
    for _ in 0..2 {
        let agent = Agent::start(&folder, &traced);
        agent.await_phase(pid, "traced");
        ask(&mut target, "l");
        agent.await_number(pid, "live_bytes", 100_000);
        agent.kill();
        assert!(wrapped_slots(pid) > 0, "it was killed while it traced");
        ask(&mut target, "l");
    }
    let mut agent = Agent::start(&folder, &rule(Path::new("/nowhere"), ""));
    agent.hear(&format!("detached from process {pid}"));
    expect_untouched(pid);
    // No second agent works with the same state.
    let other = run(&["agent", "--config", &folder.path("agent.toml")]);
    assert_eq!(other.0, 2);
    assert!(
        other
            .2
            .contains("another agent runs with the state directory"),
        "{}",
        other.2
    );
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());
}

/// One process each that is refused, listed, one too many, and traced for a time only; each said once.
#[test]
fn the_agent_holds_back() {
    let folder = Arc::new(Folder::new("agent-bounds"));
    let (first, program) = service(&folder);
    let (second, _) = service(&folder);
    let listed = folder.path("served-listed");
    memhook_tests::programs::copy_program(&program, &listed);
    let listed = Target::start(Path::new(&listed), &[]);
    let pattern = format!("{}*", program.display());
    let of = |max: u32, more: &str| format!("max_targets = {max}\nmode = \"summary\"\n{more}");
    let never = "[[rule]]\nname = \"never\"\nexecutable = \"/nowhere\"\n";
    let configuration = format!("{}{never}", rule(Path::new(&pattern), &of(1, "")));
    let mut agent = Agent::start(&folder, &configuration);
    agent.hear("processes wait to be traced: there are as many targets as there may be");
    agent.await_phase(first.pid(), "traced");
    assert_eq!(
        agent.metric("memhook_agent_targets", &["phase=\"traced\""]),
        Some(1.0)
    );
    assert_eq!(
        agent.metric("memhook_agent_held_back", &["targets"]),
        Some(1.0)
    );
    // With room for all of them, but not for long. What is never attached to is left alone.
    agent.reconfigure(&format!(
        "{}{never}",
        rule(Path::new(&pattern), &of(9, "duration = \"300ms\""))
    ));
    for target in [&first, &second, &listed] {
        agent.await_phase(target.pid(), "left");
        expect_untouched(target.pid());
    }
    let said = agent.said();
    assert_eq!(said.matches("processes wait").count(), 1, "{said}");
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    for target in [first, second, listed] {
        assert!(target.finish().success());
    }
}

#[test]
fn a_wrong_configuration_is_placed() {
    let folder = Folder::new("agent-check");
    let file = folder.path("agent.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).expect("written");
        run(&["agent", "--check", "--config", &file])
    };
    let right = "[[rule]]\nname = \"a\"\nprocess = \"nginx\"\n";
    let (code, output, errors) = check(right);
    assert_eq!(
        (code, output),
        (0, format!("{file}: right, 1 rule\n")),
        "{errors}"
    );
    for (text, place, says) in [
        (
            format!("{right}colour = 1\n"),
            "4:1",
            "unknown field `colour`",
        ),
        (
            format!("{right}interval = \"often\"\n"),
            "4:12",
            "is not a time",
        ),
        ("[agent\n".to_owned(), "1:7", ""),
    ] {
        let (code, output, errors) = check(&text);
        assert_eq!((code, output.as_str()), (2, ""), "{errors}");
        let begins = format!("memhook-rs: {file}:{place}: ");
        assert!(
            errors.starts_with(&begins) && errors.contains(says),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    let (code, _, errors) = run(&["agent", "--check", "--config", "/nowhere/agent.toml"]);
    assert_eq!(code, 2);
    assert!(
        errors.contains("cannot read the configuration /nowhere/agent.toml"),
        "{errors}"
    );
}

/// The answer of Prometheus to a query.
fn ask_prometheus(address: std::net::SocketAddr, path: &str) -> Option<serde_json::Value> {
    std::net::TcpStream::connect(address).ok()?;
    let text = memhook_tests::agents::get_if_ready(address, path)?;
    serde_json::from_str(&text).ok()
}

#[test]
fn prometheus_reads_the_numbers_and_the_alerts_are_right() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fleet/prometheus");
    let promtool = installed("promtool");
    for words in [
        ["check", "rules", "memhook.rules.yml"],
        ["test", "rules", "memhook.rules.test.yml"],
    ] {
        let output = Command::new(&promtool)
            .args(words)
            .current_dir(&root)
            .output();
        let output = output.expect("promtool runs");
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
    let folder = Arc::new(Folder::new("agent-prometheus"));
    let (mut target, program) = service(&folder);
    let agent = Agent::start(
        &folder,
        &rule(&program, "mode = \"exact\"\nservice = \"shop\""),
    );
    agent.await_phase(target.pid(), "traced");
    ask(&mut target, "l");
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let configuration = folder.path("prometheus.yml");
    let rules = root
        .join("memhook.rules.yml")
        .canonicalize()
        .expect("it is there");
    let text = format!(
        "global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}\n\
         rule_files: [{rules:?}]\nscrape_configs:\n\
         - job_name: memhook\n  scrape_timeout: 200ms\n  static_configs: [{{targets: [\"{}\"]}}]\n",
        agent.address()
    );
    std::fs::write(&configuration, text).expect("written");
    let log = std::fs::File::create(folder.path("prometheus.log")).expect("made");
    let mut prometheus = Ended(
        Command::new(installed("prometheus"))
            .arg(format!("--config.file={configuration}"))
            .arg(format!("--storage.tsdb.path={}", folder.path("data")))
            .arg(format!("--web.listen-address={address}"))
            .stdout(std::process::Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it runs"),
    );
    let query = "/api/v1/query?query=memhook_target_live_bytes";
    until("Prometheus has the live bytes", || {
        let ended = prometheus.0.try_wait().expect("a child");
        let log = || std::fs::read_to_string(folder.path("prometheus.log"));
        assert!(ended.is_none(), "{ended:?}: {:?}", log());
        let answer = ask_prometheus(address, query).unwrap_or_default();
        let found = &answer["data"]["result"][0];
        found["value"][1] == "100000" && found["metric"]["service"] == "shop"
    });
    until("Prometheus has evaluated all rules", || {
        let answer = ask_prometheus(address, "/api/v1/rules").unwrap_or_default();
        let rules = answer["data"]["groups"][0]["rules"].as_array().cloned();
        let rules = rules.unwrap_or_default();
        assert!(
            rules.iter().all(|rule| rule["health"] != "err"),
            "{rules:?}"
        );
        rules.len() == 6 && rules.iter().all(|rule| rule["health"] == "ok")
    });
    drop(prometheus);
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());
}

/// A program that ends with the test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn openssl(folder: &Folder, words: &str) {
    let words: Vec<String> = words
        .split(' ')
        .map(|word| word.replace("@", &folder.path("")))
        .collect();
    let output = Command::new(installed("openssl"))
        .args(&words)
        .output()
        .expect("openssl runs");
    assert!(output.status.success(), "{words:?}: {output:?}");
}

/// A store gets nothing before its certificate has been verified.
#[test]
fn a_certificate_that_does_not_verify_is_refused() {
    let folder = Arc::new(Folder::new("agent-tls"));
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout";
    openssl(
        &folder,
        &format!("req -x509 {key} @ca.key -out @ca.pem -subj /CN=ca -days 2"),
    );
    openssl(
        &folder,
        &format!("req {key} @leaf.key -out @leaf.csr -subj /CN=store"),
    );
    std::fs::write(folder.path("names"), "subjectAltName=IP:127.0.0.1").expect("written");
    openssl(
        &folder,
        "x509 -req -in @leaf.csr -CA @ca.pem -CAkey @ca.key -CAcreateserial -days 2 -extfile @names -out @leaf.pem",
    );
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let got = folder.path("got");
    let _server = Ended(
        Command::new(installed("openssl"))
            .args(["s_server", "-quiet", "-accept", &address.to_string()])
            .args([
                "-cert",
                &folder.path("leaf.pem"),
                "-key",
                &folder.path("leaf.key"),
            ])
            // It ends with its input.
            .stdin(std::process::Stdio::piped())
            .stdout(std::fs::File::create(&got).expect("made"))
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("it runs"),
    );
    until("the store listens", || {
        std::net::TcpStream::connect(address).is_ok()
    });
    let (target, program) = service(&folder);
    let rule = rule(&program, "send = [\"pyroscope\"]\ninterval = \"500ms\"");
    let stores = format!("[pyroscope]\nurl = \"https://{address}\"\ntimeout = \"1s\"\n");
    let has_got = || {
        let got = std::fs::read(&got).expect("readable");
        String::from_utf8_lossy(&got).contains("POST /push.v1.PusherService/Push")
    };
    let mut agent = Agent::start(&folder, &format!("{stores}{rule}"));
    agent.hear("invalid peer certificate");
    assert!(!has_got());
    assert_eq!(agent.end().0, Some(0));
    let trusted = format!("{stores}ca = \"{}\"\n{rule}", folder.path("ca.pem"));
    let agent = Agent::start(&folder, &trusted);
    until("the store gets a push", has_got);
    assert_eq!(agent.end().0, Some(0));
    assert!(target.finish().success());
}

/// However many targets there are, its end leaves each as it was, and nothing in the list of those that it has attached to.
#[test]
fn the_end_leaves_many_targets_as_they_were() {
    let folder = Arc::new(Folder::new("agent-many"));
    let mut targets = Vec::new();
    let mut program = PathBuf::new();
    for _ in 0..60 {
        let (target, path) = service(&folder);
        targets.push(target);
        program = path;
    }
    // One rule whose time ends for all of them together, and one that lasts.
    for (more, ends_by_itself) in [("duration = \"1ms\"", true), ("mode = \"exact\"", false)] {
        let agent = Agent::start(&folder, &rule(&program, more));
        let phase = if ends_by_itself { "left" } else { "traced" };
        until(&format!("all are {phase}"), || {
            let all = agent.targets();
            all.values()
                .filter(|target| target["phase"] == phase)
                .count()
                == targets.len()
        });
        for target in &mut targets {
            assert_eq!(wrapped_slots(target.pid()) > 0, !ends_by_itself);
            ask(target, "l");
        }
        let (code, said) = agent.end();
        assert_eq!(code, Some(0), "{said}");
        for target in &mut targets {
            expect_untouched(target.pid());
            ask(target, "l");
        }
        let left = std::fs::read_to_string(folder.path("state/attached")).expect("a list");
        assert_eq!(left, "", "{said}");
    }
    for target in targets {
        assert!(target.finish().success());
    }
}

/// Events that come after a long pause are all there, and a thread that has begun meanwhile counts for itself.
#[test]
fn a_target_that_was_quiet_is_seen_exactly() {
    let folder = Arc::new(Folder::new("agent-quiet"));
    let (mut target, program) = service(&folder);
    let agent = Agent::start(&folder, &rule(&program, "mode = \"exact\""));
    let pid = target.pid();
    agent.await_phase(pid, "traced");
    for round in 1..=5 {
        ask(&mut target, "l");
        agent.await_number(pid, "live_bytes", 100_000 * round);
        // Longer than it takes until nobody drains any more.
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    let label = format!("pid=\"{pid}\"");
    for (name, value) in [
        ("memhook_target_lost_events_total", 0.0),
        ("memhook_target_gaps_total", 0.0),
    ] {
        assert_eq!(agent.metric(name, &[&label]), Some(value), "{name}");
    }
    // Its end is noticed, although nothing of it has to be drained.
    assert!(target.finish().success());
    until("it is gone", || agent.targets().is_empty());
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
}

/// Many targets, and an agent that is killed at any moment, again and again, while its store is down. Takes minutes:
/// `MEMHOOK_ROUNDS=100 cargo test -p memhook-tests --test end_to_end agent -- --ignored --nocapture`.
#[test]
#[ignore = "a storm of minutes"]
fn an_agent_that_is_killed_at_any_moment_harms_nobody() {
    let rounds = std::env::var("MEMHOOK_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(100);
    let folder = Arc::new(Folder::new("agent-storm"));
    let mut targets: Vec<Target> = Vec::new();
    let mut program = PathBuf::new();
    for _ in 0..50 {
        let (target, path) = service(&folder);
        targets.push(target);
        program = path;
    }
    let stores = "[pyroscope]\nurl = \"http://127.0.0.1:9\"\n";
    let more = "mode = \"exact\"\nsend = [\"pyroscope\"]\ninterval = \"500ms\"";
    let configuration = format!("{stores}{}", rule(&program, more));
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut most = 0;
    for round in 0..rounds {
        let agent = Agent::launch(&folder, &configuration);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let until = std::time::Instant::now() + std::time::Duration::from_millis(random % 2500);
        while std::time::Instant::now() < until {
            for target in &mut targets {
                ask(target, "l");
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        agent.kill();
        let traced = targets
            .iter()
            .filter(|target| wrapped_slots(target.pid()) > 0)
            .count();
        most = most.max(traced);
        eprintln!("round {round}: killed with {traced} processes traced");
        for target in &mut targets {
            assert!(target.is_alive(), "process {}", target.pid());
            ask(target, "l");
        }
    }
    let agent = Agent::start(&folder, &rule(Path::new("/nowhere"), ""));
    until("everything is put right", || {
        targets
            .iter()
            .all(|target| wrapped_slots(target.pid()) == 0)
    });
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(most > 0, "the agent never got so far");
    for target in targets {
        assert!(target.finish().success());
    }
}

/// Nothing of ours is in a process that is only searched, and its lost blocks are found.
#[test]
fn a_process_is_searched_and_not_traced() {
    let folder = Arc::new(Folder::new("agent-scan"));
    let (mut target, program) = service(&folder);
    ask(&mut target, "l");
    let more = "mode = \"scan\"\ninterval = \"5s\"\nmax_hold = \"20s\"";
    let agent = Agent::start(&folder, &rule(&program, more));
    let pid = target.pid();
    let found = |least: u64| {
        let mut found = Default::default();
        until(&format!("{least} lost blocks are found"), || {
            let target = agent.targets().remove(&u64::from(pid)).unwrap_or_default();
            let numbers = &target["numbers"];
            let number = |name: &str| numbers[name].as_u64().unwrap_or(0);
            found = [
                "unreachable_blocks",
                "unreachable_bytes",
                "scans",
                "live_blocks",
            ]
            .map(number);
            found[0] >= least
        });
        found
    };
    // Of the last one, the stack may still have the address.
    let [blocks, bytes, scans, live] = found(98);
    assert!(blocks <= 100 && live >= blocks && scans == 1);
    assert_eq!(bytes, blocks * 1000);
    expect_untouched(pid);
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    assert!(!maps.contains("/memfd:memhook"), "{maps}");
    ask(&mut target, "l");
    let [blocks, bytes, scans, _] = found(198);
    assert!(blocks <= 200 && scans >= 2);
    assert_eq!(bytes, blocks * 1000);
    let labels = ["mode=\"scan\""];
    let shown = agent.metric("memhook_target_unreachable_blocks", &labels);
    assert!(shown >= Some(198.0), "{shown:?}");
    assert!(agent.metric("memhook_target_scan_held_seconds_total", &labels) > Some(0.0));
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());
}

/// What the parts of the account have is what is resident.
#[test]
fn what_is_resident_is_shown_where_a_rule_asks_for_it() {
    let folder = Arc::new(Folder::new("agent-resident"));
    let (mut target, program) = service(&folder);
    let more = "mode = \"summary\"\nresident = true\ninterval = \"500ms\"";
    let agent = Agent::start(&folder, &rule(&program, more));
    let pid = target.pid();
    agent.await_phase(pid, "traced");
    ask(&mut target, "l");
    let label = format!("pid=\"{pid}\"");
    until("it has stacks in memory", || {
        let labels = [&*label, "part=\"stacks\""];
        agent.metric("memhook_target_resident_part_bytes", &labels) > Some(4095.0)
    });
    let numbers = agent.targets()[&u64::from(pid)]["numbers"].clone();
    let parts = numbers["resident_parts"].as_object().expect("parts");
    let sum: u64 = parts.values().filter_map(serde_json::Value::as_u64).sum();
    let all = numbers["resident_bytes"].as_u64().expect("a number");
    // One was read a moment after the other.
    assert!(sum.abs_diff(all) <= all / 10, "{numbers:#}");
    assert!(
        parts.contains_key("rest of the allocator's memory"),
        "{numbers:#}"
    );
    assert!(target.finish().success());
}

/// What a process executes next may fall under another rule, or under none.
#[test]
fn a_program_that_is_exchanged_is_searched_no_more() {
    let folder = Arc::new(Folder::new("agent-scan-exec"));
    let shell = PathBuf::from(folder.path("shell"));
    memhook_tests::programs::copy_program(installed("bash"), &shell);
    let mut child = Command::new(&shell)
        .args(["-c", "read line; exec sleep 600"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let more = "mode = \"scan\"\nmax_hold = \"20s\"";
    let agent = Agent::start(&folder, &rule(&shell, more));
    agent.await_phase(child.id(), "traced");
    drop(child.stdin.take());
    until("nothing is searched", || agent.targets().is_empty());
    assert!(child.try_wait().expect("a child").is_none(), "it goes on");
    child.kill().expect("killed");
    child.wait().expect("reaped");
}
