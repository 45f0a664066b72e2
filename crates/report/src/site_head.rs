//! The first line of a site: the responsible function, and its numbers.

use crate::StackFrame;
use crate::Style;
use crate::apart::{KnownSite, asides};
use crate::labels::NO_STACK;
use crate::places::place_of;
use crate::stacks::{responsible, short_name_of, shortened};
use crate::wrap::columns;
use std::fmt::{Result, Write};

/// Minimum number of columns for a name, regardless of the text next to it.
const LEAST_NAME: usize = 12;

/// First part of a site's line, by which readers recognize the site.
pub(crate) struct SiteHead {
    name: String,
    /// Text that distinguishes the site from another site with the same name and place.
    aside: String,
    place: String,
}

/// Returns the heads of sites that are shown together, by kind and call stack. The sites may use
/// different numberings.
pub(crate) fn heads_of<'a>(
    sites: impl Iterator<Item = (&'a String, &'a Vec<StackFrame>)>,
    style: Style,
) -> Vec<SiteHead> {
    let known = sites.zip(0..).map(|((kind, frames), stack)| KnownSite {
        stack,
        kind,
        frames,
    });
    heads(&known.collect::<Vec<_>>(), style)
}

/// Returns the heads of sites that are shown together.
pub(crate) fn heads(sites: &[KnownSite<'_>], style: Style) -> Vec<SiteHead> {
    let of_site = |site: &KnownSite<'_>| {
        let frame = responsible(site.frames);
        let name = frame.map(|frame| short_name_of(frame, style));
        SiteHead {
            name: name.unwrap_or_else(|| NO_STACK.to_owned()),
            aside: String::new(),
            place: frame.map_or(String::new(), |frame| place_of(frame, style)),
        }
    };
    let mut heads: Vec<SiteHead> = sites.iter().map(of_site).collect();
    let look = |head: &SiteHead| format!("{} {}", head.name, head.place);
    let looks: Vec<String> = heads.iter().map(look).collect();
    for (head, aside) in heads.iter_mut().zip(asides(sites, &looks)) {
        head.aside = aside;
    }
    heads
}

impl SiteHead {
    /// Returns the name and its place.
    pub fn text(&self) -> String {
        let place = match self.place.as_str() {
            "" => String::new(),
            place => format!(" {place}"),
        };
        format!("{}{}{place}", self.name, self.aside)
    }
}

/// Rest of the line.
pub(crate) struct SiteRow {
    /// `#1`.
    pub label: String,
    pub amount: String,
    pub share: Option<String>,
    /// Facts about the site. The last facts are dropped if there is not enough space.
    pub facts: Vec<String>,
}

impl SiteRow {
    /// Writes the line, fitted to the terminal's width.
    pub fn write(mut self, out: &mut String, head: &SiteHead, style: Style) -> Result {
        let label = self.label;
        let share = self.share.map(|share| format!(" {share}"));
        let share = share.unwrap_or_default();
        let (mut name, aside) = (head.name.clone(), &head.aside);
        let mut place = match head.place.as_str() {
            "" => String::new(),
            place => format!("  {place}"),
        };
        if let Some(width) = style.width.filter(|_| !style.verbose) {
            let rest = [&label, &self.amount, &share, aside];
            let length = |text: &String| columns(text);
            let room = |place: &String, facts: &[String]| {
                let rest = rest.into_iter().chain([place]).chain(facts);
                width.saturating_sub(rest.map(length).sum::<usize>() + 5)
            };
            // The name matters more than the facts after it.
            while room(&place, &self.facts) < length(&name) && self.facts.len() > 1 {
                self.facts.pop();
            }
            if room(&place, &self.facts) < LEAST_NAME.min(length(&name))
                && let Some((_, file)) = place.rsplit_once('/')
            {
                place = format!("  {file}");
            }
            name = shortened(name, room(&place, &self.facts).max(LEAST_NAME));
        }
        writeln!(
            out,
            "{} {}{share}  {}{aside}{place}  {}",
            style.strong(&label),
            style.number(&self.amount),
            style.name(&name),
            self.facts.concat(),
        )
    }
}
