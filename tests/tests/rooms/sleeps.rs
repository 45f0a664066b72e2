//! Tests wait for states. A test that sleeps must explain why this is correct on a machine of any
//! speed.

use super::root;
use std::path::{Path, PathBuf};

/// Number of lines above a sleep that may contain the reason.
const ABOVE: usize = 6;

/// Returns true if a line starts a comment, or belongs to a loop that waits for a state and pauses
/// between checks.
fn is_reason(line: &str) -> bool {
    let of_loop = ["while ", "for _ in 0..4800", "Instant::now() < until"];
    let line = line.trim_start();
    line.starts_with("//") || of_loop.iter().any(|part| line.contains(part))
}

/// Returns the index of the first line of a file's tests.
fn first_of_tests(path: &Path, lines: &[&str]) -> Option<usize> {
    let name = path.file_name()?.to_str()?;
    let is_of_crate = path.components().any(|part| part.as_os_str() == "src");
    if name.ends_with("tests.rs") || !is_of_crate || path.starts_with(root().join("tests")) {
        return Some(0);
    }
    lines.windows(2).position(|pair| {
        let [attribute, module] = pair else {
            return false;
        };
        *attribute == "#[cfg(test)]" && module.starts_with("mod ") && module.ends_with('{')
    })
}

fn without_reason(path: &Path, text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let Some(first) = first_of_tests(path, &lines) else {
        return Vec::new();
    };
    let sleeps = lines.iter().enumerate().skip(first);
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
    let of_crates = crates.map(|entry| entry.expect("readable").path());
    let of_crates = of_crates.flat_map(|of| [of.join("src"), of.join("tests")]);
    let mut folders: Vec<PathBuf> = of_crates.filter(|folder| folder.is_dir()).collect();
    let of_tests = ["tests/src", "tests/tests/end_to_end"];
    folders.extend(of_tests.map(|folder| root().join(folder)));
    let (mut found, mut files) = (Vec::new(), 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a directory") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("text");
                let lines = without_reason(&path, &text).into_iter();
                found.extend(lines.map(|line| format!("{}:{}", path.display(), line + 1)));
                files += 1;
            }
        }
    }
    assert!(files > 600, "{files} files");
    assert!(found.is_empty(), "sleeps without a reason: {found:#?}");
}

#[test]
fn a_bare_sleep_is_found() {
    let bare = "fn a() {\n    start();\n    std::thread::sleep(LONG);\n}\n";
    let of_test = Path::new("crates/a/tests/a.rs");
    assert_eq!(without_reason(of_test, bare), [2]);
    let with = bare.replace("start();", "// Ages are times.");
    assert!(without_reason(of_test, &with).is_empty());
    // Of a crate's sources, only the tests count.
    let of_crate = Path::new("crates/a/src/a.rs");
    assert!(without_reason(of_crate, bare).is_empty());
    let both = format!("{bare}\n#[cfg(test)]\nmod tests {{\n{bare}}}\n");
    assert_eq!(without_reason(of_crate, &both), [9]);
}
