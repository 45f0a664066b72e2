//! Within the command, code for the processors that the tracer supports is in one directory, so
//! that the rest compiles for other processors. (`.ci/run` compiles it; this test finds misplaced
//! code earlier, without a compiler.)

use super::{read, root, table};
use std::path::{Path, PathBuf};

const SOURCE: &str = "crates/cli/src";
/// Crates that another processor does not have, or not all of.
const BOUND: [&str; 2] = ["memhook_attach", "memhook_unwind"];

fn files(directory: &Path, into: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{directory:?}: {e}"));
    for path in entries.map(|entry| entry.expect("readable").path()) {
        if path.is_dir() {
            files(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// Returns the names between two delimiters.
fn between<'a>(text: &'a str, start: &str, end: char) -> Vec<&'a str> {
    let (_, rest) = text
        .split_once(start)
        .unwrap_or_else(|| panic!("no {start}"));
    let (names, _) = rest.split_once(end).expect("an end");
    let words = names.split([',', ' ', '\n']).map(str::trim);
    words.filter(|word| !word.is_empty()).collect()
}

#[test]
fn the_tracer_is_used_in_one_place_of_the_command() {
    let (source, mut found) = (root().join(SOURCE), Vec::new());
    files(&source, &mut found);
    assert!(found.len() > 30, "only {} files", found.len());
    let live = source.join("live");
    let is_misplaced = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).expect("readable");
        let code = text.lines().filter(|line| !line.trim().starts_with("//"));
        let names_it = code
            .into_iter()
            .any(|line| BOUND.iter().any(|name| line.contains(name)));
        names_it && !path.starts_with(&live)
    };
    let misplaced: Vec<_> = found.into_iter().filter(is_misplaced).collect();
    assert!(
        misplaced.is_empty(),
        "{SOURCE}: these use {BOUND:?}, which not every processor has: move them into {SOURCE}/live: {misplaced:?}"
    );
}

#[test]
fn every_command_in_that_place_is_refused_elsewhere() {
    let main = read(&format!("{SOURCE}/main.rs"));
    let not_ported = read(&format!("{SOURCE}/live/not_ported.rs"));
    let refused = between(&not_ported, "\nrefused! {", '}');
    let own = |name: &str| {
        let is_there = |form: String| not_ported.contains(&form);
        is_there(format!("\npub mod {name} {{")) || is_there(format!("\npub mod {name};"))
    };
    let commands = between(&main, "\nuse live::{", '}');
    assert!(commands.contains(&"attach"), "{commands:?}");
    for command in commands {
        assert!(
            refused.contains(&command) || own(command),
            "{SOURCE}/live/not_ported.rs: `{command}` is missing in refused! {{ }}"
        );
    }
}

/// Returns the names of the commands: `symbols` for the variant `Symbols`.
fn commands() -> Vec<String> {
    let main = read(&format!("{SOURCE}/main.rs"));
    let (_, rest) = main.split_once("\nenum Command {\n").expect("commands");
    let (variants, _) = rest.split_once("\n}\n").expect("an end");
    let is_name = |line: &&str| line.starts_with(|c: char| c.is_ascii_uppercase());
    let lines = variants
        .lines()
        .filter_map(|line| line.strip_prefix("    "));
    let names = lines
        .filter(is_name)
        .filter_map(|line| line.split_once('('));
    names.map(|(name, _)| name.to_lowercase()).collect()
}

#[test]
fn each_command_is_in_the_table_of_processors() {
    let rows = table(&read("docs/porting.md"), "Commands and processors");
    assert!(rows.iter().flatten().all(|cell| !cell.is_empty()));
    let listed: Vec<String> = rows.iter().map(|row| row[0].replace('`', "")).collect();
    assert!(listed.len() > 20, "{listed:?}");
    assert_eq!(
        listed,
        commands(),
        "docs/porting.md, as in {SOURCE}/main.rs"
    );
    // A command that refuses whatever its words are does nothing there, and no other does nothing.
    let not_ported = read(&format!("{SOURCE}/live/not_ported.rs"));
    let refused = between(&not_ported, "\nrefused! {", '}');
    for (name, row) in listed.iter().zip(&rows) {
        let is_refused = refused.contains(&name.as_str());
        assert_eq!(row[2].starts_with("no"), is_refused, "{name}: {}", row[2]);
    }
}
