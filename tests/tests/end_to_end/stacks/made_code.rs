//! JIT-compiled code: call stacks contain its functions, and unwinding continues through it.

use memhook_tests::programs::{Folder, installed};
use memhook_tests::{Attacher, Target, run};
use serde_json::Value;
use std::process::Command;

/// Allocates buffers in a compiled function, called by another compiled function.
const SCRIPT: &str = "
const kept = [];
function hoard(n) { kept.push(Buffer.allocUnsafeSlow(n)); }
function work(n) { for (let i = 0; i < n; i++) hoard(50001); }
process.stdin.on('data', () => { work(300); console.log('done'); });
process.stdin.on('end', () => process.exit(0));
console.log('ready');
";

/// Returns the number of 50,001-byte blocks whose stacks have a frame of generated code with this
/// word in its name, and the total number of such blocks.
fn hoarded(report: &Value, word: &str) -> (u64, u64) {
    let (mut named, mut all) = (0, 0);
    for site in report["sites"].as_array().expect("sites") {
        let (bytes, blocks) = (site["bytes"].as_u64(), site["blocks"].as_u64());
        let (bytes, blocks) = (bytes.expect("bytes"), blocks.expect("blocks"));
        if bytes != blocks * 50_001 {
            continue;
        }
        all += blocks;
        let frames = site["stack"].as_array().expect("a stack").iter();
        let is_it = |frame: &Value| {
            let function = frame["function"].as_str().unwrap_or_default();
            frame["module"] == "[jit]" && function.contains(word)
        };
        if frames.clone().any(is_it) {
            named += blocks;
        }
    }
    (named, all)
}

/// Runs the script with an option that makes node export function names, and checks the functions
/// of the blocks.
fn check(directory: &Folder, option: &[&str]) {
    let script = directory.path("app.js");
    std::fs::write(&script, SCRIPT).expect("written");
    let mut node = Command::new(installed("node"));
    // node writes a log into its current directory.
    node.current_dir(directory.path("."));
    // Each function has its own machine code from its first call on, so every call has a name.
    node.args(option).args(["--always-sparkplug", &script]);
    let mut target = Target::run(&mut node);
    // Code that has run once has been compiled.
    target.send("go\n");
    target.expect("done");
    let recording = &directory.path("run.mhk");
    let attacher = Attacher::start(&target, &["-o", recording, "--depth", "64"]);
    target.send("go\n");
    target.expect("done");
    let report = attacher.finish();
    assert_eq!(hoarded(&report, "hoard"), (300, 300), "{report:#}");
    assert_eq!(hoarded(&report, "work"), (300, 300), "{report:#}");
    let (code, output, errors) = run(&["report", recording, "--json", "-T", "10000"]);
    assert_eq!(code, 0, "{errors}");
    let recorded: Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!(hoarded(&recorded, "hoard"), (300, 300), "{recorded:#}");
    let names = format!("/tmp/perf-{}.map", target.pid());
    assert!(target.finish().success());
    let _ = std::fs::remove_file(names);
}

#[test]
fn functions_of_javascript_are_on_stacks() {
    check(&Folder::new("made"), &["--perf-basic-prof"]);
}

/// Checks the file for `perf inject --jit`. It is in the program's current directory, and perf
/// recognizes it by its mapping.
#[test]
fn functions_have_their_names_in_a_dump_for_perf() {
    let options = ["--perf-prof", "--interpreted-frames-native-stack"];
    check(&Folder::new("dumped"), &options);
}
