//! Reads and writes that an instrumented program reports, from compiling the program to scoring its
//! sites.

use memhook_recording::{Recording, ScoreOptions};
use memhook_tests::patience::TRIES;
use memhook_tests::programs::{Folder, installed};
use memhook_tests::{
    Attacher, JsonSchema, MemoryBox, Target, access_runtime, build_target, build_telling,
    has_program, not_run, run,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

fn json(arguments: &[&str]) -> Value {
    let (code, out, err) = run(arguments);
    assert_eq!(code, 0, "{arguments:?}: {err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {out}"))
}

fn report(file: &str) -> Value {
    let report = json(&["report", file, "--scores", "--json", "-T", "1000"]);
    JsonSchema::load("report-1").check(&report);
    report
}

/// Returns usage and useful lifetime of the site in a function of the program.
fn scores(report: &Value, function: &str) -> (Value, Value) {
    let sites = report["sites"].as_array().expect("sites").iter();
    let is_of = |site: &&Value| {
        let mut frames = site["stack"].as_array().expect("frames").iter();
        frames.any(|frame| {
            let name = frame["function"].as_str().unwrap_or_default();
            name.trim_end_matches("()") == function
        })
    };
    let found: Vec<&Value> = sites.filter(is_of).collect();
    let [site] = found[..] else {
        panic!("{} sites of {function}: {report}", found.len());
    };
    let of = &site["scores"];
    (of["usage"].clone(), of["useful_lifetime"].clone())
}

/// Checks the reads and writes of `accessed.cc`, which are known to the byte.
fn check_accessed(report: &Value) {
    for (function, usage) in [
        ("whole", 1.0),
        ("part", 0.25),
        ("unread", 0.0),
        ("unwritten", 0.0),
        ("untouched", 0.0),
        ("live", 0.5),
        ("pausing", 1.0),
    ] {
        let (is, useful) = scores(report, function);
        assert_eq!(is.as_f64(), Some(usage), "{function}");
        let useful = useful.as_f64().expect("known");
        let is_touched = function != "untouched";
        assert_eq!(useful > 0.0, is_touched, "{function}: {useful}");
        assert!(useful <= 1.0, "{function}: {useful}");
    }
    assert_eq!(report["scores"]["access_source"], "complete");
    let known = report["scores"]["accessed_sites"].as_u64();
    assert_eq!(known, Some(7), "{report}");
    // The geometric mean of numbers that include 0 is 0.
    assert_eq!(report["scores"]["usage"].as_f64(), Some(0.0));
}

/// Returns true if the report shows that the pauses before the first access and after the last
/// access are as long as the pause between them. A suspension of the program between the accesses
/// would hide that.
fn shows_pauses(report: &Value) -> bool {
    let (_, useful) = scores(report, "pausing");
    useful.as_f64() < Some(0.95)
}

/// Returns the installed compilers.
fn compilers() -> Vec<&'static str> {
    let all = ["g++", "clang++"].into_iter();
    all.filter(|compiler| has_program(compiler)).collect()
}

#[test]
fn usage_is_exact_with_each_compiler() {
    let folder = Folder::new("accesses");
    for compiler in compilers() {
        let program = build_telling(compiler, "accessed", &[]);
        let file = folder.path(&format!("{compiler}.mhk"));
        let program = program.to_str().expect("a plain path");
        let recorded = || {
            let (code, _, err) = run(&["run", "--force", "-o", &file, "--", program]);
            assert_eq!(code, 0, "{err}");
            let report = report(&file);
            check_accessed(&report);
            report
        };
        let mut tries = (0..TRIES).map(|_| recorded());
        let report = tries.find(shows_pauses).expect("pauses are seen");
        let (code, text, err) = run(&["report", &file, "--scores"]);
        assert_eq!(code, 0, "{err}");
        assert!(text.contains("usage 0.25, useful lifetime 0."), "{text}");
        if report["scores"]["sites"] != report["scores"]["accessed_sites"] {
            assert!(text.contains("modules that do not report"), "{text}");
        }
        // The geometric mean is 0, which violates every limit above 0.
        for (limit, expected) in [("usage-score < 0.01", 1), ("usage-score < 0", 0)] {
            let (code, out, err) = run(&["gate", "--fail-on", limit, &file]);
            assert_eq!(code, expected, "{out}{err}");
        }
    }
}

/// Blocks, bytes, reads and writes of each site, by the size of its blocks.
type BySize = BTreeMap<u64, [u64; 4]>;

/// valgrind's dhat counts the accesses of instructions in bytes, so the program accesses single
/// bytes.
#[test]
fn counts_are_those_of_dhat() {
    let folder = Folder::new("accesses_dhat");
    let program = build_telling("g++", "accessed", &[]);
    let program = program.to_str().expect("a plain path");
    let found = folder.path("dhat.json");
    let output = Command::new(installed("valgrind"))
        .args([
            "-q",
            "--tool=dhat",
            &format!("--dhat-out-file={found}"),
            program,
        ])
        .stdin(Stdio::null())
        .output()
        .expect("valgrind");
    assert!(output.status.success(), "{output:?}");
    let dhat = std::fs::read_to_string(&found).expect("a file of dhat");
    let dhat: Value = serde_json::from_str(&dhat).expect("JSON");
    let mut by_dhat = BySize::new();
    for site in dhat["pps"].as_array().expect("sites") {
        let [blocks, bytes, reads, writes] =
            ["tbk", "tb", "rb", "wb"].map(|name| site[name].as_u64().expect("a number"));
        by_dhat.insert(bytes / blocks, [blocks, bytes, reads, writes]);
    }
    let file = folder.path("run.mhk");
    let (code, _, err) = run(&["run", "-o", &file, "--", program]);
    assert_eq!(code, 0, "{err}");
    let recording = Recording::open(Path::new(&file)).expect("a recording");
    let activity = recording.scored_activity(None, None, 1, Some(&ScoreOptions::default()));
    let scored = activity.expect("whole").scored.expect("asked for");
    let ours = scored.sites.iter().filter_map(|site| {
        let sums = site.accesses.as_ref()?;
        Some((
            site.bytes / site.chunks,
            [site.chunks, site.bytes, sums.reads, sums.writes],
        ))
    });
    let ours: BySize = ours.collect();
    for (size, numbers) in &ours {
        assert_eq!(
            by_dhat.get(size),
            Some(numbers),
            "blocks of {size} bytes: {by_dhat:?}"
        );
    }
    assert_eq!(ours.len(), 7, "{ours:?}");
}

#[test]
fn attach_begins_and_ends_it_in_a_running_program() {
    let folder = Folder::new("accesses_attached");
    let program = build_telling("g++", "accessed", &["-DTWICE"]);
    let mut target = Target::start(&program, &[]);
    for _ in 0..2 {
        let file = folder.path("run.mhk");
        let attacher = Attacher::start(&target, &["-o", &file, "--force", "--scores"]);
        target.go();
        target.expect("done");
        let last = attacher.finish();
        let in_report = last["scores"]["access_source"].as_str();
        assert_eq!(in_report, Some("complete"), "{last}");
        check_accessed(&report(&file));
    }
    // The tracer has detached.
    assert!(target.finish().success());
}

#[test]
fn what_is_not_told_is_refused_in_one_line() {
    let folder = Folder::new("accesses_refused");
    let silent = build_target("scores", &["-O1", "-g"]);
    let silent = silent.to_str().expect("a plain path");
    let file = folder.path("run.mhk");
    let (code, _, err) = run(&["run", "-o", &file, "--", silent]);
    assert_eq!(code, 0, "{err}");
    let refused = |arguments: &[&str], words: &str| {
        let (code, _, err) = run(arguments);
        assert_eq!(code, 2, "{arguments:?}: {err}");
        assert!(err.contains(words) && err.contains("sdk"), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    };
    refused(
        &["gate", "--fail-on", "usage-score < .5", &file],
        "which bytes are read and written",
    );
    let no_callbacks = "does not report its reads and writes";
    refused(&["run", "--access", "on", "--", silent], no_callbacks);
    refused(
        &["gate", "--fail-on", "usage-score < .5", "--", silent],
        no_callbacks,
    );
    // `sdk` does not overwrite other files.
    let object = access_runtime().join("memhook_access.o");
    let directory = folder.path("mine");
    std::fs::create_dir(&directory).expect("a directory");
    std::fs::write(format!("{directory}/memhook_access.o"), "mine").expect("a file");
    let (code, _, err) = run(&["sdk", "-o", &directory]);
    assert_eq!((code, err.lines().count()), (2, 1), "{err}");
    let (code, _, err) = run(&["sdk", "-o", &directory, "--force"]);
    assert_eq!(code, 0, "{err}");
    let read = |path: &std::path::Path| std::fs::read(path).expect("readable");
    assert_eq!(
        read(&object),
        read(format!("{directory}/memhook_access.o").as_ref())
    );
}

/// Returns the planted function of a stack.
fn planted(stack: &Value) -> &str {
    const PLANTED: [&str; 13] = [
        "unread",
        "unwritten",
        "untouched",
        "beginning",
        "early",
        "late",
        "shared_line",
        "shared_block",
        "plain",
        "most",
        "small",
        "moved",
        "forked",
    ];
    let frames = stack.as_array().expect("frames").iter();
    let mut names = frames.filter_map(|frame| frame["function"].as_str());
    let found = names.find_map(|name| {
        let name = name.trim_end_matches("()");
        PLANTED.into_iter().find(|planted| *planted == name)
    });
    found.unwrap_or("other")
}

#[test]
fn each_planted_pattern_is_found_and_no_other() {
    let folder = Folder::new("accessed_ways");
    let file = folder.path("run.mhk");
    let program = build_telling("g++", "accessed_ways", &[]);
    let program = program.to_str().expect("a plain path");
    let expected = [
        ("beginning", "over_allocated"),
        ("early", "allocated_early"),
        ("forked", "over_allocated"),
        ("late", "held_long"),
        ("shared_block", "several_threads"),
        ("shared_line", "false_sharing"),
        ("unread", "never_read"),
        ("untouched", "never_touched"),
        ("unwritten", "never_written"),
    ];
    let recorded = || {
        let (code, _, err) = run(&["run", "--force", "-o", &file, "--", program]);
        assert_eq!(code, 0, "{err}");
        report(&file)
    };
    let mut report = recorded();
    // A suspension of the program changes its pauses, so the run is repeated.
    for _ in 1..TRIES {
        if patterns(&report) == expected {
            break;
        }
        report = recorded();
    }
    assert_eq!(patterns(&report), expected, "{report}");
    // Accesses of a child to its copy do not count, nor do accesses by realloc.
    let sites = report["sites"].as_array().expect("sites").iter();
    let mut usages: Vec<(&str, f64)> = sites
        .filter_map(|site| {
            let usage = site["scores"]["usage"].as_f64()?;
            Some((planted(&site["stack"]), usage))
        })
        .filter(|(function, _)| ["forked", "moved"].contains(function))
        .collect();
    usages.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    assert_eq!(usages, [("forked", 0.001), ("moved", 1.0), ("moved", 1.0)]);
}

/// Returns functions of the program with their patterns.
fn patterns(report: &Value) -> Vec<(&str, &str)> {
    let inferences = report["inferences"].as_array().expect("inferences").iter();
    let mut found: Vec<(&str, &str)> = inferences
        .map(|one| {
            (
                planted(&one["stack"]),
                one["kind"].as_str().expect("a kind"),
            )
        })
        // The C library allocates blocks for a thread, and the thread itself uses them.
        .filter(|(function, kind)| *function != "other" && !kind.starts_with("top_"))
        // The durations of the threads' turns are unknown.
        .filter(|(function, kind)| !function.starts_with("shared") || !kind.ends_with("_long"))
        .collect();
    found.sort_unstable();
    found
}

/// Checks the bytes that `touched.cc` reads and writes through the C library, which are known
/// exactly.
fn check_touched(report: &Value) {
    for (function, usage) in [
        ("filled", 0.5),
        ("received", 0.5),
        ("sent", 0.25),
        ("cleared", 0.0),
        ("measured", 0.25),
        ("interrupted", 0.5),
    ] {
        let (is, _) = scores(report, function);
        assert_eq!(is.as_f64(), Some(usage), "{function}: {report}");
    }
}

/// Checks that lazily bound calls are traced, as well as calls that the loader bound at the start.
/// The program itself checks results, errno, interrupted calls and cancelled calls.
#[test]
fn functions_of_the_c_library_count_as_accesses() {
    let folder = Folder::new("touched");
    for (name, flags) in [("lazy", ["-Wl,-z,lazy"]), ("now", ["-Wl,-z,now"])] {
        let program = build_telling("g++", "touched", &flags);
        let mut target = Target::start(&program, &[]);
        let file = folder.path(&format!("{name}.mhk"));
        let attacher = Attacher::start(&target, &["-o", &file, "--scores"]);
        target.go();
        target.expect("done");
        // The program waits in a call of read(2) that went through a wrapper.
        attacher.finish();
        check_touched(&report(&file));
        // The program calls the original functions again.
        assert!(target.finish().success());
    }
    // The attacher is killed while the program reports accesses. The program continues, memhook-rs
    // leaves nothing in its process or on the disk, and the next attach counts again.
    let mut target = Target::start(&build_telling("g++", "touched", &["-Wl,-z,lazy"]), &[]);
    let scratch = folder.path("scratch");
    std::fs::create_dir(&scratch).expect("a directory");
    let in_scratch = format!("TMPDIR={scratch}");
    Attacher::start_by(&["env", &in_scratch], &target, &["--scores"]).kill();
    let left = std::fs::read_dir(&scratch).expect("readable").count();
    assert_eq!(left, 0);
    target.go();
    target.expect("done");
    let file = folder.path("again.mhk");
    let attacher = Attacher::start(&target, &["-o", &file, "--scores"]);
    assert!(target.finish().success());
    attacher.last_report();
    check_touched(&report(&file));
    // memhook-rs does not wrap these calls in a program that does not report accesses.
    let silent = build_target("scores", &["-O1", "-g"]);
    let mut target = Target::start(&silent, &[]);
    let (code, out, err) = run(&["attach", &target.pid().to_string(), "--dry-run"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("malloc") && !out.contains("memset"), "{out}");
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}

/// Returns the size of the largest private mapping without a file, and its resident part, in bytes.
fn largest_mapping(target: &Target) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps", target.pid())).expect("readable");
    let kib = |line: &str| {
        let number = line
            .split_whitespace()
            .nth(1)
            .and_then(|n| n.parse::<u64>().ok());
        number.expect("a number") << 10
    };
    let sizes = text.lines().filter(|l| l.starts_with("Size:")).map(kib);
    let resident = text.lines().filter(|l| l.starts_with("Rss:")).map(kib);
    sizes.zip(resident).max().expect("mappings")
}

/// Checks the memory of the block index, which is charged to the program.
#[test]
fn a_small_container_has_room_for_a_part_of_the_index() {
    const LIMIT: u64 = 48 << 20;
    let Some(group) = MemoryBox::new("accesses", LIMIT) else {
        not_run("cannot create a control group with a memory limit here");
        return;
    };
    let folder = Folder::new("many_accessed");
    let file = folder.path("run.mhk");
    let program = build_telling("g++", "many_accessed", &[]);
    let mut target = Target::run(&mut group.command(&program));
    let attacher = Attacher::start(&target, &["-o", &file, "--scores"]);
    target.go();
    target.expect("done");
    let (size, resident) = largest_mapping(&target);
    assert!(size >= 1 << 28, "{size}");
    // The index takes a fiftieth of the free memory, and some pages with the positions of the
    // tables. An index of all blocks would take twice as much.
    assert!(resident < LIMIT / 50 + (128 << 10), "{resident}");
    attacher.finish();
    let report = report(&file);
    let missed = report["scores"]["accesses_missed"].as_u64();
    assert!(
        missed.is_some_and(|n| (10_000..160_000).contains(&n)),
        "{missed:?}"
    );
    let (code, text, err) = run(&["report", &file, "--scores"]);
    assert_eq!(code, 0, "{err}");
    assert!(text.contains("could not be counted"), "{text}");
    assert!(target.finish().success());
}
