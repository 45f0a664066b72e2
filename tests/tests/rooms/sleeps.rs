//! Tests wait for states. A test that sleeps must explain why this is correct on a machine of any
//! speed.

use super::root;
use std::path::PathBuf;

/// Number of lines above a sleep that may contain the reason.
const ABOVE: usize = 6;

/// Returns true if a line starts a comment, or a loop that waits for a state and pauses between
/// checks.
fn is_reason(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") || line.starts_with("while ") || line.contains("for _ in 0..4800")
}

fn without_reason(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let sleeps = lines.iter().enumerate();
    let sleeps = sleeps.filter(|(_, line)| line.contains("thread::sleep("));
    let is_bare = |&at: &usize| {
        !lines[at.saturating_sub(ABOVE)..at]
            .iter()
            .any(|l| is_reason(l))
    };
    sleeps.map(|(at, _)| at).filter(is_bare).collect()
}

#[test]
fn every_sleep_of_a_test_has_its_reason() {
    let crates = std::fs::read_dir(root().join("crates")).expect("crates");
    let of_crates = crates.map(|entry| entry.expect("readable").path().join("tests"));
    let mut folders: Vec<PathBuf> = of_crates.filter(|folder| folder.is_dir()).collect();
    folders.extend(["tests/src", "tests/tests/end_to_end"].map(|folder| root().join(folder)));
    let (mut found, mut files) = (Vec::new(), 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a directory") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("text");
                let lines = without_reason(&text).into_iter();
                found.extend(lines.map(|line| format!("{}:{}", path.display(), line + 1)));
                files += 1;
            }
        }
    }
    assert!(files > 100, "{files} files");
    assert!(found.is_empty(), "sleeps without a reason: {found:#?}");
}

#[test]
fn a_bare_sleep_is_found() {
    let bare = "fn a() {\n    start();\n    std::thread::sleep(LONG);\n}\n";
    assert_eq!(without_reason(bare), [2]);
    let with = bare.replace("start();", "// Ages are times.");
    assert!(without_reason(&with).is_empty());
}
