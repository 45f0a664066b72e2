//! Heaps of jemalloc, tcmalloc and mimalloc: their own statistics, and the memory that they return
//! to the system.

use memhook_tests::programs::{Client, Folder, installed_library, loaded_redis};
use memhook_tests::{JsonSchema, Target, build_target, run};
use serde_json::Value;
use std::process::Command;

const MIB: u64 = 1 << 20;
const JEMALLOC: &str = "libjemalloc.so.2";
const TCMALLOC: &str = "libtcmalloc_minimal.so.4";
const MIMALLOC: &str = "libmimalloc.so.2";
/// Options with a limit that is sufficient on a busy machine.
const SLOW: [&str; 2] = ["--max-hold", "20s"];

fn json(command: &str, schema: &str, pid: u32, options: &[&str]) -> Value {
    let pid = pid.to_string();
    let (code, out, err) = run(&[&[command, &pid, "--json"], options].concat());
    assert_eq!(code, 0, "{command} {options:?}: {err}");
    let found: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
    JsonSchema::load(schema).check(&found);
    found
}

fn rss(pid: u32) -> Value {
    json("rss", "rss-1", pid, &SLOW)
}

fn trim(pid: u32, options: &[&str]) -> Value {
    json("trim", "trim-1", pid, &[&SLOW[..], options].concat())
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

fn part(report: &Value, name: &str) -> u64 {
    let parts = report["parts"].as_array().expect("parts");
    let part = parts.iter().find(|part| part["name"] == name);
    part.map_or(0, |part| number(&part["bytes"]))
}

/// Checks that the parts add up, and that no part is unknown.
fn check_sum(report: &Value) {
    let parts = report["parts"].as_array().expect("parts").iter();
    let sum: u64 = parts.map(|part| number(&part["bytes"])).sum();
    let all = number(&report["rss_bytes"]);
    assert_eq!(sum, all, "{report:#}");
    assert!(part(report, "unknown") <= all / 100, "{report:#}");
}

fn started(program: &str, library: &str, arguments: &[&str]) -> Target {
    let program = build_target(program, &[]);
    let mut command = Command::new(program);
    Target::run(
        command
            .args(arguments)
            .env("LD_PRELOAD", installed_library(library)),
    )
}

fn fell(done: &Value) -> u64 {
    number(&done["rss_before_bytes"]).saturating_sub(number(&done["rss_after_bytes"]))
}

/// Checks these allocators after a burst, when most of their memory is free.
#[test]
fn what_they_say_is_in_the_account_and_what_was_predicted_comes_back() {
    for (library, name) in [(JEMALLOC, "jemalloc"), (TCMALLOC, "tcmalloc")] {
        let mut target = started("pinned_pages", library, &["2", "untrimmed"]);
        let report = rss(target.pid());
        check_sum(&report);
        assert_eq!(report["allocator"]["name"], name, "{report:#}");
        assert_eq!(part(&report, "heap of another allocator, and mappings"), 0);
        // The live heap consists of 1,500 pins of 72 bytes, 375 blocks of 120 bytes, their lists,
        // and rounding.
        let live = part(&report, "live heap");
        assert!(live > 150_000 && live < 8 * MIB, "{report:#}");
        let free = part(&report, "free inside the allocator") + part(&report, "fragmentation");
        assert!(free > 60 * MIB, "{report:#}");
        assert!(part(&report, "mappings") < 8 * MIB, "{report:#}");
        assert!(part(&report, "allocator overhead") > 0, "{report:#}");

        let dry = trim(target.pid(), &["--dry-run"]);
        let predicted = number(&dry["predicted_bytes"]);
        assert!(predicted > 30 * MIB, "{dry:#}");
        assert_eq!(predicted, number(&report["trim_bytes"]), "{dry:#}");
        assert_eq!(
            (&dry["allocator"], &dry["rss_after_bytes"]),
            (&name.into(), &Value::Null)
        );
        let done = trim(target.pid(), &[]);
        println!("{name}: {predicted} predicted, {} came back", fell(&done));
        assert!(
            predicted.abs_diff(fell(&done)) <= predicted / 20,
            "{done:#}"
        );
        assert!(done["held_ms"].as_f64() >= done["call_ms"].as_f64());
        let rest = trim(target.pid(), &["--dry-run"]);
        assert!(
            number(&rest["predicted_bytes"]) < predicted / 20,
            "{rest:#}"
        );
        check_sum(&rss(target.pid()));

        // Even without a remote call, the heap is dissected.
        let alone = json("rss", "rss-1", target.pid(), &["--no-calls"]);
        check_sum(&alone);
        assert!(alone["allocator"].is_null());
        let other = part(&alone, "heap of another allocator, and mappings");
        assert_eq!(other, 0, "{alone:#}");
        assert!(part(&alone, "live heap") < 8 * MIB, "{alone:#}");
        // memhook-rs makes no call that could take too long.
        let pid = target.pid().to_string();
        let (code, out, err) = run(&["trim", &pid, "--max-hold", "0.001ms"]);
        let is_refused = code == 2 && out.is_empty() && err.contains("ms allows it");
        assert!(is_refused && err.lines().count() == 1, "{code} {out}{err}");
        target.go();
        target.expect("freed");
        assert!(target.finish().success());
    }
}

/// Checks mimalloc, which has no statistics that separate live from free memory. memhook-rs walks
/// its heap instead, and does not predict the returned amount.
#[test]
fn mimalloc_collects() {
    let mut target = started("pinned_pages", MIMALLOC, &["0", "untrimmed"]);
    let report = rss(target.pid());
    check_sum(&report);
    assert!(report["allocator"].is_null());
    assert_eq!(part(&report, "heap of another allocator, and mappings"), 0);
    assert!(part(&report, "live heap") < 8 * MIB, "{report:#}");
    let free = part(&report, "free inside the allocator") + part(&report, "fragmentation");
    assert!(free > 10 * MIB, "{report:#}");
    let dry = trim(target.pid(), &["--dry-run"]);
    assert_eq!(
        (&dry["allocator"], &dry["predicted_bytes"]),
        (&"mimalloc".into(), &Value::Null)
    );
    let done = trim(target.pid(), &[]);
    println!("mimalloc: {} came back", fell(&done));
    assert!(fell(&done) > 4 * MIB, "{done:#}");
    target.go();
    target.expect("freed");
    assert!(target.finish().success());
}

/// Checks remote calls while threads that allocate nonstop keep taking the allocator's locks.
#[test]
fn busy_programs_go_on() {
    for library in [JEMALLOC, TCMALLOC, MIMALLOC] {
        let target = started("hammer", library, &[]);
        for _ in 0..3 {
            check_sum(&rss(target.pid()));
            let done = trim(target.pid(), &[]);
            assert!(done["held_ms"].as_f64() > Some(0.0), "{done:#}");
        }
        assert!(
            target.finish().success(),
            "{library}: it has checked all its blocks"
        );
    }
}

#[test]
fn redis_after_a_churn_of_sizes() {
    let folder = Folder::new("allocators-redis");
    let (redis, load, socket) = loaded_redis(&folder);
    drop(load);
    let mut client = Client::connect(&socket);
    let script = "for i=1,40000 do redis.call('SET', 'k'..i, string.rep('x', 200 + i * 7919 % 3000)) end \
                  for i=1,40000 do if i % 16 > 0 then redis.call('DEL', 'k'..i) end end return 1";
    assert_eq!(client.redis(&format!("EVAL \"{script}\" 0")), ":1");
    let report = rss(redis.pid());
    check_sum(&report);
    assert_eq!(report["allocator"]["name"], "jemalloc", "{report:#}");
    assert!(part(&report, "live heap") > 4 * MIB, "{report:#}");
    assert!(part(&report, "fragmentation") > MIB, "{report:#}");
    let done = trim(redis.pid(), &[]);
    let (predicted, fell) = (number(&done["predicted_bytes"]), fell(&done));
    // The server continues its own work during the command.
    assert!(predicted.abs_diff(fell) <= predicted / 10 + MIB, "{done:#}");
    assert_eq!(client.redis("EXISTS k16 k17"), ":1");
}
