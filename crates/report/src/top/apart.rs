//! What tells rows apart that would look alike: sites that end in the same function, and differ in a caller.

use crate::labels::NO_STACK;
use crate::names::{around_parameters, is_plumbing};
use crate::{StackFrame, frame_name};

/// Between a function and its caller.
const CALLED_BY: &str = " \u{2190} ";
/// In place of callers that are left out.
const LEFT_OUT: &str = "\u{2026}";

/// A site whose names are known.
pub(super) struct KnownSite<'a> {
    pub stack: u32,
    /// The function that allocates: `malloc`, `new`.
    pub kind: &'a str,
    /// Innermost first.
    pub frames: &'a [StackFrame],
}

/// The labels of sites. Where two of them begin with the same function, each shows the caller in which they differ
/// right behind it; where all functions are the same, the line in which they differ.
pub(super) fn labels(sites: &[KnownSite<'_>]) -> Vec<String> {
    let own: Vec<&[StackFrame]> = sites.iter().map(|site| own_frames(site.frames)).collect();
    let names = own.iter().map(|frames| frames.iter().map(frame_name));
    let names: Vec<Vec<String>> = names.map(Iterator::collect).collect();
    let labels = (0..sites.len()).map(|at| label(at, sites, &own, &names));
    labels.collect()
}

/// Without the C++ library's own functions at the inner end.
fn own_frames(frames: &[StackFrame]) -> &[StackFrame] {
    let is_own = |frame: &StackFrame| frame.function.as_deref().is_none_or(|f| !is_plumbing(f));
    &frames[frames.iter().position(is_own).unwrap_or(0)..]
}

fn label(
    at: usize,
    sites: &[KnownSite<'_>],
    stacks: &[&[StackFrame]],
    names: &[Vec<String>],
) -> String {
    let (site, frames, own) = (&sites[at], stacks[at], &names[at]);
    let Some(first) = own.first() else {
        return NO_STACK.to_owned();
    };
    let mut shown = vec![0];
    let mut with_place = Vec::new();
    let mut aside = String::new();
    for (other, others) in names.iter().enumerate() {
        if other == at || others.first() != Some(first) {
            continue;
        }
        let differs = |i: &usize| own.get(*i) != others.get(*i);
        if let Some(caller) = (0..own.len()).find(differs) {
            shown.push(caller);
        } else if own.len() == others.len() {
            let is_elsewhere = |i: &usize| place(&frames[*i]) != place(&stacks[other][*i]);
            if let Some(line) = (0..own.len()).find(is_elsewhere) {
                shown.push(line);
                with_place.push(line);
            } else {
                aside = format!(" [{}]", in_the_library(site, &sites[other]));
            }
        }
    }
    // After the last one that matters, the rest as far as the screen goes.
    let last = shown.iter().copied().max().unwrap_or(0);
    shown.extend(last + 1..own.len());
    shown.sort_unstable();
    shown.dedup();
    let mut label = String::new();
    let mut before = None;
    for i in shown {
        if let Some(before) = before {
            label += CALLED_BY;
            if before + 1 < i {
                label += LEFT_OUT;
                label += CALLED_BY;
            }
        }
        label += &own[i];
        if with_place.contains(&i) {
            label += &format!(" ({})", place(&frames[i]));
        }
        if i == 0 {
            label += &aside;
        }
        before = Some(i);
    }
    label
}

/// In what two sites differ whose functions are the same, but for those of the C++ library.
fn in_the_library(site: &KnownSite<'_>, other: &KnownSite<'_>) -> String {
    let called = |site: &KnownSite<'_>| {
        let inner = site.frames.len() - own_frames(site.frames).len();
        let called = site.frames[..inner].iter().rev();
        called
            .map(|frame| (without_parameters(frame_name(frame)), place(frame)))
            .collect::<Vec<_>>()
    };
    let (own, others) = (called(site), called(other));
    let differs = |(name, _): &&(String, String)| others.iter().all(|(other, _)| other != name);
    let is_elsewhere = |frame: &&(String, String)| !others.contains(frame);
    if let Some((name, _)) = own.iter().find(differs) {
        name.clone()
    } else if let Some((name, place)) = own.iter().find(is_elsewhere) {
        format!("{place} {name}")
    } else if site.kind != other.kind {
        site.kind.to_owned()
    } else {
        format!("stack {}", site.stack)
    }
}

/// `std::string::append` of `std::string::append(char const*)`: a label has little room.
fn without_parameters(name: String) -> String {
    match around_parameters(&name) {
        Some((front, _)) => front.to_owned(),
        None => name,
    }
}

/// `parse.cc:42`, or where the code is if nobody knows its line.
fn place(frame: &StackFrame) -> String {
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => {
            let name = file.rsplit('/').next().unwrap_or(file);
            format!("{name}:{line}")
        }
        _ => frame
            .offset
            .clone()
            .unwrap_or_else(|| frame.address.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &str) -> StackFrame {
        let (function, line) = text.split_once('@').unwrap_or((text, "1"));
        StackFrame {
            function: Some(function.into()),
            file: Some("src/a.cc".into()),
            line: line.parse().ok(),
            ..StackFrame::default()
        }
    }

    fn shown(stacks: &[&str]) -> Vec<String> {
        let stacks: Vec<Vec<StackFrame>> = stacks
            .iter()
            .map(|stack| stack.split_whitespace().map(frame).collect())
            .collect();
        let sites = stacks.iter().zip(1..).map(|(frames, stack)| KnownSite {
            stack,
            kind: "malloc",
            frames,
        });
        labels(&sites.collect::<Vec<_>>())
    }

    #[test]
    fn the_caller_that_differs_comes_first() {
        assert_eq!(
            shown(&["copy load main", "copy load store main", "free main"]),
            [
                "copy \u{2190} \u{2026} \u{2190} main",
                "copy \u{2190} \u{2026} \u{2190} store \u{2190} main",
                "free \u{2190} main",
            ]
        );
        // One of them may end where the other goes on.
        assert_eq!(
            shown(&["a b c", "a b"]),
            ["a \u{2190} \u{2026} \u{2190} c", "a \u{2190} b"]
        );
    }

    #[test]
    fn of_the_same_calls_it_is_the_line() {
        assert_eq!(
            shown(&["a@1 b@4 main", "a@1 b@9 main"]),
            [
                "a \u{2190} b (a.cc:4) \u{2190} main",
                "a \u{2190} b (a.cc:9) \u{2190} main"
            ]
        );
        assert_eq!(
            shown(&["a@1", "a@2", ""]),
            ["a (a.cc:1)", "a (a.cc:2)", "(no call stack)"]
        );
        // They differ in what is not shown: the allocator's function, or the library's plumbing.
        assert_eq!(
            shown(&["std::x a b", "std::y a b"]),
            ["a [std::x] \u{2190} b", "a [std::y] \u{2190} b"]
        );
        assert_eq!(
            shown(&["std::x@3 a b", "std::x@4 a b"]),
            [
                "a [a.cc:3 std::x] \u{2190} b",
                "a [a.cc:4 std::x] \u{2190} b"
            ]
        );
        assert_eq!(
            shown(&["std::f(int) a", "std::g(int) a"]),
            ["a [std::f]", "a [std::g]"]
        );
        assert_eq!(shown(&["a", "a"]), ["a [stack 1]", "a [stack 2]"]);
    }

    #[test]
    fn rows_that_differ_are_shown_from_the_inside() {
        assert_eq!(shown(&["a b", "c d"]), ["a \u{2190} b", "c \u{2190} d"]);
    }
}
