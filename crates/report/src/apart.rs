//! Differences between rows that would otherwise look the same: sites that end in the same function
//! but have different callers.

use crate::labels::NO_STACK;
use crate::names::without_parameters;
use crate::places::{fitted_place, place_of};
use crate::stacks::{LONGEST_NAME, SHORTEST_NAME, from_responsible, shortened};
use crate::wrap::{beginning, columns};
use crate::{StackFrame, Style, frame_name};
use std::collections::{HashMap, HashSet};

/// Separator between a function and its caller.
const CALLED_BY: &str = " \u{2190} ";
/// Mark in place of omitted callers.
const LEFT_OUT: &str = "\u{2026}";

/// A site whose names are known.
#[derive(Clone, Copy)]
pub(crate) struct KnownSite<'a> {
    pub stack: u32,
    /// The function that allocates, such as `malloc` or `new`.
    pub kind: &'a str,
    /// Frames, innermost first.
    pub frames: &'a [StackFrame],
}

/// A site on one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Label {
    /// The responsible function.
    pub name: String,
    /// File and line of the function, or an empty text.
    pub place: String,
    /// The distinguishing caller, then as many whole callers as fit.
    pub callers: String,
}

/// Labels the sites. If two sites begin with the same function, each label shows the first
/// differing caller directly after it. If all functions are equal, the labels show the differing
/// line. Parameters appear only for functions that do not differ in anything else. A label wider
/// than `room` loses callers, then parts of names and directories. It never loses a line number.
pub(crate) fn labels(sites: &[KnownSite<'_>], room: usize, style: Style) -> Vec<Label> {
    let labels = all_parts(sites, style).into_iter();
    labels.map(|parts| parts.fit(room)).collect()
}

/// Returns the minimum width in columns of the labels of sites, including the part that
/// distinguishes similar sites.
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

/// Minimum columns of a caller that distinguishes sites.
const SHORTEST_CALLER: usize = 12;
/// Minimum number of columns for a name when a distinguishing part needs space.
const LEAST_NAME: usize = 12;

/// Returns the columns that a place takes after a name.
fn wide(place: &str) -> usize {
    match columns(place) {
        0 => 0,
        n => n + 2,
    }
}

/// Parts of a label, before they are fitted to a width.
struct Parts {
    name: String,
    /// File and line; or the code's address, if the sites differ only in the address and the source
    /// is unknown.
    place: String,
    /// Difference from other sites within the C++ library.
    aside: String,
    callers: Vec<Caller>,
}

struct Caller {
    name: String,
    /// True if functions before this caller are omitted.
    follows_gap: bool,
    /// True if the site differs from others in this caller.
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
    /// Returns the text that distinguishes the site from others.
    fn apart(&self, longest_caller: usize) -> String {
        let needed = self.callers.iter().filter(|caller| caller.matters);
        let callers = needed.map(|caller| caller.text(longest_caller));
        self.aside.clone() + &callers.collect::<String>()
    }

    /// Returns the fewest columns that the label takes.
    fn least(&self) -> usize {
        /// Width beyond which a file's name is shortened too.
        const LONGEST_PLACE: usize = 40;
        let place = wide(&fitted_place(&self.place, 0)).min(LONGEST_PLACE);
        columns(&self.name).min(SHORTEST_NAME) + place + columns(&self.apart(SHORTEST_CALLER))
    }

    fn fit(self, room: usize) -> Label {
        let least = columns(&self.name).min(SHORTEST_NAME);
        let short_place = fitted_place(&self.place, 0);
        // Parts are shortened in this order.
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
            // To preserve the distinguishing part, the name is shortened first, then the place.
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
            // After the last caller that matters, more callers are added while there is room in the
            // line.
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

/// Returns, for each of these sites, its difference from the first other site that looks the same:
/// a caller, a line, or the library function that was called. The text is empty for a site that
/// needs no distinction. `looks` has the text of each site as shown.
pub(crate) fn asides(sites: &[KnownSite<'_>], looks: &[String]) -> Vec<String> {
    let mut found = vec![String::new(); sites.len()];
    // A third site may share the difference from the second site. In that case, the site is
    // compared with the third one too.
    for _ in 0..3 {
        let shown: Vec<String> = looks
            .iter()
            .zip(&found)
            .map(|(a, b)| a.clone() + b)
            .collect();
        let mut alike: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, look) in shown.iter().enumerate() {
            alike.entry(look).or_default().push(at);
        }
        for group in alike.values().filter(|group| group.len() > 1) {
            for &at in group {
                let other = group[usize::from(group[0] == at)];
                let aside = aside(&sites[at], &sites[other]);
                if !found[at].contains(&aside) {
                    found[at] += &aside;
                }
            }
        }
    }
    found
}

fn short(frame: &StackFrame) -> String {
    /// Maximum number of columns of an aside, which appears next to a name that matters more.
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
        None => format!(" [{}]", in_the_library(site, &[other])),
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
    let mut twins = Vec::new();
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
                twins.push(&sites[other]);
            }
        }
    }
    if !twins.is_empty() {
        parts.aside = format!(" [{}]", in_the_library(site, &twins));
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

/// Returns how a site differs from other sites with equal functions outside the C++ library.
fn in_the_library(site: &KnownSite<'_>, others: &[&KnownSite<'_>]) -> String {
    let called = |site: &KnownSite<'_>| {
        let inner = site.frames.len() - from_responsible(site.frames).len();
        let called = site.frames[..inner].iter().rev();
        called
            .map(|frame| (short(frame), place(frame)))
            .collect::<Vec<_>>()
    };
    let own = called(site);
    let of_others: Vec<_> = others.iter().map(|other| called(other)).collect();
    let all = || of_others.iter().flatten();
    let differs = |(name, _): &&(String, String)| all().all(|(other, _)| other != name);
    let is_elsewhere = |frame: &&(String, String)| all().all(|other| other != *frame);
    if let Some((name, _)) = own.iter().find(differs) {
        name.clone()
    } else if let Some((name, place)) = own.iter().find(is_elsewhere) {
        format!("{place} {name}")
    } else if let [first, rest @ ..] = others
        && !rest.is_empty()
    {
        // No other site has this complete difference.
        let mut asides = vec![in_the_library(site, &[first])];
        for other in rest {
            let aside = in_the_library(site, &[other]);
            if !asides.contains(&aside) {
                asides.push(aside);
            }
        }
        asides.join(", ")
    } else if others
        .iter()
        .zip(&of_others)
        .all(|(other, called)| site.kind != other.kind || own.is_empty() != called.is_empty())
    {
        site.kind.to_owned()
    } else {
        format!("stack {}", site.stack)
    }
}

/// Returns a place such as `parse.cc:42`, or the code's address if the line is unknown.
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
mod tests;
