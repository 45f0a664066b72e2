//! Breakdown of resident memory. The tests compare the breakdown of programs with known parts
//! against the kernel's totals, and pinned memory against the amount that the allocator returns
//! when the pins are freed.

use memhook_tests::programs::{Folder, installed};
use memhook_tests::releases::Release;
use memhook_tests::{Attacher, JsonSchema, Target, build_target, run};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// Returns the output of `memhook-rs rss` for a process.
fn rss(pid: u32, options: &[&str]) -> Value {
    let pid = pid.to_string();
    let (code, out, err) = run(&[&["rss", &pid, "--json"], options].concat());
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

fn part(report: &Value, name: &str) -> u64 {
    let parts = report["parts"].as_array().expect("parts");
    let part = parts.iter().find(|part| part["name"] == name);
    number(&part.unwrap_or_else(|| panic!("no {name}: {report:#}"))["bytes"])
}

/// Returns the bytes of an optional part.
fn part_if_known(report: &Value, name: &str) -> u64 {
    let parts = report["parts"].as_array().expect("parts");
    let part = parts.iter().find(|part| part["name"] == name);
    part.map_or(0, |part| number(&part["bytes"]))
}

fn sum_of_parts(report: &Value) -> u64 {
    let parts = report["parts"].as_array().expect("parts");
    parts.iter().map(|part| number(&part["bytes"])).sum()
}

/// Returns the resident bytes of a stopped process.
fn resident(pid: u32) -> u64 {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(path).expect("it lives");
    let line = text.lines().find(|line| line.starts_with("Rss:"));
    let digits = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    digits
        .and_then(|n| n.parse::<u64>().ok())
        .expect("a number")
        * 1024
}

/// Returns true if a value is at least the planted value, and exceeds it by at most `more`.
fn is_near(found: u64, planted: u64, more: u64) -> bool {
    (planted..=planted + more).contains(&found)
}

#[test]
fn the_parts_are_those_that_were_planted() {
    let folder = Folder::new("resident-parts");
    let file = folder.path("mapped");
    std::fs::write(&file, vec![7; 3 * MIB as usize]).expect("written");
    let mut programs = vec![build_target("resident_parts", &[])];
    programs.extend(
        Release::all()
            .iter()
            .map(|r| r.build_target("resident_parts", &[])),
    );
    for program in programs {
        let target = Target::start(&program, &[&file]);
        let report = rss(target.pid(), &["-T", "1000", "--max-hold", "20s"]);
        let expected = resident(target.pid());
        assert_eq!(report["schema"], "memhook-rs/rss/1");
        let all = number(&report["rss_bytes"]);
        assert!(
            all.abs_diff(expected) <= 64 << 10,
            "{all}, and the kernel says {expected}"
        );
        assert_eq!(sum_of_parts(&report), all, "{report:#}");
        assert!(part(&report, "unknown") <= all / 100, "{report:#}");

        // The program has 4 + 1 + 8 + 3 * 2 MiB live, and libraries have more.
        let live = 19 * MIB;
        assert!(is_near(part(&report, "live heap"), live, MIB), "{report:#}");
        // All free blocks of the sparse part are on pages with live blocks.
        let sparse = part(&report, "fragmentation");
        assert!(is_near(sparse, 3 * MIB, MIB / 4), "{report:#}");
        assert!(
            is_near(part(&report, "stacks"), 3 * MIB, MIB / 2),
            "{report:#}"
        );
        assert!(
            is_near(part(&report, "shared memory"), 5 * MIB, 0),
            "{report:#}"
        );
        assert!(
            is_near(part(&report, "mappings"), 10 * MIB, MIB),
            "{report:#}"
        );
        let holdings = report["holdings"].as_array().expect("holdings");
        let named = |name: &str| {
            let found = holdings.iter().find(|h| h["name"] == name);
            found.map_or(0, |h| number(&h["bytes"]))
        };
        for worker in ["thread worker-1", "thread worker-2", "thread worker-3"] {
            assert!(is_near(named(worker), MIB, MIB / 8), "{worker}: {report:#}");
        }
        assert_eq!(named(&file), 3 * MIB, "{report:#}");
        // Huge pages provided by the kernel count as huge pages.
        let huge = number(&report["huge_page_bytes"]);
        assert!(
            huge <= 4 * MIB + 2 * MIB && huge.is_multiple_of(2 * MIB),
            "{report:#}"
        );
        let arenas = report["arenas"].as_array().expect("arenas");
        assert_eq!(arenas.len(), 4, "{report:#}");
        for arena in &arenas[1..] {
            assert!(
                is_near(number(&arena["live_bytes"]), 2 * MIB, MIB / 8),
                "{arena:#}"
            );
        }
        assert!(target.finish().success());
    }
}

/// Returns the resident bytes of each mapping, as counted by the kernel page by page.
fn by_mapping(pid: u32) -> Vec<(String, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("it lives");
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (first, second) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        if first == "Rss:" {
            let kibibytes: u64 = second.parse().expect("a number");
            if let Some((_, bytes)) = found.last_mut() {
                *bytes = kibibytes * 1024;
            }
        } else if first.contains('-') {
            found.push((first.to_owned(), 0));
        }
    }
    found
}

/// Checks that, for each mapping, what the page tables show agrees with the kernel's page-by-page
/// count, whatever the mapping contains.
#[test]
fn each_mapping_holds_what_the_kernel_counts() {
    let target = Target::start(&build_target("resident_pages", &[]), &[]);
    let report = rss(target.pid(), &["-T", "1000", "--max-hold", "20s"]);
    let all = number(&report["rss_bytes"]);
    let expected = resident(target.pid());
    assert!(
        all.abs_diff(expected) <= 64 << 10,
        "{all}, and the kernel says {expected}"
    );
    assert_eq!(sum_of_parts(&report), all, "{report:#}");
    let holdings = report["holdings"].as_array().expect("holdings");
    let mut named = 0;
    for (range, bytes) in by_mapping(target.pid()) {
        let (start, end) = range.split_once('-').expect("a range");
        let name = format!("anonymous, 0x{start}-0x{end}");
        let held = holdings.iter().find(|holding| holding["name"] == name);
        if let Some(held) = held {
            assert_eq!(number(&held["bytes"]), bytes, "{range}");
            named += 1;
        }
    }
    // The test expects the mappings with every other page, those with huge pages, the two
    // remainders, and the inaccessible mapping.
    assert!(named >= 7 + 3, "{report:#}");
    let huge = number(&report["huge_page_bytes"]);
    assert!(
        huge <= 6 * MIB && huge.is_multiple_of(2 * MIB),
        "{report:#}"
    );
    assert!(target.finish().success());
}

/// Checks that the allocator returns the pinned memory when the pins are freed and the heap is
/// trimmed.
#[test]
fn pins_hold_what_comes_back_without_them() {
    let here = build_target("pinned_pages", &[]);
    let mut programs = vec![("here".to_owned(), here)];
    for release in Release::all() {
        let name = format!("glibc 2.{}", release.glibc_minor());
        programs.push((name, release.build_target("pinned_pages", &[])));
    }
    for (name, program) in &programs {
        for options in [
            ["0", "trimmed"],
            ["4", "trimmed"],
            ["0", "untrimmed"],
            ["4", "untrimmed"],
        ] {
            check_pins(program, &options, name);
        }
    }
}

/// Checks that nothing is claimed about the heap or its pins if a hold would take too long, and that
/// a sufficient limit shows the pins.
#[test]
fn pins_are_not_known_within_too_short_a_hold() {
    let program = build_target("pinned_pages", &[]);
    let mut target = Target::run(Command::new(&program).args(["0", "trimmed"]));
    let pid = target.pid().to_string();
    let briefly = ["--max-hold", "0.001ms"];
    let report = rss(target.pid(), &briefly);
    assert_eq!(report["pins"], Value::Array(Vec::new()), "{report:#}");
    assert_eq!(part(&report, "mappings"), 0, "{report:#}");
    assert!(part(&report, "heap and mappings") > MIB, "{report:#}");
    let (code, text, errors) = run(&[&["rss", &pid, "--pins"], &briefly[..]].concat());
    assert_eq!(code, 0, "{errors}");
    assert!(text.contains("Note: the heap is not split: "), "{text}");
    for claim in ["Pinned is", "gives back", "give back", "live heap"] {
        assert!(!text.contains(claim), "{claim}: {text}");
    }
    let attacher = Attacher::start(&target, &[&["--rss=pins"], &briefly[..]].concat());
    let traced = attacher.finish();
    assert_eq!(traced["rss"]["pins"], Value::Array(Vec::new()));
    assert!(traced["rss"]["notes"].to_string().contains("not split"));
    let enough = rss(target.pid(), &["--max-hold", "20s"]);
    assert_eq!(enough["pins"][0]["name"], "blocks of 72 bytes");
    target.go();
    target.expect("freed");
    assert!(target.finish().success());
}

fn check_pins(program: &Path, options: &[&str], name: &str) {
    let mut target = Target::run(Command::new(program).args(options));
    // The limit is sufficient on a busy machine.
    let report = rss(target.pid(), &["--max-hold", "20s"]);
    // Resident memory is measured after the copy, because the copy makes pages of the process's C
    // library resident.
    let before = resident(target.pid());
    let notes = report["notes"].to_string();
    assert!(!notes.contains("parse"), "{report:#}");
    let pins = report["pins"].as_array().expect("pins");
    let first = &pins[0];
    let threads: u64 = options[0].parse().expect("a number");
    assert_eq!(first["name"], "blocks of 72 bytes", "{pins:#?}");
    // Libraries also have blocks of this size.
    let planted = 500 * (threads + 1);
    assert!(
        is_near(number(&first["own_blocks"]), planted, 50),
        "{first:#}"
    );
    target.go();
    target.expect("freed");
    let fell = before - resident(target.pid());
    // A trim also returns free chunks between other blocks, which these pins do not retain.
    let elsewhere = number(&report["trim_bytes"]) - number(&first["trimmable_bytes"]);
    let predicted = number(&first["pinned_bytes"]) + elsewhere;
    println!("{name} {options:?}: {predicted} predicted, {fell} came back");
    assert!(
        predicted.abs_diff(fell) <= fell / 40,
        "{name} {options:?}: {predicted} predicted, {fell} returned: {first:#}"
    );
    assert!(target.finish().success());
}

/// Checks that pins have call stacks in a traced process, and that reports contain a breakdown that
/// needs no copy of the memory.
#[test]
fn what_pins_the_memory_of_a_traced_process() {
    let schema = JsonSchema::load("rss-1");
    let program = build_target("pinned_pages", &[]);
    let mut target = Target::run(Command::new(&program).args(["2", "trimmed", "traced"]));
    let options = ["--rss=pins"];
    let attacher = Attacher::start(&target, &options);
    target.go();
    target.expect("ready");
    let report = attacher.finish();
    let account = &report["rss"];
    schema.check(account);
    assert_eq!(sum_of_parts(account), number(&account["rss_bytes"]));
    let pins = account["pins"].as_array().expect("pins");
    let of_pins = |row: &&Value| {
        // The call of malloc in pin() is a tail call, so pin() has no frame.
        let frames = row["stack"].as_array().expect("a stack");
        let is_plant = frames.first().is_some_and(|f| f["function"] == "plant");
        is_plant && number(&row["own_bytes"]) == number(&row["own_blocks"]) * 72
    };
    // The threads and the main thread have different call stacks.
    let rows: Vec<&Value> = pins.iter().filter(of_pins).collect();
    assert_eq!(rows.len(), 2, "{pins:#?}");
    let sum = |name: &str| rows.iter().map(|row| number(&row[name])).sum::<u64>();
    assert_eq!((sum("own_blocks"), sum("own_bytes")), (1500, 1500 * 72));
    assert!(
        rows.iter().all(|row| row["oldest_ms"].is_u64()),
        "{rows:#?}"
    );
    let before = resident(target.pid());
    target.go();
    target.expect("freed");
    let fell = before - resident(target.pid());
    let predicted = sum("pinned_bytes");
    assert!(
        predicted.abs_diff(fell) <= fell / 20,
        "{predicted} predicted, {fell} came back"
    );
    assert!(target.finish().success());

    // Without pins, no thread is held; the live blocks come from the trace.
    let folder = Folder::new("resident-recorded");
    let recording = folder.path("run.mhk");
    let mut target = Target::run(Command::new(&program).args(["2", "trimmed", "traced"]));
    let attacher = Attacher::start(&target, &["--rss", "-o", &recording]);
    target.go();
    target.expect("ready");
    let expected = resident(target.pid());
    let report = attacher.finish();
    let account = &report["rss"];
    schema.check(account);
    let all = number(&account["rss_bytes"]);
    assert!(
        all.abs_diff(expected) <= expected / 100,
        "{all}, and the kernel says {expected}"
    );
    assert_eq!(sum_of_parts(account), all, "{account:#}");
    assert_eq!(
        part(account, "live heap"),
        number(&report["totals"]["live_bytes"])
    );
    let earlier = part_if_known(account, "live heap from before the attach");
    let rest = part(account, "rest of the allocator's memory");
    assert!(earlier + rest > 10 * MIB, "{account:#}");
    assert!(
        part(account, "unknown") == 0 && part(account, "stacks") > 0,
        "{account:#}"
    );
    assert!(account["snapshot"].is_null());
    // The recording contains the breakdown.
    let (code, out, err) = run(&["report", &recording, "--json"]);
    assert_eq!(code, 0, "{err}");
    let recorded: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(&recorded["rss"], account);
    JsonSchema::load("report-1").check(&recorded);
    let (_, out, _) = run(&["report", &recording]);
    assert!(out.contains("rest of the allocator's memory"), "{out}");
    // The census also contains the whole breakdown.
    let pid = target.pid().to_string();
    let (code, out, err) = run(&["scan", &pid, "--census", "--json", "--max-hold", "20s"]);
    assert_eq!(code, 0, "{err}");
    let census: Value = serde_json::from_str(&out).expect("JSON");
    JsonSchema::load("census-1").check(&census);
    schema.check(&census["rss"]);
    assert_eq!(
        sum_of_parts(&census["rss"]),
        number(&census["rss"]["rss_bytes"])
    );
    assert!(part(&census["rss"], "fragmentation") > MIB, "{census:#}");
    target.go();
    target.expect("freed");
    assert!(target.finish().success());
}

/// Checks a service whose blocks, and the heaps that contain them, are mostly older than the trace.
#[test]
fn heaps_of_before_the_attach_are_the_allocators() {
    let program = build_target("pinned_pages", &[]);
    let target = Target::run(Command::new(&program).args(["3", "untrimmed"]));
    let split = rss(target.pid(), &["--max-hold", "20s"]);
    let report = Attacher::start(&target, &["--rss"]).finish();
    let account = &report["rss"];
    assert_eq!(sum_of_parts(account), number(&account["rss_bytes"]));
    let names = [
        "live heap",
        "live heap from before the attach",
        "rest of the allocator's memory",
    ];
    let in_heaps: u64 = names.iter().map(|name| part_if_known(account, name)).sum();
    let parts = ["live heap", "allocator overhead"];
    let parts = parts
        .iter()
        .chain(&["free inside the allocator", "fragmentation"]);
    let expected: u64 = parts.map(|name| part(&split, name)).sum();
    assert!(expected > 30 * MIB, "{split:#}");
    assert!(
        in_heaps.abs_diff(expected) <= expected / 50,
        "{in_heaps} in heaps, {expected} when they are split: {account:#}"
    );
    assert!(target.finish().success());
}

/// Checks that the breakdown of a stopped process is correct, and states which parts are not split
/// up.
fn check_sums(pid: u32, what: &str) -> Value {
    let before = resident(pid);
    let report = rss(pid, &["--max-hold", "20s"]);
    let (all, after) = (number(&report["rss_bytes"]), resident(pid));
    // A server sometimes returns memory to the system.
    let (least, most) = (before.min(after), before.max(after));
    assert!(
        all >= least - least / 100 && all <= most + most / 100,
        "{what}: {all}, and the kernel says {before} and {after}"
    );
    assert_eq!(sum_of_parts(&report), all, "{what}: {report:#}");
    assert!(part(&report, "unknown") <= all / 100, "{what}: {report:#}");
    report
}

/// Reads lines up to the first line with this prefix.
fn wait_for(target: &mut Target, beginning: &str) {
    while !target.expect("").starts_with(beginning) {}
}

#[test]
fn a_python_program() {
    let script = "import sys\nx = [bytes(1000) for _ in range(50000)]\ny = x[::50]\ndel x\n\
                  print('ready', flush=True)\nsys.stdin.read()";
    let mut command = Command::new(installed("python3"));
    let target = Target::run(command.args(["-c", script]));
    let report = check_sums(target.pid(), "python3");
    let first = &report["pins"][0];
    // One in fifty blocks of 1,033 bytes pins most of 50 MiB.
    assert!(number(&first["own_blocks"]) >= 1000, "{first:#}");
    assert!(number(&first["pinned_bytes"]) > 40 * MIB, "{first:#}");
    assert!(number(&first["own_bytes"]) < 3 * MIB, "{first:#}");
    assert!(number(&report["trim_bytes"]) > 35 * MIB, "{report:#}");
    let _ = target.finish();
}

#[test]
fn a_java_program() {
    let folder = Folder::new("rss-java");
    let source = folder.path("Waits.java");
    let program = "public class Waits { public static void main(String[] a) throws Exception {\n\
                   byte[][] kept = new byte[64][]; for (int i = 0; i < 64; i++) kept[i] = new byte[1 << 20];\n\
                   System.out.println(\"ready\"); System.in.read(); } }";
    std::fs::write(&source, program).expect("written");
    // java needs the compiler to run a source file.
    installed("javac");
    let mut command = Command::new(installed("java"));
    let mut target = Target::silent(command.args(["-Xmx256m", &source]));
    wait_for(&mut target, "ready");
    let report = check_sums(target.pid(), "java");
    assert!(part(&report, "mappings") > 64 * MIB, "{report:#}");
    assert!(part(&report, "live heap") > MIB, "{report:#}");
    let holdings = report["holdings"].as_array().expect("holdings");
    let is_thread = |h: &&Value| h["part"] == "stacks";
    assert!(holdings.iter().any(|h| is_thread(&h)), "{report:#}");
    let _ = target.finish();
}
