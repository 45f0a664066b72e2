//! Source locations, shown relative to a common directory.

use crate::labels::one_line;
use crate::wrap::{columns, ending};
use crate::{StackFrame, Style};
use std::borrow::Cow;

/// Returns `directory/file.cc:12`, relative to the source root if the file is below it, or the
/// whole path with `-v`.
pub(crate) fn place_of(frame: &StackFrame, style: Style) -> String {
    let Some(file) = &frame.file else {
        return String::new();
    };
    let line = frame.line.map_or(String::new(), |n| format!(":{n}"));
    let plain = without_detours(file);
    let plain = plain.strip_prefix("./").unwrap_or(&plain);
    let below_root = plain
        .strip_prefix(style.root)
        .filter(|_| !style.root.is_empty());
    let short = match below_root.and_then(|rest| rest.strip_prefix('/')) {
        _ if style.verbose => file,
        Some(rest) => rest,
        None => {
            let mut slashes = plain.rmatch_indices('/').map(|(at, _)| at + 1);
            slashes.nth(1).map_or(plain, |at| &plain[at..])
        }
    };
    one_line(format!("{short}{line}"))
}

/// Fits a location into `most` columns. Omits the last directories if that suffices, or else shows
/// only the file's name and the line. A name that is still too long is cut, and then begins with an
/// ellipsis.
pub(crate) fn fitted_place(place: &str, most: usize) -> String {
    /// Minimum columns of a file's name.
    const SHORTEST: usize = 24;
    if columns(place) <= most {
        return place.to_owned();
    }
    let ends = place.match_indices('/').map(|(at, _)| &place[at + 1..]);
    let ends: Vec<&str> = ends.collect();
    let own = ends.last().copied().unwrap_or(place);
    let most_of_own = most.max(SHORTEST);
    match ends.iter().find(|end| columns(end) <= most) {
        Some(end) => (*end).to_owned(),
        None if columns(own) <= most_of_own => own.to_owned(),
        None => {
            format!("\u{2026}{}", ending(own, most_of_own - 1))
        }
    }
}

/// Columns of a place in a log, whose width is unknown.
const LONGEST_PLACE: usize = 100;

/// Returns a path for a log, with or without a line. Omits detours such as `a/../`, and omits
/// directories if the path is very long.
pub fn short_place(place: &str) -> String {
    fitted_place(&without_detours(place), LONGEST_PLACE)
}

/// Directories of sources that do not belong to the program: sources of the system, of toolchains,
/// and of distributions.
const OF_OTHERS: [&str; 4] = ["/usr/", "/lib/", "/rustc/", "/build/"];

/// Returns the directory that contains all sources of the program. Empty if there is none, or if
/// nearly everything is below it.
pub(crate) fn source_root<'a>(frames: impl IntoIterator<Item = &'a StackFrame>) -> String {
    let files = frames.into_iter().filter_map(|frame| frame.file.as_deref());
    let is_own = |file: &&str| {
        let is_of_others = OF_OTHERS.iter().any(|others| file.starts_with(others));
        file.starts_with('/') && !is_of_others && !file.contains("/.cargo/")
    };
    let directory = |file| Some(without_detours(file).rsplit_once('/')?.0.to_owned());
    let common = files
        .filter(is_own)
        .filter_map(directory)
        .reduce(|one, other| {
            let parts = one.split('/').zip(other.split('/'));
            let same = parts.take_while(|(part, other)| part == other);
            let length: usize = same.map(|(part, _)| part.len() + 1).sum();
            one[..length.saturating_sub(1)].to_owned()
        });
    let common = common.filter(|root| root.matches('/').count() > 1);
    common.unwrap_or_default()
}

/// Returns `/svc/lib/a.h` for `/svc/src/../lib/a.h`.
fn without_detours(file: &str) -> Cow<'_, str> {
    if !file.contains("/../") {
        return Cow::Borrowed(file);
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in file.split('/') {
        match (part, parts.last()) {
            ("..", Some(&last)) if last != ".." && !last.is_empty() => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    Cow::Owned(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_source_root() {
        let of = |files: &[&str]| {
            let frame = |file: &&str| StackFrame {
                file: Some((*file).to_owned()),
                line: Some(7),
                ..StackFrame::default()
            };
            let frames: Vec<StackFrame> = files.iter().map(frame).collect();
            let style = Style {
                root: &source_root(&frames),
                ..Style::default()
            };
            frames
                .iter()
                .map(|frame| place_of(frame, style))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of(&[
                "/w/svc/src/a.cc",
                "/usr/include/c++/12/new",
                "/w/svc/src/db/deep/b.cc",
                "/w/svc/lib.cc"
            ]),
            ["src/a.cc:7", "12/new:7", "src/db/deep/b.cc:7", "lib.cc:7"]
        );
        assert_eq!(of(&["/w/svc/a.cc"]), ["a.cc:7"]);
        assert_eq!(
            of(&["/w/svc/src/a.cc", "/w/svc/src/../lib/b.h", "/w/../../x/c.h"]),
            ["src/a.cc:7", "lib/b.h:7", "x/c.h:7"]
        );
        assert_eq!(
            of(&["/w/svc/a.cc", "/w/svc2/a.cc"]),
            ["svc/a.cc:7", "svc2/a.cc:7"]
        );
        assert_eq!(
            of(&["/w/svc/a.cc", "/opt/x/b.cc", "./src/c.c"]),
            ["svc/a.cc:7", "x/b.cc:7", "src/c.c:7"]
        );
    }

    #[test]
    fn a_place_loses_directories_first() {
        assert_eq!(fitted_place("a/b/c.cc:1", 10), "a/b/c.cc:1");
        assert_eq!(fitted_place("a/b/c.cc:1", 9), "b/c.cc:1");
        assert_eq!(fitted_place("a/b/c.cc:1", 0), "c.cc:1");
        assert_eq!(
            short_place("csu/../csu/libc-start.c:360"),
            "csu/libc-start.c:360"
        );
        let deep = format!("/src/{}/end.cc:7", vec!["directory"; 1_000].join("/"));
        let short = short_place(&deep);
        assert!(
            short.ends_with("directory/end.cc:7") && short.len() <= LONGEST_PLACE,
            "{short}"
        );
        let long = "a_very_long_name_of_a_source_file.cc:1234";
        assert_eq!(fitted_place(long, 0), "\u{2026}f_a_source_file.cc:1234");
        assert_eq!(fitted_place(&format!("src/{long}"), 41), long);
    }
}
