//! The hook, mapped without the target's loader: on musl, and where the loader cannot open it.

use memhook_tests::programs::{Folder, another_root, installed};
use memhook_tests::{
    Attacher, Sites, Target, binary, build_on_musl, build_target, expect_sites, rounds, run, sites,
};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Leaks of the program after it has printed "ready".
const ON_MUSL: [(&str, &str, u64, u64); 5] = [
    ("leak_by_malloc", "malloc", 100, 48),
    ("leak_by_calloc", "calloc", 90, 72),
    ("leak_by_realloc", "realloc", 80, 112),
    ("leak_by_aligned_alloc", "aligned_alloc", 70, 128),
    // From 800 threads, fewer than there are rings, so each thread gets a ring even if rings are
    // recycled slowly.
    ("leak_in_thread", "malloc", 8, 40),
];

/// Builds the program, and the library that it opens at run time.
fn on_musl() -> Option<(std::path::PathBuf, String)> {
    let library = build_on_musl("on_musl_library", &["-shared", "-fPIC"])?;
    let library = library.to_str().expect("UTF-8").to_owned();
    Some((build_on_musl("on_musl", &[])?, library))
}

/// Checks the leaks planted in the program, in its library, and by musl's own functions.
fn expect_on_musl(report: &Value, of_constructors: &[(&str, &str, u64, u64)]) {
    let (of_library, of_program): (Vec<&Value>, Vec<&Value>) = report["sites"]
        .as_array()
        .expect("sites")
        .iter()
        .partition(|site| site["stack"][0]["function"] == "leak_in_library");
    let blocks = |sites: &[&Value]| -> u64 {
        let counts = sites.iter().map(|site| site["blocks"].as_u64());
        counts.map(|count| count.expect("a count")).sum()
    };
    assert_eq!(blocks(&of_library), 50, "{report:#}");
    // musl's own functions have no unwind tables, so a stack ends at the first of them.
    let (of_strdup, of_program): (Vec<&Value>, Vec<&Value>) = of_program
        .into_iter()
        .partition(|site| site["stack"][0]["function"] == "strdup");
    assert_eq!(blocks(&of_strdup), 60, "{report:#}");
    let mut of_program: Sites = sites(&serde_json::json!({ "sites": of_program }), "on_musl.c");
    // The only reachable block.
    assert_eq!(
        of_program.remove(&("main".to_owned(), "malloc".to_owned())),
        Some((1, 1000))
    );
    let planted = ON_MUSL.iter().chain(of_constructors);
    let planted: Sites = planted
        .map(|&(function, kind, blocks, size)| {
            (
                (function.to_owned(), kind.to_owned()),
                (blocks, blocks * size),
            )
        })
        .collect();
    assert_eq!(of_program, planted, "{report:#}");
    let totals = &report["totals"];
    assert_eq!(totals["lost_events"], 0);
    assert_eq!(totals["unknown_releases"], 0);
    assert_eq!(totals["live_blocks"].as_u64(), Some(blocks_of(report)));
    // Number of releases: twenty in each thread, one at the end, and the blocks that realloc
    // replaced.
    assert_eq!(totals["releases"], 800 * 20 + 1 + 80);
}

/// Returns the total number of blocks of all sites.
fn blocks_of(report: &Value) -> u64 {
    let sites = report["sites"].as_array().expect("sites").iter();
    sites.filter_map(|site| site["blocks"].as_u64()).sum()
}

#[test]
fn a_program_on_musl_is_attached_to() {
    let Some((program, library)) = on_musl() else {
        return;
    };
    let mut target = Target::start(&program, &["800", &library]);
    let pid = target.pid().to_string();
    let (code, out, _) = run(&["doctor", &pid]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("note libc           musl"), "{out}");
    assert!(out.contains("mapped without the loader"), "{out}");
    Attacher::start(&target, &[]).finish();
    let mappings = target.our_mappings();
    let attacher = Attacher::start(&target, &[]);
    // No memory is both writable and executable.
    let maps = target.maps();
    assert!(!maps.lines().any(|line| line.contains(" rwx")), "{maps}");
    target.go();
    target.expect("done");
    expect_on_musl(&attacher.finish(), &[]);
    assert_eq!(
        target.our_mappings(),
        mappings,
        "what is there is used again"
    );
    // No slot remains to be restored.
    let (code, _, err) = run(&["detach", &pid]);
    assert_eq!(code, 0, "{err}");
    let (code, out, err) = run(&["scan", &pid, "--json"]);
    assert_eq!(code, 0, "{err}");
    let scan: Value = serde_json::from_str(&out).expect("JSON");
    // 100 + 90 + 80 + 70 + 60 blocks, eight from 800 threads, and one each from the library and the
    // constructor.
    assert_eq!(scan["totals"]["leaked_blocks"], 461, "{scan:#}");
    assert!(target.finish().success());
}

#[test]
fn a_program_on_musl_is_run() {
    let Some((program, library)) = on_musl() else {
        return;
    };
    let folder = Folder::new("run-on-musl");
    let report = folder.path("report.json");
    let status = Command::new("sh")
        .arg("-c")
        .arg("printf g | \"$0\" run --json -T 1000 -o \"$1\" -- \"$2\" 800 \"$3\"")
        .args([binary().as_os_str(), report.as_ref()])
        .args([program.as_os_str(), library.as_ref()])
        .stdout(std::process::Stdio::null())
        .status()
        .expect("a shell");
    assert!(status.success(), "{status}");
    let text = std::fs::read_to_string(&report).expect("a report");
    let last = text.lines().last().expect("a line");
    let report: Value = serde_json::from_str(last).expect("JSON");
    expect_on_musl(&report, &[("leak_in_constructor", "malloc", 3, 200)]);
}

fn gate(program: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new("sh")
        .arg("-c")
        .arg("printf g | \"$0\" gate -- \"$@\"")
        .arg(binary())
        .arg(program)
        .args(arguments)
        .output()
        .expect("a shell");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), text)
}

#[test]
fn a_gate_judges_programs_on_musl() {
    let Some((program, library)) = on_musl() else {
        return;
    };
    let (code, text) = gate(&program, &["160", &library]);
    assert_eq!(code, Some(1), "{text}");
    // 100 + 90 + 80 + 70 + 60 blocks, two from 160 threads, and one each from the library and the
    // constructor.
    assert!(text.contains(" in 455 blocks (limit 0): "), "{text}");
    // These are the leak in a variable and the leaks of the C library.
    assert!(
        text.contains("still reachable 1.5 KiB in 4 blocks"),
        "{text}"
    );
    let Some(clean) = build_on_musl("on_musl", &["-DCLEAN"]) else {
        return;
    };
    let (code, text) = gate(&clean, &["160"]);
    assert_eq!(code, Some(0), "{text}");
}

/// A target in a root without /proc.
struct Closed {
    target: Target,
    _root: Folder,
}

impl Closed {
    fn start(program: &str, arguments: &[&str]) -> Closed {
        let programs = [
            ("target", &*build_target(program, &[])),
            ("bin/sh", &*installed("sh")),
        ];
        let root = another_root(&programs);
        let mut command = Command::new(installed("chroot"));
        command.args([root.path("").as_str(), "/target"]);
        let target = Target::run(command.args(arguments));
        let (code, out, _) = run(&["doctor", &target.pid().to_string()]);
        assert_eq!(code, 0, "{out}");
        assert!(out.contains("mapped without the loader"), "{out}");
        Closed {
            target,
            _root: root,
        }
    }
}

/// Checks that calls of operator new are recorded as such, and that exceptions pass through them.
#[test]
fn exceptions_find_their_way() {
    let mut closed = Closed::start("exceptions", &[]);
    let attacher = Attacher::start(&closed.target, &[]);
    closed.target.go();
    closed.target.expect("done");
    let report = attacher.finish();
    let planted = [("leak_after_throw", "new", 10, 77)];
    expect_sites(&report, "exceptions.cc", &planted);
    let reasons = report["coverage"].to_string();
    assert!(!reasons.contains("exceptions cannot pass"), "{reasons}");
    let status = closed.target.finish();
    assert!(status.success(), "the target's self-check: {status}");
}

/// Attaches repeatedly while threads leave calls of the allocator in every possible way.
#[test]
fn every_way_out_of_a_call() {
    memhook_tests::patiently(|| {
        for way in [
            "throw",
            "nothrow",
            "handler",
            "longjmp",
            "coroutine",
            "pthread_exit",
            "cancel",
            "die",
        ] {
            let closed = Closed::start("ways_out", &[way]);
            let mut allocations = 0;
            let mut mappings = 0;
            for attach in 0.. {
                // The target may be suspended during any of the traces.
                if attach >= rounds(10) / 2 && (allocations > 0 || attach >= 100) {
                    break;
                }
                let report = Attacher::start(&closed.target, &["-d", "100ms"]).last_report();
                allocations += report["totals"]["allocations"].as_u64().expect("a count");
                let now = closed.target.our_mappings();
                assert!(attach == 0 || now == mappings, "{way}, attach {attach}");
                mappings = now;
            }
            assert!(allocations > 0, "{way}");
            assert!(closed.target.finish().success(), "{way}");
        }
    });
}

/// Checks that children, which inherit the hook and its table of threads, record nothing.
#[test]
fn children_are_healthy_and_untraced() {
    let mut closed = Closed::start("forks", &[]);
    let attacher = Attacher::start(&closed.target, &[]);
    closed.target.go();
    closed.target.expect("done");
    let planted = [("leak_in_parent", "malloc", 20, 321)];
    expect_sites(&attacher.finish(), "forks.cc", &planted);
    let status = closed.target.finish();
    assert!(status.success(), "the target's self-check: {status}");
}

/// Checks that the next attach or `detach` restores the slots that a killed attacher left patched.
#[test]
fn a_killed_attacher_leaves_nothing_that_matters() {
    memhook_tests::patiently(|| {
        let closed = Closed::start("hammer", &[]);
        let pid = closed.target.pid().to_string();
        Attacher::start(&closed.target, &[]).kill();
        let report = Attacher::start(&closed.target, &["-d", "300ms"]).last_report();
        assert_eq!(report["totals"]["lost_events"], 0, "{report}");
        Attacher::start(&closed.target, &[]).kill();
        let (code, _, err) = run(&["detach", &pid]);
        assert_eq!(code, 0, "{err}");
        assert!(closed.target.is_alive());
        assert!(closed.target.finish().success());
    });
}
