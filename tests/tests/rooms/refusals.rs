//! Checks that the refusals page contains every refusal message of a command, and no message that
//! is not in the code.

use super::errors::sources;
use super::{read, root};
use std::collections::BTreeSet;

const PAGE: &str = "docs/refusals.md";
/// Placeholder for a value on the page.
const VALUE: &str = "…";
/// Code that precedes a message, and the number of arguments before the message.
const MARKS: [(&str, usize); 3] = [("#[error(", 0), ("Check::bad(", 1), ("gaps.push(", 0)];

/// Files whose errors are not command refusals, each with the reason.
const OTHERS: [(&str, &str); 9] = [
    ("agent/", "a mistake in a configuration, with its key"),
    ("memhook/", "its users are programs"),
    ("unwind/", "the module is traced without its table"),
    ("foreign/src/units.rs", "a mistake on the command line"),
    (
        "report/src/scores/formula",
        "a mistake in a formula, with its column",
    ),
    (
        "report/src/formats/",
        "a note about a profile of another program",
    ),
    ("symbols/src/error.rs", "a note: names are left out"),
    ("symbols/src/debuginfod.rs", "a note: names are left out"),
    (
        "process/src/python/",
        "a note: Python's functions are left out",
    ),
];

/// Returns the string literal at the start of a text in its printed form, with [`VALUE`] for each
/// value. Returns `None` if the text does not start with a literal.
fn literal(text: &str) -> Option<String> {
    let text = text.trim_start();
    let text = text.strip_prefix("format!(").unwrap_or(text).trim_start();
    let mut letters = text.strip_prefix('"')?.chars().peekable();
    let mut message = String::new();
    loop {
        match letters.next()? {
            '"' => return Some(message),
            '\\' => match letters.next()? {
                // The literal continues after the indentation of the next line.
                '\n' => while letters.next_if(|c| c.is_whitespace()).is_some() {},
                c => message.push(c),
            },
            '{' => {
                letters.by_ref().find(|&c| c == '}')?;
                message += VALUE;
            }
            c => message.push(c),
        }
    }
}

/// Returns the messages of a file, except those that consist only of values (`{path}: {cause}`).
fn messages(file: &str) -> BTreeSet<String> {
    let code = file.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut found = BTreeSet::new();
    for (mark, before) in MARKS {
        for rest in code.split(mark).skip(1) {
            let argument = (0..before).try_fold(rest, |rest, _| Some(rest.split_once(',')?.1));
            found.extend(argument.and_then(literal).filter(|m| words(m) >= 2));
        }
    }
    found
}

fn words(message: &str) -> usize {
    let is_word = |word: &&str| word.chars().filter(|c| c.is_ascii_alphabetic()).count() >= 2;
    message.split(' ').filter(is_word).count()
}

/// Returns the messages in the first column of the page's tables.
fn listed(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split_once("` | "));
    cells.map(|(message, _)| message.to_owned()).collect()
}

#[test]
fn the_page_has_every_refusal() {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).expect("a directory") {
        sources(&entry.expect("readable").path().join("src"), &mut files);
    }
    let mut known = BTreeSet::new();
    for path in files {
        let place = path.to_string_lossy().into_owned();
        let place = place.rsplit_once("/crates/").expect("below crates").1;
        if OTHERS.iter().any(|(other, _)| place.starts_with(other)) || place.ends_with("tests.rs") {
            continue;
        }
        known.extend(messages(&std::fs::read_to_string(&path).expect("text")));
    }
    assert!(known.len() > 100, "{} messages", known.len());
    let listed = listed(&read(PAGE));
    let missing: Vec<&String> = known.difference(&listed).collect();
    assert!(
        missing.is_empty(),
        "{PAGE} needs a row for each of {missing:#?}"
    );
    let unknown: Vec<&String> = listed.difference(&known).collect();
    assert!(
        unknown.is_empty(),
        "{PAGE} has what no command says: {unknown:#?}"
    );
}

#[test]
fn messages_are_found_in_code() {
    let code = r#"
        #[error("cannot read {path}: \
                 {cause}")]
        #[error("{0}: {1}")]
        #[error(transparent)]
        Check::bad("state", format!("process {pid} is \"gone\""), "x")
        Check::bad(NAME, error.to_string(), "try again")
        gaps.push("two words".into())
    "#;
    let found = messages(code);
    let wanted = ["cannot read …: …", "process … is \"gone\"", "two words"];
    assert_eq!(found, wanted.map(str::to_owned).into());
    let page = "| message | x |\n|---|---|\n| `cannot read …: …` | y |\n";
    assert_eq!(listed(page), ["cannot read …: …".to_owned()].into());
}
