//! Programs whose names would break the output of the agent.

use super::served::{ask, expect_untouched};
use memhook_tests::agents::{Agent, ScriptedStore};
use memhook_tests::programs::{Folder, copy_program, installed};
use memhook_tests::{Target, build_target, otlp, until};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Returns file names, and the required output for each.
fn names() -> Vec<(Vec<u8>, String)> {
    let long = |text: &str, count: usize| (text.repeat(count).into_bytes(), text.repeat(count));
    vec![
        (
            b"a\nmemhook_target_live_bytes{pid=\"1\"} 7".to_vec(),
            r#"a\x0amemhook_target_live_bytes{pid="1"} 7"#.into(),
        ),
        (
            br#"b\"quote\\",e="f"} 1 # {x="y"}"#.to_vec(),
            r#"b\"quote\\",e="f"} 1 # {x="y"}"#.into(),
        ),
        // The last character is truncated.
        (
            b"c\xff\xfe\xc3\xa9\xe2\x82".to_vec(),
            "c\u{fffd}\u{fffd}é\u{fffd}".into(),
        ),
        (
            "d\x1b[31m\r\t\x7f\u{85}\u{202e}# EOF".as_bytes().to_vec(),
            r"d\x1b[31m\x0d\x09\x7f\x85\u{202e}# EOF".into(),
        ),
        long("e", 255),
        long("€", 85),
    ]
}

/// Returns all series by their labels, as parsed by Prometheus's OpenMetrics parser for Python.
fn series(text: &str) -> Vec<(String, BTreeMap<String, String>)> {
    let program = "import sys, json\n\
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
        text = sys.stdin.buffer.read().decode('utf-8')\n\
        print(json.dumps([[s.name, s.labels] for family in parse(text) for s in family.samples]))\n";
    let mut python = Command::new(installed("python3"))
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut input = python.stdin.take().expect("piped");
    input.write_all(text.as_bytes()).expect("written");
    drop(input);
    let output = python.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{text}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn names_of_programs_break_nothing() {
    let folder = Arc::new(Folder::new("agent-foreign-names"));
    let programs = std::path::PathBuf::from(folder.path("programs"));
    std::fs::create_dir(&programs).expect("made");
    let mut targets = BTreeMap::new();
    for (name, shown) in names() {
        let program = programs.join(OsStr::from_bytes(&name));
        copy_program(build_target("served", &[]), &program);
        targets.insert(shown, Target::start(&program, &[]));
    }
    let (pyroscope, collector) = (
        ScriptedStore::start(Vec::new()),
        ScriptedStore::start(Vec::new()),
    );
    let directory = folder.path("profiles");
    let odd = "x\\\"y\\\\z\\n\\u001b€";
    let configuration = format!(
        "[labels]\nodd = \"{odd}\"\nlong = \"{}\"\n[files]\ndirectory = \"{directory}\"\n\
         [pyroscope]\nurl = \"{}\"\n[otlp]\nurl = \"{}\"\n\
         [[rule]]\nname = \"web\"\nexecutable = \"{}/*\"\nmode = \"exact\"\n\
         send = [\"pyroscope\", \"otlp\", \"files\"]\ninterval = \"500ms\"\n",
        "€".repeat(4096 / 3),
        pyroscope.url(),
        collector.url(),
        programs.display()
    );
    let agent = Agent::start_with(&folder, &configuration, &["--experimental-otlp"]);
    for (shown, target) in &mut targets {
        agent.await_phase(target.pid(), "traced");
        let of_target = &agent.targets()[&u64::from(target.pid())];
        assert_eq!(of_target["process"], Value::from(shown.as_str()));
        ask(target, "l");
    }
    for target in targets.values() {
        agent.await_number(target.pid(), "live_bytes", 100_000);
    }
    let cut = |text: &String| text.chars().take(128).collect::<String>();
    let found: BTreeSet<(String, String)> = series(&agent.get("/metrics"))
        .into_iter()
        .inspect(|(name, _)| assert!(name.starts_with("memhook_"), "{name}"))
        .filter(|(name, _)| name == "memhook_target_live_bytes")
        .map(|(_, labels)| {
            assert_eq!(labels["service"], labels["process"]);
            (labels["process"].clone(), labels["pid"].clone())
        })
        .collect();
    let expected = targets.iter();
    let expected = expected.map(|(shown, target)| (cut(shown), target.pid().to_string()));
    assert_eq!(found, expected.collect());
    let shown: BTreeSet<String> = targets.keys().cloned().collect();
    until("every service has come to the stores", || {
        let services = pyroscope.profiles().into_iter().map(|mut p| {
            assert_eq!(p.labels["odd"], "x\"y\\z\n\x1b€");
            assert_eq!(p.labels["long"], "€".repeat(2048 / 3));
            p.labels.remove("service_name").expect("a service")
        });
        let requests = collector.requests();
        let attributes = requests.iter().map(|request| {
            let mut labels = otlp::read_gzipped(&request.body).labels;
            assert_eq!(labels["service.name"], labels["process.executable.name"]);
            assert_eq!(labels["odd"], "x\"y\\z\n\x1b€");
            assert_eq!(labels["long"], "€".repeat(2048 / 3));
            labels.remove("service.name").expect("a service")
        });
        services.collect::<BTreeSet<_>>() == shown && attributes.collect::<BTreeSet<_>>() == shown
    });
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    for entry in std::fs::read_dir(&directory).expect("there").flatten() {
        let name = entry.file_name().into_string().expect("text");
        assert!(name.chars().all(is_plain) && name.len() < 160, "{name}");
    }
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.chars().all(|c| c == '\n' || !c.is_control()),
        "{said:?}"
    );
    for (_, target) in targets {
        expect_untouched(target.pid());
        assert!(target.finish().success());
    }
}
