//! `attach --leaks`: unreachable blocks, with call stacks if they were traced.

use memhook_tests::programs::{Client, Folder, installed, installed_library, server};
use memhook_tests::{Attacher, Target, build_target};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build_target("lost_while_traced", &[]))
}

/// Blocks, bytes, held blocks and held bytes, by the program's functions on the stack and the
/// allocating function.
type Found = BTreeMap<(String, String), [u64; 4]>;

fn found(report: &Value) -> Found {
    let mut found = Found::new();
    for site in report["leaks"]["sites"].as_array().expect("sites") {
        let frames = site["stack"].as_array().expect("a stack").iter();
        let names = frames.filter_map(|f| f["function"].as_str()?.split('(').next());
        let mut own = names.filter(|n| n.starts_with("lose_") || n.starts_with("keep_"));
        let name = own.next_back().unwrap_or("").to_owned();
        let kind = site["kind"].as_str().unwrap().to_owned();
        let numbers = ["blocks", "bytes", "held_blocks", "held_bytes"];
        let numbers = numbers.map(|n| site[n].as_u64().unwrap());
        let sum = found.entry((name, kind)).or_default();
        for (sum, number) in sum.iter_mut().zip(numbers) {
            *sum += number;
        }
    }
    found
}

fn trace(target: &mut Target) -> Value {
    let attacher = Attacher::start(target, &["--leaks"]);
    target.go();
    target.expect("done");
    attacher.finish()
}

#[test]
fn exactly_what_was_lost() {
    let mut target = Target::start(program(), &[]);
    let report = trace(&mut target);
    assert!(target.finish().success());
    let leak =
        |name: &str, kind: &str, numbers: [u64; 4]| ((name.to_owned(), kind.to_owned()), numbers);
    let expected = Found::from([
        // Blocks from before the attach: usable bytes, no stack.
        leak("", "an unknown caller", [8, 7 * 104 + 40, 0, 0]),
        leak("lose_alone", "malloc", [2000, 2000 * 72, 0, 0]),
        leak("lose_list", "new", [1, 16, 39 + 40, 39 * 16 + 40 * 30]),
        leak("lose_pairs", "new", [5, 5 * 128, 5, 5 * 128]),
    ]);
    assert_eq!(found(&report), expected, "{report:#}");
    let totals = &report["leaks"]["totals"];
    assert_eq!(totals["leaked_blocks"], 8 + 2000 + 80 + 10, "{totals}");
    assert_eq!(totals["direct_blocks"], 8 + 2000 + 1 + 5, "{totals}");
    assert!(totals["reachable_blocks"].as_u64() >= Some(400), "{totals}");
    assert_eq!(report["leaks"]["gaps"], serde_json::json!([]));
    assert_eq!(report["leaks"]["snapshot"]["method"], "precopy");
}

/// Checks that memhook-rs does not make a copy that would take too long, and that the report names
/// the option that allows it.
#[test]
fn a_hold_that_is_too_long_for_a_copy_has_a_remedy() {
    let mut target = Target::start(program(), &[]);
    let attacher = Attacher::start(&target, &["--leaks", "--max-hold", "0.01ms"]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    let gaps = report["leaks"]["gaps"].to_string();
    assert!(gaps.contains("could not be copied"), "{gaps}");
    assert!(gaps.contains("--max-hold"), "{gaps}");
    assert!(report["leaks"]["snapshot"].is_null(), "{report}");
}

/// Checks that jemalloc's heap is dissected like glibc's, and agrees with the trace.
#[test]
fn blocks_of_another_allocator() {
    let library = installed_library("libjemalloc.so.2");
    let mut target = Target::run(Command::new(program()).env("LD_PRELOAD", library));
    let report = trace(&mut target);
    assert!(target.finish().success());
    let found = found(&report);
    let unknown = |(name, kind): &(String, String)| name.is_empty() && kind == "an unknown caller";
    assert!(
        found
            .keys()
            .all(|key| key.0.starts_with("lose_") || unknown(key)),
        "{report:#}"
    );
    // Blocks from before the attach.
    let earlier = found.iter().find(|(key, _)| unknown(key));
    assert_eq!(earlier.map(|(_, numbers)| numbers[0]), Some(8));
    let alone = found[&("lose_alone".to_owned(), "malloc".to_owned())];
    assert_eq!(alone[..2], [2000, 2000 * 72]);
    let gaps = report["leaks"]["gaps"].to_string();
    assert!(!gaps.contains("are known only from the trace"), "{gaps}");
}

/// The sanitizer's shadow memory takes terabytes of addresses, and its allocator is not known.
/// Blocks that were lost during the trace are found nevertheless.
#[test]
fn a_program_with_the_address_sanitizer() {
    let program = build_target("lost_while_traced", &["-fsanitize=address"]);
    // The sanitizer would report the planted leaks itself, and end the program with an error.
    let options = ("ASAN_OPTIONS", "detect_leaks=0");
    let mut target = Target::run(Command::new(program).env(options.0, options.1));
    let report = trace(&mut target);
    assert!(target.finish().success());
    let lost: BTreeMap<String, u64> = found(&report)
        .into_iter()
        .map(|((name, _), [blocks, _, held, _])| (name, blocks + held))
        .collect();
    let expected = [("lose_alone", 2000), ("lose_list", 80), ("lose_pairs", 10)];
    let expected = expected.map(|(name, blocks)| (name.to_owned(), blocks));
    assert_eq!(lost, BTreeMap::from(expected), "{report:#}");
    let gaps = report["leaks"]["gaps"].to_string();
    assert!(gaps.contains("are known only from the trace"), "{gaps}");
}

#[test]
fn without_a_process_there_is_no_search() {
    let mut target = Target::start(program(), &[]);
    let attacher = Attacher::start(&target, &["--leaks"]);
    target.go();
    target.expect("done");
    assert!(target.finish().success());
    let report = attacher.last_report();
    assert_eq!(report["leaks"]["snapshot"], Value::Null);
    let gaps = report["leaks"]["gaps"].to_string();
    assert!(gaps.contains("the process ended before"), "{gaps}");
}

/// Checks that Debian's redis on jemalloc creates and removes keys, lists and hashes without a leak
/// during the trace.
#[test]
fn redis_loses_nothing() {
    let folder = Folder::new("redis-leaks");
    let socket = folder.path("socket");
    let mut redis = Command::new(installed("redis-server"));
    redis.args(["--port", "0", "--save", "", "--appendonly", "no"]);
    redis.args(["--loglevel", "warning", "--unixsocket", &socket]);
    let redis = server(&mut redis, &socket);
    let mut client = Client::connect(&socket);
    let mut change = |from: u32, to: u32| {
        for i in from..to {
            client.redis(&format!("SET key:{i} value-of-some-length-{i}"));
            client.redis(&format!("RPUSH list:{} element-{i}", i % 50));
            client.redis(&format!("HSET hash:{} field:{i} {i}", i % 70));
            if i % 3 == 0 {
                client.redis(&format!("DEL key:{}", i / 2));
            }
        }
    };
    change(0, 1000);
    let attacher = Attacher::start(&redis, &["--leaks"]);
    change(1000, 4000);
    let report = attacher.finish();
    let leaks = &report["leaks"];
    assert_eq!(leaks["totals"]["leaked_blocks"], 0, "{leaks:#}");
    let reachable = leaks["totals"]["reachable_blocks"].as_u64();
    assert!(reachable > Some(3000), "{leaks:#}");
    client.send("SHUTDOWN NOSAVE\r\n");
    assert!(redis.finish().success());
}
