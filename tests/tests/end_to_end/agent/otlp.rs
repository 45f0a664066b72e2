//! Profiles for OpenTelemetry collectors.

use super::served::{ask, files, service};
use memhook_tests::agents::{Agent, Pprof, Reaction, ScriptedStore};
use memhook_tests::programs::Folder;
use memhook_tests::{otlp, run, until};
use std::path::Path;
use std::sync::Arc;

fn configuration(program: &Path, store: &str, send: &str) -> String {
    format!(
        "{store}\n[labels]\nregion = \"eu\"\n[[rule]]\nname = \"web\"\nexecutable = \"{}\"\nmode = \"exact\"\n\
         send = {send}\ninterval = \"500ms\"\nservice = \"shop\"\nversion = \"1.2\"\n",
        program.display()
    )
}

/// Compares the transmitted data with the files that the agent wrote during the same period.
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
        "[files]\ndirectory = \"{directory}\"\n[otlp]\nurl = \"{}/below/\"\ntimeout = \"8s\"\n",
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
        "HTTP status 503",
        "HTTP status 429",
        "incomplete response",
        "redirects are not followed",
        "check the token",
    ] {
        agent.hear(words);
    }
    ask(&mut target, "l");
    agent.await_number(target.pid(), "live_bytes", 200_000);
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());
    assert!(elsewhere.requests().is_empty());
    // The next agent sends the data that the first agent could not send.
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

/// Checks that if the protocol forbids retrying a request, the agent counts the request and does
/// not retry it.
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
    // The agent refuses the format unless the configuration explicitly enables it.
    std::fs::write(folder.path("check.toml"), &text).expect("written");
    let (code, _, errors) = run(&["agent", "--check", "--config", &folder.path("check.toml")]);
    assert_eq!(code, 2);
    assert!(
        errors.contains(":1:1: ") && errors.contains("experimental_otlp = true"),
        "{errors}"
    );
    let mut agent = Agent::start_with(&folder, &text, &["--experimental-otlp"]);
    ask(&mut target, "l");
    agent.hear("which is dropped: HTTP status 500");
    agent.hear("which is dropped: HTTP status 400");
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
