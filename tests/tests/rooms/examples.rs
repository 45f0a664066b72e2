//! Examples in the documents: memhook-rs must know each command and option in them.

use super::root;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories of pages with examples, in addition to the README.
const PLACES: [&str; 3] = ["docs", "docs/guide", "docs/design"];

/// Returns the binary of this build, and builds it if necessary.
fn binary() -> PathBuf {
    let own = std::env::current_exe().expect("the test's own path");
    let beside = own.ancestors().nth(2).map(|dir| dir.join("memhook-rs"));
    match beside {
        Some(path) if path.exists() => path,
        _ => memhook_tests::binary().to_owned(),
    }
}

fn pages() -> Vec<(PathBuf, String)> {
    let mut paths = vec![PathBuf::from("README.md")];
    for place in PLACES {
        let entries = std::fs::read_dir(root().join(place)).expect("a directory");
        let names = entries.map(|entry| entry.expect("readable").file_name());
        let pages = names.filter(|name| name.to_string_lossy().ends_with(".md"));
        paths.extend(pages.map(|name| Path::new(place).join(name)));
    }
    let read = |path: PathBuf| {
        let mut text = std::fs::read_to_string(root().join(&path)).expect("text");
        if path.ends_with("refusals.md") {
            text = without_messages(&text);
        }
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

/// Returns a page without the tables of messages, because a message is not an example.
fn without_messages(page: &str) -> String {
    let lines = page.lines().map(|line| match line.strip_prefix("| `") {
        Some(row) => row.split_once("` | ").map_or("", |(_, remedy)| remedy),
        None => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns texts that may contain command lines: code spans, and lines of code blocks, which are
/// joined if they end in a backslash.
fn examples(page: &str) -> Vec<String> {
    let (mut found, mut is_code, mut begun) = (Vec::new(), false, String::new());
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            match line.strip_suffix('\\') {
                Some(part) => begun += part,
                None => found.push(std::mem::take(&mut begun) + line),
            }
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

/// Returns the words after each `memhook-rs`, up to the words that a shell or another program
/// reads.
fn command_lines(example: &str) -> Vec<Vec<String>> {
    let (mut lines, mut words, mut word, mut quote) = (Vec::new(), Vec::new(), String::new(), None);
    for c in example.chars().chain([';']) {
        match c {
            '\'' | '"' if quote == Some(c) => quote = None,
            '\'' | '"' if quote.is_none() => quote = Some(c),
            _ if quote.is_some() => word.push(c),
            ' ' | '|' | '>' | '&' | ';' | '(' | ')' => {
                words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
                if c != ' ' {
                    lines.push(std::mem::take(&mut words));
                }
            }
            c => word.push(c),
        }
    }
    // Text after an unclosed quote is prose.
    let ours = lines.into_iter().filter_map(|words| {
        let name = words.iter().position(|word| word == "memhook-rs")?;
        let own = words[name + 1..].iter();
        let own = own.take_while(|word| *word != "--" && !word.starts_with('#'));
        Some(own.cloned().collect::<Vec<_>>())
    });
    ours.filter(|words| !words.is_empty()).collect()
}

/// Returns the options in the help of a command, or `None` if there is no such command.
pub(super) fn options_of(command: &[&str]) -> Option<BTreeSet<String>> {
    let help = Command::new(binary()).args(command).arg("--help").output();
    let help = help.expect("memhook-rs runs");
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    let words = text.split(|c: char| c.is_whitespace() || ",[]=<>.".contains(c));
    let options = words
        .filter(|word| word.starts_with('-'))
        .map(str::to_owned);
    help.status.success().then(|| options.collect())
}

/// Returns the option in a word: `--top` for `--top=3`, and `-T` for `-T`. Ignores words with
/// several short options.
fn option(word: &str) -> Option<&str> {
    let name = word.split('=').next()?;
    let is_long = name.starts_with("--") && name.len() > 2;
    let is_short = name.len() == 2 && name.starts_with('-') && name != "--";
    (is_long || is_short).then_some(name)
}

/// Returns the parts of an example that memhook-rs does not know.
fn unknown(example: &str, known: &mut BTreeMap<String, Option<BTreeSet<String>>>) -> Vec<String> {
    let mut faults = Vec::new();
    for words in command_lines(example) {
        let name = words[0].as_str();
        // A name in capitals, an option of the program itself, and its help are not commands.
        let is_command = name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        if !is_command || name.starts_with('-') || name == "help" {
            continue;
        }
        let group = [name, words.get(1).map_or("", String::as_str)];
        let command = if name == "symbols" {
            &group[..]
        } else {
            &group[..1]
        };
        let options = known.entry(command.join(" "));
        let Some(options) = options.or_insert_with(|| options_of(command)) else {
            faults.push(format!("no command {}", command.join(" ")));
            continue;
        };
        let named = words.iter().filter_map(|word| option(word));
        let missing = named.filter(|name| !options.contains(*name));
        faults.extend(missing.map(|option| format!("{name} has no {option}")));
    }
    faults
}

#[test]
fn memhook_rs_knows_what_the_documents_call() {
    let (mut known, mut faults, mut count) = (BTreeMap::new(), Vec::new(), 0);
    for (path, text) in pages() {
        for example in examples(&text) {
            count += command_lines(&example).len();
            let unknown = unknown(&example, &mut known);
            faults.extend(unknown.iter().map(|f| format!("{}: {f}", path.display())));
        }
    }
    assert!(count > 100, "{count} examples");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn an_example_that_is_wrong_is_found() {
    let mut known = BTreeMap::new();
    for (example, fault) in [
        ("memhook-rs frobnicate 1", "no command frobnicate"),
        (
            "cat x | memhook-rs report - --none=1",
            "report has no --none",
        ),
        ("x=$(memhook-rs detach 1 -Z)", "detach has no -Z"),
    ] {
        assert_eq!(unknown(example, &mut known), [fault], "{example}");
    }
    for good in [
        "memhook-rs run -d 10s -- ./server --none",
        "memhook-rs COMMAND --none",
        "memhook-rs probe 1 --func 'a --none' # --none",
        "memhook-rs symbols pack run.mhk -o run.syms",
    ] {
        assert_eq!(unknown(good, &mut known), [""; 0], "{good}");
    }
    let page = "`memhook-rs top 1`\n```\nmemhook-rs a \\\n  -b\n```\n";
    assert_eq!(examples(page), ["memhook-rs top 1", "memhook-rs a   -b"]);
}
