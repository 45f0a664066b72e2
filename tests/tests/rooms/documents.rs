//! Documents name only existing files, have no dead links, and no overlong lines.

use super::root;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Maximum width of a line in a document, in characters.
const COLUMNS: usize = 100;
/// Prefixes of paths between backticks that must exist.
const PLACES: [&str; 8] = [
    "crates/",
    "docs/",
    "hook-cxx/",
    "tests/",
    "benches/",
    "xtask/",
    "experiments/",
    "fuzz/",
];

/// A document as lines.
struct Page {
    /// Path relative to the workspace.
    path: PathBuf,
    text: String,
}

impl Page {
    /// Returns lines with their numbers from 1, without lines of code blocks.
    fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut is_code = false;
        let lines = (1..).zip(self.text.lines());
        lines.filter(move |(_, line)| {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            !is_code && !is_fence
        })
    }

    fn at(&self, line: usize, what: &str) -> String {
        format!("{}:{line}: {what}", self.path.display())
    }
}

fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    collect(Path::new(""), &mut pages);
    pages
}

fn collect(directory: &Path, into: &mut Vec<Page>) {
    let entries = std::fs::read_dir(root().join(directory)).expect("a directory");
    for entry in entries.map(|entry| entry.expect("readable")) {
        let name = entry.file_name();
        let path = directory.join(&name);
        let name = name.to_string_lossy();
        if entry.file_type().expect("readable").is_dir() {
            if !name.starts_with('.') && name != "target" {
                collect(&path, into);
            }
        } else if name.ends_with(".md") {
            let text = std::fs::read_to_string(entry.path()).expect("text");
            into.push(Page { path, text });
        }
    }
}

/// Returns the texts between backticks.
fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Returns the targets of links.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let parts = line.split("](").skip(1);
    parts.filter_map(|part| Some(part.split_once(')')?.0))
}

/// Returns the anchors that a renderer gives to the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|heading| {
            let title = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter_map(|c| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
                _ => None,
            });
            kept.collect()
        })
        .collect()
}

/// Returns the fault of a link, if any.
fn fault_of_link(page: &Page, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let text = if file.is_empty() {
        page.text.clone()
    } else {
        let path = root().join(&page.path).parent()?.join(file);
        if path.is_dir() {
            return None;
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => text,
            // The target is a picture.
            Err(_) if path.exists() => String::new(),
            Err(_) => return Some(format!("the link leads to nothing: {link}")),
        }
    };
    let is_known = anchor.is_empty() || anchors(&text).contains(anchor);
    (!is_known).then(|| format!("no heading for the link {link}"))
}

/// The page whose file names are relative to the end-to-end tests.
const PAGE_OF_TESTS: &str = "docs/safety.md";
const TESTS: &str = "tests/tests/end_to_end";

/// Returns true if a path below `base` exists; `*` stands for any file.
fn exists(base: &Path, path: &str) -> bool {
    let Some((directory, pattern)) = path.rsplit_once('/').filter(|(_, f)| f.contains('*')) else {
        return base.join(path).exists();
    };
    let (before, after) = pattern.split_once('*').expect("a star");
    let entries = std::fs::read_dir(base.join(directory))
        .into_iter()
        .flatten();
    let mut names = entries
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned());
    names.any(|name| name.starts_with(before) && name.ends_with(after))
}

fn faults(page: &Page) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in page.prose() {
        let width = line.chars().count();
        if width > COLUMNS && !line.starts_with('|') {
            faults.push(page.at(number, &format!("{width} columns")));
        }
        let found = links(line).filter_map(|link| fault_of_link(page, link));
        faults.extend(found.map(|fault| page.at(number, &fault)));
        for span in code_spans(line) {
            // The path is relative to the directory of the page or of the workspace.
            let own = root().join(page.path.parent().unwrap_or(Path::new("")));
            let is_own = span.starts_with("src/");
            let is_path = is_own || PLACES.iter().any(|place| span.starts_with(place));
            // Capital letters stand for a name.
            let is_pattern = span.contains(|c: char| c.is_uppercase() || c.is_whitespace())
                && !span.ends_with(".md");
            let is_test =
                page.path == Path::new(PAGE_OF_TESTS) && span.ends_with(".rs") && !is_path;
            if is_test && !exists(&root().join(TESTS), span) {
                faults.push(page.at(number, &format!("there is no test {span}")));
            }
            let is_there = exists(&root(), span) || exists(&own, span);
            let is_built = span.split('/').any(|part| part == "target");
            if is_path && !is_pattern && !is_built && !is_there {
                faults.push(page.at(number, &format!("{span} is not there")));
            }
        }
    }
    faults
}

#[test]
fn documents_are_true_to_the_tree() {
    let pages = pages();
    assert!(pages.len() > 10, "{} documents", pages.len());
    let faults: Vec<String> = pages.iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns the pages of a directory below docs/, in the form of links from docs/SUMMARY.md.
fn pages_of(directory: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(root().join("docs").join(directory)).expect("a directory");
    let names = entries.map(|entry| entry.expect("readable").file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    let pages = names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md");
    pages
        .map(|name| Path::new(directory).join(name).display().to_string())
        .collect()
}

/// Checks that the book contains every page, because readers cannot find a missing page.
#[test]
fn the_book_has_every_page_once() {
    let summary = super::read("docs/SUMMARY.md");
    let listed: Vec<&str> = summary.lines().flat_map(links).collect();
    let once: BTreeSet<String> = listed.iter().map(|&link| link.to_owned()).collect();
    assert_eq!(listed.len(), once.len(), "{listed:?}");
    let there: BTreeSet<String> = ["", "guide", "design"]
        .into_iter()
        .flat_map(pages_of)
        .collect();
    assert_eq!(once, there);
}

#[test]
fn entry_pages_are_short() {
    for (page, most) in [("README.md", 250), ("ARCHITECTURE.md", 350)] {
        let lines = super::read(page).lines().count();
        assert!(lines <= most, "{page} has {lines} lines");
    }
}

#[test]
fn every_crate_has_a_readme() {
    let entries = std::fs::read_dir(root().join("crates")).expect("crates");
    let directories = entries.map(|entry| entry.expect("readable").path());
    let missing = directories.filter(|directory| {
        directory.join("Cargo.toml").exists() && !directory.join("README.md").exists()
    });
    let missing: Vec<PathBuf> = missing.collect();
    assert!(missing.is_empty(), "no README.md in {missing:?}");
}

#[test]
fn a_false_document_is_found() {
    let page = |text: &str| Page {
        path: PathBuf::from("README.md"),
        text: text.to_owned(),
    };
    let wide = "x".repeat(COLUMNS + 1);
    for bad in [
        &wide,
        "[a page](docs/none.md)",
        "[a part](docs/safety.md#none)",
        "[a part](#none)",
        "`crates/none`",
        "`docs/none-*.md`",
    ] {
        assert_eq!(faults(&page(bad)).len(), 1, "{bad}");
    }
    let good = format!(
        "# A part, here\n\n[it](#a-part-here) [b](docs/safety.md) [c](https://d) `crates/abi`\n\
         `docs/*.md` `crates/NAME`\n```\n{wide}\n```\n| {wide} |\n"
    );
    assert_eq!(faults(&page(&good)), Vec::<String>::new());
}
