//! What tells rows apart that would look alike: sites that end in the same function, and differ in a caller.

use crate::labels::NO_STACK;
use crate::names::without_parameters;
use crate::stacks::{from_responsible, shortened};
use crate::{StackFrame, frame_name};
use std::collections::{HashMap, HashSet};

/// Between a function and its caller.
const CALLED_BY: &str = " \u{2190} ";
/// In place of callers that are left out.
const LEFT_OUT: &str = "\u{2026}";

/// A site whose names are known.
#[derive(Clone, Copy)]
pub(crate) struct KnownSite<'a> {
    pub stack: u32,
    /// The function that allocates: `malloc`, `new`.
    pub kind: &'a str,
    /// Innermost first.
    pub frames: &'a [StackFrame],
}

/// The labels of sites. Where two of them begin with the same function, each shows the caller in which they differ
/// right behind it; where all functions are the same, the line in which they differ. Parameters are shown of functions
/// that differ in nothing else. Names longer than `room` lose parts.
pub(crate) fn labels(sites: &[KnownSite<'_>], room: usize) -> Vec<String> {
    let own: Vec<&[StackFrame]> = sites
        .iter()
        .map(|site| from_responsible(site.frames))
        .collect();
    let names = own.iter().map(|frames| frames.iter().map(frame_name));
    let names: Vec<Vec<String>> = names.map(Iterator::collect).collect();
    let mut forms: HashMap<&str, HashSet<&str>> = HashMap::new();
    for name in names.iter().flatten() {
        forms
            .entry(without_parameters(name))
            .or_default()
            .insert(name);
    }
    let shown = |name: &String| {
        let short = without_parameters(name);
        let is_alone = forms.get(short).is_none_or(|forms| forms.len() < 2);
        shortened(if is_alone { short } else { name }.to_owned(), room)
    };
    let labels = (0..sites.len()).map(|at| label(at, sites, &own, &names, &shown));
    labels.collect()
}

/// What tells each of these sites from the first other one that looks the same: a caller, a line, or what was called in
/// the library; empty where nothing is needed. `looks`: how each site is shown.
pub(crate) fn asides(sites: &[KnownSite<'_>], looks: &[String]) -> Vec<String> {
    let mut alike: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, look) in looks.iter().enumerate() {
        alike.entry(look).or_default().push(at);
    }
    let aside_of = |(at, look): (usize, &String)| {
        let others = alike.get(look.as_str())?;
        let other = *others.iter().find(|&&other| other != at)?;
        Some(aside(&sites[at], &sites[other]))
    };
    let asides = looks.iter().enumerate().map(aside_of);
    asides.map(Option::unwrap_or_default).collect()
}

fn short(frame: &StackFrame) -> String {
    /// It stands beside a name that matters more.
    const LONGEST: usize = 20;
    shortened(without_parameters(&frame_name(frame)).to_owned(), LONGEST)
}

fn aside(site: &KnownSite<'_>, other: &KnownSite<'_>) -> String {
    let (own, others) = (
        from_responsible(site.frames),
        from_responsible(other.frames),
    );
    let name = |frames: &[StackFrame], at: usize| frames.get(at).map(frame_name);
    let line = |frames: &[StackFrame], at: usize| frames.get(at).map(place);
    let mut all = 0..own.len().max(others.len());
    if let Some(at) = all.clone().find(|&at| name(own, at) != name(others, at)) {
        let caller = own.get(at);
        return caller.map_or(String::new(), |caller| {
            format!("{CALLED_BY}{}", short(caller))
        });
    }
    match all.find(|&at| line(own, at) != line(others, at)) {
        Some(0) => format!(" ({})", place(&own[0])),
        Some(at) => format!("{CALLED_BY}{} ({})", short(&own[at]), place(&own[at])),
        None => format!(" [{}]", in_the_library(site, other)),
    }
}

fn label(
    at: usize,
    sites: &[KnownSite<'_>],
    stacks: &[&[StackFrame]],
    names: &[Vec<String>],
    shown_name: &dyn Fn(&String) -> String,
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
        label += &shown_name(&own[i]);
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
        let inner = site.frames.len() - from_responsible(site.frames).len();
        let called = site.frames[..inner].iter().rev();
        called
            .map(|frame| (short(frame), place(frame)))
            .collect::<Vec<_>>()
    };
    let (own, others) = (called(site), called(other));
    let differs = |(name, _): &&(String, String)| others.iter().all(|(other, _)| other != name);
    let is_elsewhere = |frame: &&(String, String)| !others.contains(frame);
    if let Some((name, _)) = own.iter().find(differs) {
        name.clone()
    } else if let Some((name, place)) = own.iter().find(is_elsewhere) {
        format!("{place} {name}")
    } else if site.kind != other.kind || own.is_empty() != others.is_empty() {
        site.kind.to_owned()
    } else {
        format!("stack {}", site.stack)
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
        labels(&sites.collect::<Vec<_>>(), 30)
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
    fn names_fit_and_overloads_stay_apart() {
        assert_eq!(shown(&["f(int) a"]), ["f \u{2190} a"]);
        assert_eq!(
            shown(&["f(int) a", "f(char) a"]),
            ["f(int) \u{2190} a", "f(char) \u{2190} a"]
        );
        assert_eq!(
            shown(&["shop::Cache<Order,Customer>::place_order a"]),
            ["shop::Cache<...>::place_order \u{2190} a"]
        );
    }

    #[test]
    fn rows_that_look_alike_have_an_aside() {
        let found = |stacks: &[&str]| {
            let stacks: Vec<Vec<StackFrame>> = stacks
                .iter()
                .map(|stack| stack.split_whitespace().map(frame).collect())
                .collect();
            let sites = stacks.iter().zip(1..).map(|(frames, stack)| KnownSite {
                stack,
                kind: "new",
                frames,
            });
            let looks = stacks
                .iter()
                .map(|stack| from_responsible(stack)[0].function.clone());
            let looks: Vec<String> = looks.map(Option::unwrap_or_default).collect();
            asides(&sites.collect::<Vec<_>>(), &looks)
        };
        assert_eq!(found(&["a b", "c b"]), ["", ""]);
        assert_eq!(
            found(&["a b(int) c", "a d c", "x"]),
            [" \u{2190} b", " \u{2190} d", ""]
        );
        assert_eq!(found(&["a b", "a b c"]), ["", " \u{2190} c"]);
        assert_eq!(
            found(&["a b@4", "a b@9"]),
            [" \u{2190} b (a.cc:4)", " \u{2190} b (a.cc:9)"]
        );
        assert_eq!(found(&["a@1", "a@2"]), [" (a.cc:1)", " (a.cc:2)"]);
        assert_eq!(
            found(&["std::f(int) a", "std::g(int) a"]),
            [" [std::f]", " [std::g]"]
        );
        assert_eq!(found(&["std::f(int) a", "a"]), [" [std::f]", " [new]"]);
    }

    #[test]
    fn rows_that_differ_are_shown_from_the_inside() {
        assert_eq!(shown(&["a b", "c d"]), ["a \u{2190} b", "c \u{2190} d"]);
    }
}
