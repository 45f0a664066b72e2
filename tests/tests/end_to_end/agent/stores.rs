//! Stores that misbehave, were unreachable, or have a wrong identity.

use super::certificates;
use super::served::{Ended, ask, rule, service};
use memhook_tests::agents::{Agent, Reaction, ScriptedStore, free_address};
use memhook_tests::programs::{Folder, installed};
use memhook_tests::until;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

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
        Reaction::Status("404 Not Found", String::new()),
        Reaction::Take,
        Reaction::Status("400 Bad Request", String::new()),
    ]);
    let password = folder.path("password");
    std::fs::write(&password, "open sesame").expect("written");
    let stores = format!(
        "[pyroscope]\nurl = \"{}/\"\nusername = \"ali\"\npassword_file = \"{password}\"\ntimeout = \"8s\"\n",
        store.url()
    );
    let more = "mode = \"exact\"\nsend = [\"pyroscope\"]\ninterval = \"500ms\"";
    let mut agent = Agent::start(&folder, &format!("{stores}{}", rule(&program, more)));
    agent.await_phase(target.pid(), "traced");
    ask(&mut target, "l");
    until("the store has done all of that", || store.left() == 0);
    for words in [
        "HTTP status 500",
        "HTTP status 429",
        "redirects are not followed",
        "check the token",
        "HTTP status 404 (nothing at /push.v1.PusherService/Push); check url",
        "which is dropped: HTTP status 400",
    ] {
        agent.hear(words);
    }
    let count = |name: &str, label: &str| agent.metric(name, &["pyroscope", label]).unwrap_or(0.0);
    until("it is taken", || {
        count("memhook_agent_sent_profiles_total", "") >= 2.0
    });
    assert!(count("memhook_agent_send_retries_total", "") >= 7.0);
    assert_eq!(
        count("memhook_agent_dropped_profiles_total", "reason=\"refused\""),
        1.0
    );
    assert_eq!(elsewhere.requests().len(), 0);
    let first = &store.requests()[0];
    assert_eq!(first.headers["authorization"], "Basic YWxpOm9wZW4gc2VzYW1l");
    // All requests up to the first accepted request contain the oldest profile.
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

/// Checks that the agent sends a large backlog in small parts, and that the rest waits for the next
/// start.
#[test]
fn a_backlog_is_not_sent_at_once() {
    let folder = Arc::new(Folder::new("agent-backlog"));
    let queue = folder.path("state/queue/pyroscope");
    std::fs::create_dir_all(&queue).expect("made");
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ms = unix.expect("after 1970").as_millis() as u64;
    // Forty minutes' worth of profiles, which the agent sends within four minutes: one every 600
    // ms, with a tolerance of half that time.
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
    // The requests must not come faster, however slow this machine is.
    assert!(begin.elapsed() >= std::time::Duration::from_millis(4 * 300));
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    let waiting = std::fs::read_dir(&queue).expect("there").count() as u64;
    // A profile whose answer came too late at the end counts twice.
    let all = waiting + store.requests().len() as u64;
    assert!((REQUESTS..=REQUESTS + 1).contains(&all), "{all}");
}

/// Checks that a store receives nothing before the agent has verified its certificate.
#[test]
fn a_certificate_that_does_not_verify_is_refused() {
    let folder = Arc::new(Folder::new("agent-tls"));
    let address = free_address();
    certificates::make(&folder, address.ip());
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
            // Exits at the end of its input.
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
