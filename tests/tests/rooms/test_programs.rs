//! Programs that tests need: a missing program must not make a test fail.

use super::{read, root};
use std::path::{Path, PathBuf};

/// Returns all Rust files in a folder, at any depth.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.map(|entry| entry.expect("readable").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// Returns the main file of each test program, and the text of all of its files.
fn programs() -> Vec<(PathBuf, String)> {
    let crates = std::fs::read_dir(root().join("crates")).expect("crates");
    let packages = crates.map(|entry| entry.expect("readable").path());
    let others = ["tests", "tests/surfaces", "xtask"].map(|folder| root().join(folder));
    let tests = packages.chain(others).map(|package| package.join("tests"));
    let entries = tests.filter_map(|folder| std::fs::read_dir(folder).ok());
    let entries = entries.flatten().map(|entry| entry.expect("readable"));
    let read = |path: &PathBuf| std::fs::read_to_string(path).expect("text");
    entries
        .filter_map(|entry| match entry.path() {
            folder if folder.join("main.rs").exists() => {
                let text = sources(&folder).iter().map(read).collect();
                Some((folder.join("main.rs"), text))
            }
            file if file.is_file() => Some((file.clone(), read(&file))),
            _ => None,
        })
        .collect()
}

/// Checks that tests report missing programs through the functions of `memhook_tests`, which write to the terminal, or
/// fail in CI: the output of a passed test is not shown.
#[test]
fn what_is_not_run_is_said_by_one_of_two_functions() {
    let folders = ["crates", "tests"].map(|folder| sources(&root().join(folder)));
    let is_hidden = |path: &&PathBuf| {
        let text = std::fs::read_to_string(path).expect("text");
        let text: String = text.split_whitespace().collect();
        text.contains("println!(\"notrun")
    };
    let all: Vec<PathBuf> = folders.concat();
    assert!(all.len() > 100);
    let found: Vec<&PathBuf> = all.iter().filter(is_hidden).collect();
    assert!(
        found.is_empty(),
        "not by not_run or not_run_here: {found:#?}"
    );
}

/// Checks that each test program with `memhook_tests::leave` uses the attribute `test` of that
/// crate, under which a skipped test passes.
#[test]
fn a_test_that_is_left_passes_in_each() {
    let programs = programs();
    let ours = programs
        .iter()
        .filter(|(_, text)| text.contains("memhook_tests::"));
    let is_failing = |(path, _): &&(PathBuf, String)| {
        let text = std::fs::read_to_string(path).expect("text");
        !text.contains("#[macro_use]\nextern crate memhook_tests;\n")
    };
    assert!(ours.clone().count() > 5);
    let found: Vec<&PathBuf> = ours.filter(is_failing).map(|(path, _)| path).collect();
    assert!(
        found.is_empty(),
        "without the attribute `test` of memhook_tests: {found:#?}"
    );
}

/// Checks that each test that `cargo test` skips is in the documented table, so that none is forgotten.
#[test]
fn tests_that_are_left_out_are_listed() {
    let folders =
        ["crates", "tests", "xtask", "benches"].map(|folder| sources(&root().join(folder)));
    let texts = folders
        .iter()
        .flatten()
        .map(|path| std::fs::read_to_string(path).expect("text"));
    let mut found: Vec<String> = texts.flat_map(|text| left_out(&text)).collect();
    let page = read("CONTRIBUTING.md");
    let (_, below) = page
        .split_once("\n### Tests that cargo test leaves out\n")
        .expect("the section");
    let rows = below.lines().skip_while(|line| !line.starts_with("| `"));
    let rows = rows.map_while(|line| line.strip_prefix("| `")?.split_once("` |"));
    let mut listed: Vec<&str> = rows.map(|(name, _)| name).collect();
    found.sort_unstable();
    listed.sort_unstable();
    assert_eq!(found, listed);
}

/// Returns the names of the ignored functions in a source, except those whose reason names the test that starts them.
fn left_out(text: &str) -> Vec<String> {
    let parts = text.split("#[ignore").skip(1);
    let parts = parts.filter_map(|part| part.split_once("]\n"));
    let is_of_a_test = |reason: &str| reason.contains("test");
    let own = parts.filter(|(reason, _)| !is_of_a_test(reason));
    let names = own.filter_map(|(_, rest)| rest.split_once("fn ")?.1.split_once('('));
    names.map(|(name, _)| name.to_owned()).collect()
}
