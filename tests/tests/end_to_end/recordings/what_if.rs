//! `advise --what-if` replays a recorded run with real allocators.

use super::{json, number};
use memhook_tests::programs::{Folder, installed_library};
use memhook_tests::{JsonSchema, Target, build_library, build_target, run};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Allocators for replays. All but glibc's need an installed package.
const ALLOCATORS: [&str; 4] = ["glibc", "jemalloc", "tcmalloc", "mimalloc"];

fn with_all_allocators() {
    for library in [
        "libjemalloc.so.2",
        "libtcmalloc_minimal.so.4",
        "libmimalloc.so.2",
    ] {
        installed_library(library);
    }
}

/// Largest errors of a replay with the recorded allocator, as stated in the documentation.
const MOST_MEDIAN: f64 = 0.10;
const MOST_PEAK: f64 = 0.05;

fn record(folder: &Folder, program: &Path, options: &[&str], args: &[&str]) -> String {
    let file = folder.path("run.mhk");
    let program = program.to_str().expect("UTF-8");
    let command = ["run", "-q", "--force", "-o", &file];
    let (code, _, err) = run(&[&command, options, &["--", program], args].concat());
    assert_eq!(code, 0, "{err}");
    file
}

fn advise(file: &str, options: &[&str]) -> Value {
    json(&[&["advise", file, "--what-if", "--json"], options].concat())
}

/// Returns the row of an allocator whose settings contain this text.
fn row<'a>(advice: &'a Value, allocator: &str, settings: &str) -> &'a Value {
    let rows = advice["rows"].as_array().expect("rows");
    let is_it = |row: &&Value| {
        let of = row["settings"].as_str().expect("settings");
        row["allocator"] == allocator && of.contains(settings)
    };
    let found = rows.iter().find(is_it);
    found.unwrap_or_else(|| panic!("{allocator} {settings}: {advice:#}"))
}

fn real(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn a_fragmented_heap_under_several_allocators() {
    with_all_allocators();
    let folder = Folder::new("what-if");
    let program = build_target("fragmented", &["-O1"]);
    let file = record(&folder, &program, &[], &["3", "100000"]);
    let advice = advise(&file, &[]);
    let schema = JsonSchema::load("what-if-1");
    schema.check(&advice);
    assert_eq!(advice["recorded_allocator"], "glibc");
    assert_eq!(advice["threads"], 1);
    let truth = &advice["truth"];
    assert!(real(&truth["median_error"]).abs() <= MOST_MEDIAN, "{truth}");
    assert!(real(&truth["peak_error"]).abs() <= MOST_PEAK, "{truth}");
    assert_eq!(truth["holds"], true);
    let glibc = row(&advice, "glibc", "");
    assert_eq!(glibc["is_recorded"], true);
    let calls = number(&glibc["calls"]);
    assert!(calls >= number(&advice["calls"]), "{calls}");
    for name in ALLOCATORS {
        let row = row(&advice, name, "");
        assert_eq!(row["problem"], Value::Null, "{row}");
        assert_eq!(row["failed_calls"], 0, "{row}");
        assert_eq!(number(&row["calls"]), calls, "{row}");
        let peak = number(&row["peak_rss_bytes"]);
        assert!(peak > number(&advice["peak_live_bytes"]), "{row}");
        assert!(peak >= number(&row["end_rss_bytes"]), "{row}");
    }
    for settings in ["ARENA_MAX=1", "ARENA_MAX=2", "TRIM_", "MMAP_", "tcache"] {
        assert_eq!(row(&advice, "glibc", settings)["problem"], Value::Null);
    }
    // Nine of ten blocks are free at the end, and the allocator has returned none of this memory to
    // the system.
    let end = number(&glibc["end_rss_bytes"]);
    assert!(end * 2 > number(&glibc["peak_rss_bytes"]), "{glibc}");
    let (code, text, err) = run(&["advise", &file, "--what-if"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(text.contains("glibc (as recorded)"), "{text}");
    assert!(
        text.contains("The replay under the recorded allocator is off by"),
        "{text}"
    );
}

#[test]
fn an_allocator_that_fails_loses_only_its_own_row() {
    with_all_allocators();
    let folder = Folder::new("what-if-failing");
    let program = build_target("fragmented", &["-O1"]);
    let file = record(&folder, &program, &[], &["1", "20000"]);
    let library = |name: &str, flags: &[&str]| {
        let path = build_library("failing_allocator", name, flags);
        path.to_str().expect("UTF-8").to_owned()
    };
    let crashes = library("libcrashes.so", &["-O1"]);
    let waits = library("libwaits.so", &["-O1", "-DWAITS"]);
    let refuses = library("librefuses.so", &["-O1", "-DREFUSES"]);
    let no_library = folder.path("text.so");
    std::fs::write(&no_library, "no library").expect("written");
    let no_malloc = build_library("needs_library", "libno_malloc.so", &["-O1"]);
    let no_malloc = no_malloc.to_str().expect("UTF-8");
    let libraries = [&crashes, &waits, &refuses, &no_library, no_malloc];
    let options = libraries.iter().flat_map(|path| ["--allocator", path]);
    let options: Vec<&str> = options.chain(["--at-most", "10s"]).collect();
    // A replay with a good allocator may take longer if it gets no processor.
    let is_good = |advice: &Value| {
        let mut names = ALLOCATORS.into_iter().chain(["librefuses.so"]);
        names.all(|name| row(advice, name, "")["problem"].is_null())
    };
    let mut advice = advise(&file, &options);
    for _ in 1..3 {
        if is_good(&advice) {
            break;
        }
        advice = advise(&file, &options);
    }
    let problem = |name: &str| row(&advice, name, "")["problem"].clone();
    let says = |name: &str, words: &str| {
        let problem = problem(name);
        let text = problem.as_str().unwrap_or_default();
        assert!(text.contains(words), "{name}: {problem}");
    };
    says("libcrashes.so", "crashed (SIGILL)");
    says("libwaits.so", "not done after 10.0 s");
    says("text.so", "cannot be loaded");
    says("libno_malloc.so", "has no malloc");
    assert_eq!(problem("librefuses.so"), Value::Null);
    assert!(number(&row(&advice, "librefuses.so", "")["failed_calls"]) > 1000);
    for name in ALLOCATORS {
        assert_eq!(problem(name), Value::Null, "{name}");
    }
    // The run is too short for a recommendation.
    assert_eq!(advice["recommendation"], Value::Null);
}

/// Checks that an exited thread leaves no cache behind, neither in the program nor in its replay.
#[test]
fn threads_that_come_and_go() {
    let folder = Folder::new("what-if-threads");
    let program = build_target("threads_in_turn", &["-O2", "-pthread"]);
    let file = record(&folder, &program, &[], &["150"]);
    let advice = advise(&file, &[]);
    JsonSchema::load("what-if-1").check(&advice);
    // Of 1,200 threads, at most nine are alive at the same time, although the exit of some of the
    // last threads is unknown.
    let threads = number(&advice["threads"]);
    assert!((2..30).contains(&threads), "{threads}");
    let now = number(&row(&advice, "glibc", "")["mean_rss_bytes"]);
    let without = number(&row(&advice, "glibc", "tcache")["mean_rss_bytes"]);
    assert!(
        without * 10 > now * 6,
        "caches of ended threads: {advice:#}"
    );
}

#[test]
fn refusals() {
    let folder = Folder::new("what-if-refused");
    let program = build_target("fragmented", &["-O1"]);
    let args = ["1", "20000"];
    let refused = |words: &[&str], why: &str| {
        let (code, out, err) = run(words);
        assert_eq!((code, out.as_str()), (2, ""), "{words:?}: {err}");
        assert_eq!(err.trim_end().lines().count(), 1, "{err}");
        assert!(err.contains(why), "{words:?}: {err}");
    };
    for (options, why) in [
        (&["--sample", "4K"][..], "it holds samples"),
        (&["--record", "summary"], "it holds sums of intervals"),
        (&["--size", "150.."], "a filter kept some allocations out"),
        (&["--set", "functions=malloc"], "it has no releases"),
    ] {
        let file = record(&folder, &program, options, &args);
        refused(&["advise", &file, "--what-if"], why);
    }
    record(&folder, &program, &["--mappings"], &args);
    let mappings = folder.path("run.mappings.mhk");
    refused(
        &["advise", &mappings, "--what-if"],
        "it is a recording of mappings",
    );
    let file = folder.path("run.mhk");
    let little = ["advise", &file, "--what-if", "--max-memory", "64K"];
    refused(&little, "a replay needs about");
    let missing = folder.path("missing.mhk");
    refused(&["advise", &missing, "--what-if"], "missing.mhk");
    let missing = ["--allocator", "/nowhere/lib.so"];
    refused(
        &[&["advise", &file, "--what-if"], &missing[..]].concat(),
        "/nowhere/lib.so",
    );
}

#[test]
fn a_process_is_recorded_and_replayed() {
    let folder = Folder::new("what-if-live");
    let page = folder.path("curves.html");
    let program = build_target("diseased", &["-O2", "-g", "-pthread"]);
    let mut target = Target::run(Command::new(program).arg("cache"));
    target.go();
    target.expect("sick");
    let pid = target.pid().to_string();
    let advise = |duration: &str| {
        let what = [
            "advise",
            &pid,
            "--what-if",
            "--json",
            "--force",
            "-o",
            &page,
        ];
        json(&[&what[..], &["-d", duration]].concat())
    };
    let grown = |advice: &Value| {
        let end = number(&row(advice, "glibc", "")["end_rss_bytes"]);
        number(&advice["calls"]) > 1000 && end > 5 << 20
    };
    // Records for longer if the program was suspended.
    let mut tries = ["4s", "12s", "20s"].into_iter().map(advise);
    let advice = tries.find(grown).expect("it has grown");
    JsonSchema::load("what-if-1").check(&advice);
    assert_eq!(advice["truth"]["holds"], true, "{advice:#}");
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("class=\"curve color-0\""));
    // The advice has a replay into each installed allocator.
    for row in advice["rows"].as_array().expect("rows") {
        let name = row["allocator"].as_str().expect("a name");
        assert!(page.contains(name), "{name} is not on the page");
    }
    target.send("x");
    for line in ["before", "after", "done"] {
        target.expect(line);
    }
    assert!(target.finish().success());
}
