//! Compares heaptrack's own recording of a program with our recording of the same program, read by
//! heaptrack.

use memhook_tests::programs::{Folder, installed};
use memhook_tests::{Attacher, Target, build_target, run};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// Returns the nonzero values of one type of cost from heaptrack_print, for each function that
/// `work` calls.
fn costs(folder: &Folder, file: &str, cost: &str) -> BTreeMap<String, u64> {
    let stacks = folder.path(&format!("{cost}.folded"));
    let mut command = Command::new(installed("heaptrack_print"));
    // heaptrack's built-in suppressions contain leaks of the C++ library.
    command.args(["--disable-builtin-suppressions", "-f", file]);
    command.args(["--flamegraph-cost-type", cost, "-F", &stacks]);
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read(&stacks).expect("stacks");
    let text = String::from_utf8_lossy(&text);
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let (stack, value) = line.rsplit_once(' ').expect("a value");
        let value: u64 = value.parse().expect("a number");
        // Frames begin with the outermost function: `work() (deterministic.cc)` or `work`.
        let name = |frame: &str| frame.split(['(', ' ']).next().unwrap_or("").to_owned();
        let mut names = stack.split(';').map(name).skip_while(|name| name != "work");
        if names.next().is_some() && value > 0 {
            let called = names.next().unwrap_or_default();
            *found.entry(called).or_default() += value;
        }
    }
    found
}

#[test]
fn it_records_the_same_as_we_do() {
    let folder = Folder::new("heaptrack");
    let program = build_target("deterministic", &[]);
    let theirs = folder.path("theirs");
    let byte = folder.path("byte");
    std::fs::write(&byte, "x").expect("a file");
    let status = Command::new(installed("heaptrack"))
        .args(["-o", &theirs])
        .arg(&program)
        .stdin(std::fs::File::open(&byte).expect("the file"))
        .stdout(Stdio::null())
        .status();
    assert!(status.expect("it starts").success());
    let theirs = [".zst", ".gz"].map(|end| format!("{theirs}{end}"));
    let theirs = theirs
        .iter()
        .find(|file| std::path::Path::new(file).exists());
    let theirs = theirs.expect("its recording");

    let recording = folder.path("run.mhk");
    let mut target = Target::start(&program, &[]);
    let attacher = Attacher::start(&target, &["--depth", "30", "-o", &recording]);
    target.go();
    target.expect("done");
    attacher.finish();
    assert!(target.finish().success());
    let ours = folder.path("ours.gz");
    let (code, _, errors) = run(&["report", &recording, "-f", "heaptrack", "-o", &ours]);
    assert_eq!(code, 0, "{errors}");

    for cost in ["allocations", "leaked", "peak"] {
        let expected = costs(&folder, theirs, cost);
        assert!(!expected.is_empty(), "{cost}");
        assert_eq!(costs(&folder, &ours, cost), expected, "{cost}");
    }
    // For memhook-rs, an allocation is temporary if its release precedes the thread's next
    // allocation. For heaptrack, its release must be the very next call. The two differ for the
    // vector's last buffer, because the previous buffer is released first.
    let mut temporary = costs(&folder, &ours, "temporary");
    assert_eq!(
        temporary.remove("std::__new_allocator<>::allocate"),
        Some(1)
    );
    assert_eq!(temporary, costs(&folder, theirs, "temporary"));
}
