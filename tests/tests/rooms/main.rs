//! Rules for the structure of the project: permitted imports of crates, permitted references
//! between modules, and documents that match the code.

// Provides a `#[test]` that lets a test pass if its requirements are not installed.
#[macro_use]
extern crate memhook_tests;

mod circles;
mod crates;
mod documents;
mod errors;
mod examples;
mod file_lengths;
mod hook_headers;
mod layout;
mod option_names;
mod processors;
mod profiles;
mod refusals;
mod sleeps;
mod test_programs;

use std::path::{Path, PathBuf};

/// Returns the directory of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the text of a file of the workspace.
fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Returns the cells of the first Markdown table below the heading `title`, without its two header
/// rows.
fn table(page: &str, title: &str) -> Vec<Vec<String>> {
    let heading = format!("\n## {title}\n");
    let (_, below) = page
        .split_once(&heading)
        .unwrap_or_else(|| panic!("no heading {title:?}"));
    let rows = below
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'));
    rows.skip(2)
        .map(|row| {
            let cells = row.trim_matches('|').split('|');
            cells.map(|cell| cell.trim().to_owned()).collect()
        })
        .collect()
}
