//! Option names in texts of the program: only crates with texts for users of the command may
//! contain them, and each named option must exist.

use super::errors::sources;
use super::examples::options_of;
use super::root;
use std::collections::BTreeSet;
use std::path::Path;

/// Crates with texts for users of the command. Other crates must not name options.
const SHOWN: [&str; 5] = ["advice", "agent", "cli", "gate", "report"];
/// Options of other programs, each with the line that calls the program.
const OTHERS: [&str; 6] = [
    "prlimit",
    "docker run",
    "--exact",
    "--alloc-fns",
    "--goto",
    "--line",
];

/// Returns the options in string literals of the file, outside comments, each with its line.
fn options(file: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(file.lines()) {
        if line.trim_start() == "#[cfg(test)]" {
            break;
        }
        let is_code = !line.trim_start().starts_with("//");
        if !is_code || OTHERS.iter().any(|other| line.contains(other)) {
            continue;
        }
        for piece in line.split("--").skip(1) {
            let name: String = piece
                .chars()
                .take_while(|c| c.is_ascii_lowercase() || *c == '-')
                .collect();
            if name.starts_with(|c: char| c.is_ascii_lowercase()) {
                found.push((number, format!("--{name}")));
            }
        }
    }
    found
}

#[test]
fn words_stay_at_the_edge() {
    let (mut known, mut count) = (BTreeSet::new(), 0);
    for line in super::read("crates/cli/src/main.rs").lines() {
        // Matches `    Attach(Box<attach::Args>),` in the list of commands.
        let variant = line.strip_prefix("    ").unwrap_or_default();
        let name = variant.split('(').next().unwrap_or_default();
        if variant.contains("(") && name.chars().all(char::is_alphabetic) {
            known.extend(options_of(&[&name.to_lowercase()]).unwrap_or_default());
        }
    }
    known.extend(options_of(&["symbols", "pack"]).expect("a command"));
    let mut faults = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).expect("a directory") {
        let folder = entry.expect("readable").path();
        let name = folder
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let is_shown = SHOWN.contains(&&*name);
        let mut files = Vec::new();
        sources(&folder.join("src"), &mut files);
        for path in files {
            let is_test = |path: &Path| path.to_string_lossy().ends_with("tests.rs");
            if is_test(&path) {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("text");
            for (line, option) in options(&text) {
                count += 1;
                let place = format!("{}:{line}", path.display());
                if !is_shown {
                    faults.push(format!("{place}: a library names {option}"));
                } else if !known.contains(&option) {
                    faults.push(format!("{place}: no command has {option}"));
                }
            }
        }
    }
    assert!(count > 50, "{count} options");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
