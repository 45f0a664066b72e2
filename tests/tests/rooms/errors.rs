//! Errors are printed as a chain, each followed by its source. If an error's own text included the
//! text of its source, the source would be printed twice ("cannot read X: No such file or
//! directory: No such file or directory").

use super::root;
use std::path::{Path, PathBuf};

/// A variant of an error type, and the thiserror attribute with its text.
struct Variant<'a> {
    /// Text between the parentheses of `#[error(...)]`.
    text: &'a str,
    /// The variant with its fields.
    body: &'a str,
}

impl Variant<'_> {
    /// Returns the name of the source field, by which the text could refer to it.
    fn source(&self) -> Option<String> {
        let marked = ["#[source]", "#[from]"].into_iter().find_map(|mark| {
            let (_, rest) = self.body.split_once(mark)?;
            let (name, after) = rest.trim_start().split_once(':')?;
            // After an unnamed field such as `#[from] std::io::Error`, there is a path instead of a
            // name.
            let is_name = !after.starts_with(':') && name.bytes().all(is_of_name);
            Some(if is_name {
                name.to_owned()
            } else {
                "0".to_owned()
            })
        });
        let tuple = || {
            let is_marked = self.body.contains("#[source]") || self.body.contains("#[from]");
            is_marked.then(|| "0".to_owned())
        };
        // A field named `source` is the source even without an attribute.
        let named = || has_field(self.body, "source").then(|| "source".to_owned());
        marked.or_else(tuple).or_else(named)
    }

    fn repeats_its_source(&self) -> bool {
        let Some(source) = self.source() else {
            return false;
        };
        let shown = [format!("{{{source}}}"), format!("{{{source}:")];
        shown.iter().any(|shown| self.text.contains(shown.as_str()))
    }
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn has_field(body: &str, name: &str) -> bool {
    let fields = body.lines().map(str::trim_start);
    let mut fields = fields.filter_map(|line| line.split_once(':'));
    fields.any(|(field, _)| field == name)
}

/// Returns all variants of error types in a file.
fn variants(file: &str) -> Vec<Variant<'_>> {
    let mut pieces = file.split("#[error(");
    pieces.next();
    pieces
        .filter_map(|piece| {
            let (text, rest) = piece.split_once(")]")?;
            let end = rest.find("\n}\n").unwrap_or(rest.len());
            Some(Variant {
                text,
                body: &rest[..end],
            })
        })
        .collect()
}

pub(super) fn sources(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Checks that the test detects a repeated source and accepts other texts.
#[test]
fn a_repeated_source_is_recognized() {
    let enumeration = |text: &str, fields: &str| {
        format!(
            "#[derive(thiserror::Error)]\nenum E {{\n    #[error({text})]\n    A{fields},\n}}\n"
        )
    };
    for (text, fields, repeats) in [
        ("\"x: {source}\"", " {\n        source: Error,\n    }", true),
        (
            "\"x: {cause}\"",
            " {\n        #[source]\n        cause: Error,\n    }",
            true,
        ),
        ("\"x: {cause}\"", " {\n        cause: Error,\n    }", false),
        ("\"x\"", " {\n        source: Error,\n    }", false),
        ("\"x: {0}\"", "(#[from] std::io::Error)", true),
        ("\"x: {0}\"", "(std::io::Error)", false),
        ("transparent", "(#[from] std::io::Error)", false),
    ] {
        let file = enumeration(text, fields);
        let found = variants(&file);
        assert_eq!(found.len(), 1, "{file}");
        assert_eq!(found[0].repeats_its_source(), repeats, "{file}");
    }
}

#[test]
fn no_error_repeats_its_source() {
    let mut files = Vec::new();
    for directory in std::fs::read_dir(root().join("crates")).expect("crates") {
        sources(&directory.expect("an entry").path().join("src"), &mut files);
    }
    let (mut seen, mut faults) = (0, Vec::new());
    for path in files {
        let file = std::fs::read_to_string(&path).expect("text");
        for variant in variants(&file) {
            seen += 1;
            if variant.repeats_its_source() {
                faults.push(format!("{}: {}", path.display(), variant.text));
            }
        }
    }
    assert!(seen > 100, "only {seen} variants were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
