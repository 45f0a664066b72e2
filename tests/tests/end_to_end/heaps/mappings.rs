//! `--mappings`: the program's mappings by call stack, and all other mappings.

use memhook_tests::{Attacher, Target, binary, build_library, build_target, run, sites};
use serde_json::Value;
use std::process::Command;

const PAGE: u64 = 4096;

/// Mappings planted by mapped.cc: number of pages of each remaining piece.
const PLANTED: [(&str, &str, &[u64]); 15] = [
    ("plant_plain", "mmap", &[5, 5, 5, 1]),
    ("plant_cut", "mmap", &[4, 9]),
    ("plant_swept", "mmap", &[2, 3]),
    ("plant_grown", "mremap", &[64]),
    ("plant_part_moved", "mmap", &[3, 5]),
    ("plant_part_moved", "mremap", &[6]),
    ("plant_replaced", "mmap", &[2, 6, 2]),
    ("plant_break", "sbrk", &[7]),
    ("plant_segments", "shmat", &[3]),
    ("plant_in_handler", "mmap", &[2]),
    ("plant_in_thread", "mmap", &[5]),
    ("plant_unseen", "mmap", &[1024]),
    // Calls that left no mapping.
    ("plant_failures", "mmap", &[]),
    ("plant_grown", "mmap", &[]),
    ("allocate", "malloc", &[]),
];

fn expect_planted(found: &Value) {
    let found = sites(found, "mapped.cc");
    for (function, kind, pages) in PLANTED {
        let key = (function.to_owned(), kind.to_owned());
        let bytes = pages.iter().sum::<u64>() * PAGE;
        let planted = (!pages.is_empty()).then_some((pages.len() as u64, bytes));
        assert_eq!(found.get(&key).copied(), planted, "{key:?}: {found:#?}");
    }
    let known = PLANTED.iter().filter(|(_, _, pages)| !pages.is_empty());
    assert_eq!(found.len(), known.count(), "{found:#?}");
}

#[test]
fn every_way_to_map() {
    let program = build_target("mapped", &["-pthread"]);
    let directory = std::env::temp_dir().join(format!("memhook-mappings-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let recording = directory.join("run.mhk");
    let recording = recording.to_str().unwrap();
    let mut target = Target::start(&program, &[]);
    let options = ["--mappings", "--depth", "24"];
    let attacher = Attacher::start(&target, &options);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    let mappings = &report["mappings"];
    expect_planted(mappings);
    let totals = &mappings["totals"];
    let number =
        |of: &Value, name: &str| of[name].as_u64().unwrap_or_else(|| panic!("{name}: {of}"));
    let live: u64 = PLANTED.iter().flat_map(|planted| planted.2).sum::<u64>() * PAGE;
    assert_eq!(number(totals, "live_bytes"), live);
    assert_eq!(
        number(totals, "mapped_bytes") - number(totals, "unmapped_bytes"),
        live
    );
    assert_eq!(
        (
            number(totals, "discards"),
            number(totals, "discarded_bytes")
        ),
        (1, 2 * PAGE)
    );
    // Untraced mappings, according to /proc.
    let process = &mappings["process"];
    assert_eq!(number(process, "gone_bytes"), 1024 * PAGE);
    assert_eq!(number(process, "traced_bytes"), live - 1024 * PAGE);
    // The C library has also mapped thread stacks and an arena of malloc.
    assert!(
        number(process, "unseen_bytes") >= 4096 * PAGE,
        "{process:#}"
    );
    let parts = process["parts"].as_array().unwrap();
    let sum: u64 = parts.iter().map(|part| number(part, "bytes")).sum();
    assert_eq!(
        number(process, "bytes"),
        sum + number(process, "traced_bytes")
    );
    let has = |kind: &str, name: &str| {
        let mut parts = parts.iter();
        parts.any(|part| part["kind"] == kind && part["name"].as_str().unwrap().contains(name))
    };
    assert!(
        has("stack", "mapped") && has("file", "libc.so") && has("heap", "[heap]"),
        "{parts:#?}"
    );
    assert!(
        has("before the attach", "") && has("ourselves", "memhook"),
        "{parts:#?}"
    );
    // Heap and mappings are counted separately.
    let of_heap = |report: &Value| {
        sites(report, "mapped.cc")
            .into_keys()
            .all(|(_, kind)| kind != "mmap")
    };
    assert!(of_heap(&report), "{report:#}");
    assert!(target.finish().success());

    let mut target = Target::start(&program, &[]);
    let attacher = Attacher::start(&target, &[&options[..], &["-o", recording]].concat());
    target.go();
    target.expect("done");
    attacher.finish();
    assert!(target.finish().success());
    let beside = recording.replace(".mhk", ".mappings.mhk");
    let report = |recording: &str| -> Value {
        let command = ["report", recording, "--json", "--top", "100"];
        let output = Command::new(binary()).args(command).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    expect_planted(&report(&beside));
    let heap = report(recording);
    assert!(of_heap(&heap));
    // Resident memory over time.
    let resident = heap["resident"].as_array().unwrap();
    assert!(resident.len() >= 2, "{resident:#?}");
    assert!(
        resident
            .iter()
            .all(|point| number(point, "anonymous_bytes") > 0 && number(point, "file_bytes") > 0)
    );
    let ends_with = |code: i32, words: &[&str]| {
        let (found, _, errors) = run(words);
        assert_eq!(found, code, "{words:?}: {errors}");
        errors
    };
    ends_with(0, &["diff", &beside, &beside]);
    ends_with(
        0,
        &[
            "report",
            "-f",
            "pprof",
            "-o",
            &format!("{recording}.pb.gz"),
            &beside,
        ],
    );
    ends_with(0, &["gate", "--fail-on", "live > 100M", &beside]);
    ends_with(1, &["gate", "--fail-on", "live > 1M", &beside]);
    // Meaningless combinations of options.
    let errors = ends_with(2, &["gate", "--mappings", "--", program.to_str().unwrap()]);
    assert!(errors.contains("a gate judges blocks"), "{errors}");
    let pid = std::process::id().to_string();
    let errors = ends_with(
        2,
        &["attach", &pid, "--mappings", "-f", "pprof", "-o", "x.pb.gz"],
    );
    assert!(errors.contains("one kind of memory"), "{errors}");
    let _ = std::fs::remove_dir_all(directory);
}

/// Checks that the report contains no mappings without the option, and that the mappings of an
/// allocator count as its heap.
#[test]
fn what_is_not_asked_for_and_what_belongs_to_an_allocator() {
    let name = "libmapping_allocator.so";
    let library = build_library("mapped", name, &["-DLIBRARY"]);
    let (path, folder) = (library.to_str(), library.parent().and_then(|f| f.to_str()));
    let runpath = format!("-Wl,-rpath,{}", folder.expect("UTF-8"));
    let linked = ["-pthread", path.expect("UTF-8"), &runpath];
    let program = build_target("mapped", &linked);
    let report = memhook_tests::trace(&program, &["--mappings", "--depth", "24"]);
    expect_planted(&report["mappings"]);
    let report = memhook_tests::trace(&program, &[]);
    assert!(report.get("mappings").is_none());
}
