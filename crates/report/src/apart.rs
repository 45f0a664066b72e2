//! What tells rows apart that would look alike: sites that end in the same function, and differ in a caller.

use crate::labels::NO_STACK;
use crate::names::without_parameters;
use crate::places::{fitted_place, place_of};
use crate::stacks::{LONGEST_NAME, SHORTEST_NAME, from_responsible, shortened};
use crate::wrap::{beginning, columns};
use crate::{StackFrame, Style, frame_name};
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

/// A site on one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Label {
    /// The responsible function.
    pub name: String,
    /// Its file and line, or nothing.
    pub place: String,
    /// What tells the site from others, then callers, as far as there is room for whole ones.
    pub callers: String,
}

/// The labels of sites. Where two of them begin with the same function, each shows the caller in which they differ
/// right behind it; where all functions are the same, the line in which they differ. Parameters are shown of functions
/// that differ in nothing else. What takes more columns than `room` loses callers, then parts of names and
/// directories; a line number is never cut off.
pub(crate) fn labels(sites: &[KnownSite<'_>], room: usize, style: Style) -> Vec<Label> {
    let labels = all_parts(sites, style).into_iter();
    labels.map(|parts| parts.fit(room)).collect()
}

/// Columns that the labels of sites take at least. What tells them apart is part of that.
pub(crate) fn least_columns(sites: &[KnownSite<'_>], style: Style) -> usize {
    let parts = all_parts(sites, style).into_iter();
    parts.map(|parts| parts.least()).max().unwrap_or(0)
}

fn all_parts(sites: &[KnownSite<'_>], style: Style) -> Vec<Parts> {
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
    let shown = |name: &str| {
        let short = without_parameters(name);
        let is_alone = forms.get(short).is_none_or(|forms| forms.len() < 2);
        if is_alone { short } else { name }.to_owned()
    };
    let parts = (0..sites.len()).map(|at| {
        let mut all = parts(at, sites, &own, &names, &shown);
        let place = own[at].first().map(|frame| place_of(frame, style));
        if let Some(place) = place.filter(|place| !place.is_empty()) {
            all.place = place;
        }
        all
    });
    parts.collect()
}

/// Callers that tell sites apart are not cut shorter.
const SHORTEST_CALLER: usize = 12;
/// Left for a name where what tells it from others needs the room.
const LEAST_NAME: usize = 12;

/// Columns that a place takes behind a name.
fn wide(place: &str) -> usize {
    match columns(place) {
        0 => 0,
        n => n + 2,
    }
}

/// What a label consists of, before it is fitted.
struct Parts {
    name: String,
    /// Its file and line; where the code is, if sites differ in that and the source is not known.
    place: String,
    /// In what the site differs from others within the C++ library.
    aside: String,
    callers: Vec<Caller>,
}

struct Caller {
    name: String,
    /// Functions are left out in front of it.
    follows_gap: bool,
    /// The site differs from others in it.
    matters: bool,
    place: String,
}

impl Caller {
    fn text(&self, most: usize) -> String {
        let gap = if self.follows_gap {
            format!("{CALLED_BY}{LEFT_OUT}")
        } else {
            String::new()
        };
        let place = match self.place.as_str() {
            "" => String::new(),
            place => format!(" ({place})"),
        };
        format!(
            "{gap}{CALLED_BY}{}{place}",
            shortened(self.name.clone(), most)
        )
    }
}

impl Parts {
    /// What tells the site from others.
    fn apart(&self, longest_caller: usize) -> String {
        let needed = self.callers.iter().filter(|caller| caller.matters);
        let callers = needed.map(|caller| caller.text(longest_caller));
        self.aside.clone() + &callers.collect::<String>()
    }

    /// Columns that the label takes at least.
    fn least(&self) -> usize {
        /// A name of a file beyond this is shortened, too.
        const LONGEST_PLACE: usize = 40;
        let place = wide(&fitted_place(&self.place, 0)).min(LONGEST_PLACE);
        columns(&self.name).min(SHORTEST_NAME) + place + columns(&self.apart(SHORTEST_CALLER))
    }

    fn fit(self, room: usize) -> Label {
        let least = columns(&self.name).min(SHORTEST_NAME);
        let short_place = fitted_place(&self.place, 0);
        // In this order, parts become shorter.
        let forms = [
            (&self.place, usize::MAX),
            (&self.place, SHORTEST_NAME),
            (&short_place, SHORTEST_NAME),
            (&short_place, SHORTEST_CALLER),
        ];
        let fits = |(place, most): &(&String, usize)| {
            least + wide(place) + columns(&self.apart(*most)) <= room
        };
        let is_alone = self.apart(usize::MAX).is_empty();
        let least = if is_alone {
            least
        } else {
            least.min(LEAST_NAME)
        };
        let (place, mut callers) = match forms.into_iter().find(fits) {
            Some((place, most)) => (place.clone(), self.apart(most)),
            // The name, then the place make room for what tells the site from others.
            None => {
                let apart = self.apart(SHORTEST_CALLER);
                let left = room.saturating_sub(least + 2 + columns(&apart));
                (fitted_place(&self.place, left), apart)
            }
        };
        let rest = wide(&place) + columns(&callers);
        let most = room.saturating_sub(rest);
        let most = most.max(least.min(room.saturating_sub(wide(&place))));
        let name = shortened(self.name, most);
        let left = room.saturating_sub(columns(&name) + wide(&place));
        if columns(&callers) > left {
            callers = beginning(&callers, left.saturating_sub(1)).to_owned() + LEFT_OUT;
        } else {
            // After the last one that matters, the rest as far as the line goes.
            let last = self.callers.iter().rposition(|caller| caller.matters);
            let others = &self.callers[last.map_or(0, |last| last + 1)..];
            let more = format!("{CALLED_BY}{LEFT_OUT}");
            for (at, caller) in others.iter().enumerate() {
                let text = caller.text(LONGEST_NAME);
                let is_last = at + 1 == others.len();
                let mark = if is_last { 0 } else { columns(&more) };
                if columns(&callers) + columns(&text) + mark > left {
                    if columns(&callers) + columns(&more) <= left {
                        callers += &more;
                    }
                    break;
                }
                callers += &text;
            }
        }
        Label {
            name,
            place,
            callers,
        }
    }
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

fn parts(
    at: usize,
    sites: &[KnownSite<'_>],
    stacks: &[&[StackFrame]],
    names: &[Vec<String>],
    shown_name: &dyn Fn(&str) -> String,
) -> Parts {
    let (site, frames, own) = (&sites[at], stacks[at], &names[at]);
    let mut parts = Parts {
        name: NO_STACK.to_owned(),
        place: String::new(),
        aside: String::new(),
        callers: Vec::new(),
    };
    let Some(first) = own.first() else {
        return parts;
    };
    parts.name = shown_name(first);
    let mut matters = vec![0];
    let mut with_place = Vec::new();
    for (other, others) in names.iter().enumerate() {
        if other == at || others.first() != Some(first) {
            continue;
        }
        let differs = |i: &usize| own.get(*i) != others.get(*i);
        if let Some(caller) = (0..own.len()).find(differs) {
            matters.push(caller);
        } else if own.len() == others.len() {
            let is_elsewhere = |i: &usize| place(&frames[*i]) != place(&stacks[other][*i]);
            if let Some(line) = (0..own.len()).find(is_elsewhere) {
                matters.push(line);
                with_place.push(line);
            } else {
                parts.aside = format!(" [{}]", in_the_library(site, &sites[other]));
            }
        }
    }
    if with_place.contains(&0) {
        parts.place = place(&frames[0]);
    }
    let last = matters.iter().copied().max().unwrap_or(0);
    let mut before = 0;
    for i in (1..own.len()).filter(|i| *i > last || matters.contains(i)) {
        parts.callers.push(Caller {
            name: shown_name(&own[i]),
            follows_gap: before + 1 < i,
            matters: i <= last,
            place: if with_place.contains(&i) {
                place(&frames[i])
            } else {
                String::new()
            },
        });
        before = i;
    }
    parts
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

    fn shown_in(room: usize, stacks: &[&str]) -> Vec<String> {
        let stacks: Vec<Vec<StackFrame>> = stacks
            .iter()
            .map(|stack| stack.split_whitespace().map(frame).collect())
            .collect();
        let sites = stacks.iter().zip(1..).map(|(frames, stack)| KnownSite {
            stack,
            kind: "malloc",
            frames,
        });
        let sites: Vec<KnownSite> = sites.collect();
        let shown = labels(&sites, room, Style::default());
        let shown = shown.into_iter().zip(&sites).map(|(label, site)| {
            let text = format!("{} {}{}", label.name, label.place, label.callers);
            let columns = columns(&text) + 1;
            let least = least_columns(std::slice::from_ref(site), Style::default());
            assert!(columns <= room.max(least), "{text}: {columns} > {room}");
            text
        });
        shown.collect()
    }

    fn shown(stacks: &[&str]) -> Vec<String> {
        let shown = shown_in(60, stacks);
        shown
            .into_iter()
            .map(|text| text.replacen(" src/a.cc:1", "", 1))
            .collect()
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
        assert_eq!(shown(&["a@3", "a@2"]), ["a src/a.cc:3", "a src/a.cc:2"]);
        assert_eq!(shown(&[""]), ["(no call stack) "]);
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
    }

    #[test]
    fn a_line_number_is_the_last_to_go() {
        let long = "shop::Cache<Order,Customer>::place_order@42 serve main";
        for (room, expected) in [
            (
                70,
                "shop::Cache<Order,Customer>::place_order src/a.cc:42 \u{2190} serve",
            ),
            (60, "shop::Cache<Order,Customer>::place_order src/a.cc:42"),
            (42, "shop::Cache<...>::place_order src/a.cc:42"),
            (31, "...::Cache::place_order a.cc:42"),
        ] {
            let shown = &shown_in(room + 1, &[long])[0];
            assert!(shown.starts_with(expected), "{room}: {shown}");
        }
        // What tells them apart stays longer than directories and parts of the name.
        let alike = [
            "place_many_orders@42 serve main",
            "place_many_orders@42 print main",
        ];
        for (room, expected) in [
            (
                60,
                "place_many_orders src/a.cc:42 \u{2190} serve \u{2190} main",
            ),
            (40, "place_many_orders src/a.cc:42 \u{2190} serve"),
            (36, "place_many_orders a.cc:42 \u{2190} serve"),
        ] {
            let shown = &shown_in(room, &alike)[0];
            assert!(shown.starts_with(expected), "{room}: {shown}");
        }
        // A label is never wider than asked for, and always has its line.
        for room in 34..100 {
            for shown in shown_in(room, &[long, alike[0], alike[1]]) {
                assert!(shown.contains("a.cc:42"), "{room}: {shown}");
            }
        }
    }

    #[test]
    fn what_tells_rows_apart_is_cut_last() {
        let alike = [
            "std::make_unique<shop::Session,shop::Name> shop::Sessions::login@26 serve",
            "std::make_shared<shop::Session,shop::Name> shop::Sessions::login@26 serve",
            "std::vector<std::byte>::_M_default_append shop::Sessions::login@26 serve",
            "std::vector<std::byte>::_M_realloc_insert shop::Sessions::login@26 serve",
        ];
        let distinct = |room: usize| {
            let shown = shown_in(room, &alike);
            let count = shown.iter().collect::<HashSet<_>>().len();
            assert_eq!(count, alike.len(), "{room}: {shown:#?}");
            shown
        };
        for room in 45..120 {
            distinct(room);
        }
        // From what a row wants on, it is whole.
        let sites: Vec<Vec<StackFrame>> = alike
            .iter()
            .map(|stack| stack.split_whitespace().map(frame).collect())
            .collect();
        let sites: Vec<KnownSite> = sites
            .iter()
            .zip(1..)
            .map(|(frames, stack)| KnownSite {
                stack,
                kind: "new",
                frames,
            })
            .collect();
        let least = least_columns(&sites, Style::default());
        assert!(least < 70, "{least}");
        for shown in distinct(least + 1) {
            assert!(
                shown.starts_with("shop::Sessions::login") && shown.contains(']'),
                "{shown}"
            );
        }
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
