//! The agent: what its rules choose, what it sends, and what it leaves behind.

use memhook_tests::agents::{Agent, Pprof, Reaction, ScriptedStore, wrapped_slots};
use memhook_tests::programs::Folder;
use memhook_tests::{Target, build_target, run, until};
use std::path::{Path, PathBuf};
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
        Reaction::Half,
        Reaction::Silence,
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
    let check = |text: &str, more: &[&str]| {
        std::fs::write(&file, text).expect("written");
        run(&[&["agent", "--check", "--config", &file], more].concat())
    };
    let right = "[[rule]]\nname = \"a\"\nprocess = \"nginx\"\n";
    let (code, output, errors) = check(right, &[]);
    assert_eq!(
        (code, output),
        (0, format!("{file}: right, 1 rule\n")),
        "{errors}"
    );
    let otlp = format!("[otlp]\nurl = \"http://localhost:4318\"\n{right}");
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
        (otlp.clone(), "1:1", "--experimental-otlp"),
        ("[agent\n".to_owned(), "1:7", ""),
    ] {
        let (code, output, errors) = check(&text, &[]);
        assert_eq!((code, output.as_str()), (2, ""), "{errors}");
        let begins = format!("memhook-rs: {file}:{place}: ");
        assert!(
            errors.starts_with(&begins) && errors.contains(says),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    assert_eq!(check(&otlp, &["--experimental-otlp"]).0, 0);
    let (code, _, errors) = run(&["agent", "--check", "--config", "/nowhere/agent.toml"]);
    assert_eq!(code, 2);
    assert!(
        errors.contains("cannot read the configuration /nowhere/agent.toml"),
        "{errors}"
    );
}
