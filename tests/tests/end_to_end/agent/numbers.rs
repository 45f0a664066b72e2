//! Output of /metrics and /targets for targets.

use super::served::{Ended, ask, rule, service};
use memhook_tests::agents::{Agent, free_address};
use memhook_tests::programs::{Folder, installed};
use memhook_tests::until;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Returns the answer of Prometheus to a query.
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
    let address = free_address();
    let configuration = folder.path("prometheus.yml");
    let rules = root
        .join("memhook.rules.yml")
        .canonicalize()
        .expect("it is there");
    let text = format!(
        "global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 200ms}}\n\
         rule_files: [{rules:?}]\nscrape_configs:\n\
         - job_name: memhook\n  scrape_timeout: 500ms\n  static_configs: [{{targets: [\"{}\"]}}]\n",
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
        rules.len() == 14 && rules.iter().all(|rule| rule["health"] == "ok")
    });
    drop(prometheus);
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());
}

/// Checks that the parts add up to the resident memory.
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
    // The two numbers were read a moment apart.
    assert!(sum.abs_diff(all) <= all / 10, "{numbers:#}");
    assert!(
        parts.contains_key("rest of the allocator's memory"),
        "{numbers:#}"
    );
    assert!(target.finish().success());
}
