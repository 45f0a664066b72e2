//! Differences between two runs: text, and JSON with the schema `memhook-rs/diff/1`.
//!
//! Sites are matched by their functions, not by addresses or lines: see [`crate::same_code`].

mod by_type;

pub use by_type::{TypeChange, TypeChanges};

use self::by_type::type_changes;
use crate::gaps;
use crate::places::source_root;
use crate::same_code::Code;
use crate::scores::{
    change_text, custom_changes, custom_site_changes, site_change_text, stacks_scores,
};
use crate::site_head::{SiteRow, heads_of};
use crate::stacks::{StackEnd, stack};
use crate::units::{bytes, change, change_with_error, count, counted, milliseconds, with_error};
use crate::{
    Amount, CustomChange, CustomSiteChange, Document, Measure, Profile, RowsBy, ScoreChange,
    Scores, StackFrame, Style, UnseenTime,
};
use memhook_foreign::visible;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

/// Change of a site between the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// The site has more bytes, or an equal number of bytes in more blocks.
    Grew,
    /// The site has fewer bytes, or an equal number of bytes in fewer blocks.
    Shrank,
    /// The old run did not have the site.
    Appeared,
    /// The new run no longer has the site.
    Went,
}

impl Fate {
    fn word(self) -> &'static str {
        match self {
            Fate::Grew => "grew",
            Fate::Shrank => "shrank",
            Fate::Appeared => "appeared",
            Fate::Went => "went",
        }
    }
}

/// Summary of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Name of the process.
    pub name: String,
    /// Length of the compared time, in seconds.
    pub seconds: f64,
    /// Times in which no event was seen.
    pub gaps: Vec<UnseenTime>,
    /// Sum of the measure over all sites.
    pub bytes: u64,
    /// Number of blocks over all sites.
    pub blocks: u64,
    /// Standard error of `bytes` when sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_bytes: Option<u64>,
}

/// A site that changed.
#[derive(Clone, Debug, Serialize)]
pub struct SiteChange {
    /// Kind of the change.
    pub fate: Fate,
    /// Bytes in the old run.
    pub old_bytes: u64,
    /// Blocks in the old run.
    pub old_blocks: u64,
    /// Bytes in the new run.
    pub new_bytes: u64,
    /// Blocks in the new run.
    pub new_blocks: u64,
    /// Bytes in the new run minus bytes in the old run.
    pub change_bytes: i64,
    /// The site's scores in the old run, if it was scored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_scores: Option<Scores>,
    /// The site's scores in the new run, if it was scored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_scores: Option<Scores>,
    /// Changes of the values of users' formulas, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub custom_scores: BTreeMap<String, CustomSiteChange>,
    /// Standard error of `change_bytes` when one of the runs was sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_bytes: Option<u64>,
    /// Allocating function: malloc, new, ...
    pub kind: String,
    /// True if the stack is longer than shown, but the unwinder could not follow it.
    pub truncated: bool,
    /// True if outermost frames are missing, because the stack could not be followed or reached the
    /// requested depth.
    pub cut: bool,
    /// Frames, innermost first. They are from the new run if it has the site.
    pub stack: Vec<StackFrame>,
}

/// Two runs compared.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// Always `memhook-rs/diff/1`.
    pub schema: &'static str,
    /// Compared measure: live, peak, ...
    pub measure: &'static str,
    /// Kind of the listed rows: site or type.
    pub by: &'static str,
    /// The old run.
    pub old: Run,
    /// The new run.
    pub new: Run,
    /// Scores of the heap, if both runs were scored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scores: Option<ScoreChange>,
    /// Changes of the values of users' formulas.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub custom_scores: Vec<CustomChange>,
    /// Sites that changed: the largest growth first, the largest shrinkage last.
    pub sites: Vec<SiteChange>,
    /// Number of unlisted changes. Each is smaller than every listed change.
    pub more_sites: u64,
    /// Number of sites that did not change.
    pub same_sites: u64,
    /// Types of blocks, if rows are types and not sites.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub types: Option<TypeChanges>,
    #[serde(skip)]
    depth: u32,
}

/// Identity of a site: allocating function, and each frame.
type Key = (String, Vec<String>);

#[derive(Default)]
struct Pair {
    old: Amount,
    new: Amount,
    /// Stack of the site, with two flags. The first is true if the stack is from the new run, and
    /// the second is true if it was cut short.
    stack: Option<(bool, u32, bool)>,
    /// The site's stacks in the old run and in the new one.
    old_stacks: BTreeSet<u32>,
    new_stacks: BTreeSet<u32>,
}

fn collect(pairs: &mut HashMap<Key, Pair>, profile: &Profile, measure: Measure, is_new: bool) {
    let code = Code::of(profile);
    for site in &profile.sites {
        let amount = measure.of(&site.measures);
        if amount == Amount::default() {
            continue;
        }
        let frames = code.stack(profile, site.stack);
        let pair = pairs.entry((site.kind.clone(), frames)).or_default();
        let sum = if is_new { &mut pair.new } else { &mut pair.old };
        *sum += amount;
        let stacks = if is_new {
            &mut pair.new_stacks
        } else {
            &mut pair.old_stacks
        };
        stacks.insert(site.stack);
        if is_new || pair.stack.is_none() {
            pair.stack = Some((is_new, site.stack, site.truncated));
        }
    }
}

fn run(profile: &Profile, measure: Measure) -> Run {
    let amounts = profile.sites.iter();
    let amount: Amount = amounts.map(|site| measure.of(&site.measures)).sum();
    Run {
        name: profile.target.name.clone(),
        seconds: profile.to_ns.saturating_sub(profile.from_ns) as f64 / 1e9,
        gaps: profile.gaps.clone(),
        bytes: amount.bytes,
        blocks: amount.blocks,
        error_bytes: profile.error_of_sum(measure, amount),
    }
}

/// Returns `new` minus `old`. A foreign report may contain any numbers.
fn difference(new: u64, old: u64) -> i64 {
    let exact = i128::from(new) - i128::from(old);
    exact.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Compares two runs, and lists the `top` largest changes.
pub fn diff(old: &Profile, new: &Profile, measure: Measure, top: usize) -> Diff {
    let mut pairs: HashMap<Key, Pair> = HashMap::new();
    collect(&mut pairs, old, measure, false);
    collect(&mut pairs, new, measure, true);
    let all = pairs.len();
    let mut changed: Vec<(Key, Pair)> = pairs
        .into_iter()
        .filter(|(_, pair)| fate_key(&pair.old) != fate_key(&pair.new))
        .collect();
    let same_sites = (all - changed.len()) as u64;
    let change_of = |pair: &Pair| difference(pair.new.bytes, pair.old.bytes);
    // Keeps the largest changes in both directions.
    changed.sort_by(|(a_key, a), (b_key, b)| {
        let size = |pair: &Pair| change_of(pair).unsigned_abs();
        size(b).cmp(&size(a)).then_with(|| a_key.cmp(b_key))
    });
    let more_sites = changed.len().saturating_sub(top) as u64;
    changed.truncate(top);
    changed.sort_by(|(a_key, a), (b_key, b)| {
        change_of(b)
            .cmp(&change_of(a))
            .then_with(|| a_key.cmp(b_key))
    });
    // Scores of a single run show no change.
    let both = old.scores.as_ref().zip(new.scores.as_ref());
    let scored = both.is_some();
    let site = |((kind, _), pair): (Key, Pair)| {
        let (is_new, stack, truncated) = pair.stack.unwrap_or_default();
        let of = if is_new { new } else { old };
        SiteChange {
            fate: fate(&pair.old, &pair.new),
            old_bytes: pair.old.bytes,
            old_blocks: pair.old.blocks,
            new_bytes: pair.new.bytes,
            new_blocks: pair.new.blocks,
            change_bytes: change_of(&pair),
            old_scores: stacks_scores(old, &pair.old_stacks).filter(|_| scored),
            new_scores: stacks_scores(new, &pair.new_stacks).filter(|_| scored),
            custom_scores: both.map_or_else(BTreeMap::new, |(old, new)| {
                custom_site_changes((old, &pair.old_stacks), (new, &pair.new_stacks))
            }),
            error_bytes: of_both(pair.old, pair.new).error_bytes(),
            kind,
            truncated,
            cut: of.is_cut(stack),
            stack: of.stack(stack),
        }
    };
    Diff {
        schema: "memhook-rs/diff/1",
        measure: measure.name(),
        by: RowsBy::Site.name(),
        old: run(old, measure),
        new: run(new, measure),
        scores: both.map(|(old, new)| ScoreChange::of(old.run, new.run)),
        custom_scores: both.map_or_else(Vec::new, |(old, new)| custom_changes(old, new)),
        sites: changed.into_iter().map(site).collect(),
        more_sites,
        same_sites,
        types: None,
        depth: new.depth,
    }
}

/// Compares two runs by the types of their blocks, which must have been looked up. Lists the `top`
/// largest changes, and no sites.
pub fn diff_by_type(old: &Profile, new: &Profile, measure: Measure, top: usize) -> Diff {
    Diff {
        by: RowsBy::Type.name(),
        scores: None,
        custom_scores: Vec::new(),
        types: Some(type_changes(old, new, measure, top)),
        ..diff(old, new, measure, 0)
    }
}

/// Adds up amounts of two independent runs.
fn of_both(old: Amount, new: Amount) -> Amount {
    [old, new].into_iter().sum()
}

fn fate_key(amount: &Amount) -> (u64, u64) {
    (amount.bytes, amount.blocks)
}

fn fate(old: &Amount, new: &Amount) -> Fate {
    match (old.blocks, new.blocks) {
        (0, _) => Fate::Appeared,
        (_, 0) => Fate::Went,
        _ if fate_key(new) > fate_key(old) => Fate::Grew,
        _ => Fate::Shrank,
    }
}

impl Diff {
    fn is_estimate(&self) -> bool {
        let errors = [self.old.error_bytes, self.new.error_bytes];
        errors.iter().any(Option::is_some)
    }

    fn write(&self, out: &mut String, style: Style) -> std::fmt::Result {
        let root = source_root(self.sites.iter().flat_map(|site| &site.stack));
        let style = Style {
            root: &root,
            ..style
        };
        for (label, run) in [("old", &self.old), ("new", &self.new)] {
            if let Some(gaps) = gaps::warning(&run.gaps, None) {
                writeln!(
                    out,
                    "{}",
                    style.warning(&format!("In the {label} run: {gaps}"))
                )?;
            }
        }
        if self.is_estimate() {
            writeln!(out, "Estimates from sampled allocations")?;
        }
        let head = style.strong(&format!("{}:", self.measure));
        let total = change(difference(self.new.bytes, self.old.bytes));
        writeln!(out, "{head} {} in all", style.number(&total))?;
        for (label, run) in [("old", &self.old), ("new", &self.new)] {
            writeln!(
                out,
                "  {label}  {:>11} in {}, {} of {}",
                with_error(run.bytes, run.error_bytes),
                counted(run.blocks, "block"),
                milliseconds((run.seconds * 1e3) as u64),
                visible(&run.name)
            )?;
        }
        if let Some(scores) = &self.scores {
            change_text(out, scores, &self.custom_scores, style)?;
        }
        if let Some(types) = &self.types {
            return types.write(out, style);
        }
        writeln!(
            out,
            "  {} changed, {} the same",
            counted(self.sites.len() as u64 + self.more_sites, "site"),
            count(self.same_sites)
        )?;
        let known = self.sites.iter().map(|site| (&site.kind, &site.stack));
        let heads = heads_of(known, style);
        for (number, site) in self.sites.iter().enumerate() {
            writeln!(out)?;
            let from = format!(
                "{} in {}",
                bytes(site.old_bytes),
                counted(site.old_blocks, "block")
            );
            let to = format!(
                "{} in {}",
                bytes(site.new_bytes),
                counted(site.new_blocks, "block")
            );
            let row = SiteRow {
                label: format!("#{}", number + 1),
                amount: change_with_error(site.change_bytes, site.error_bytes),
                share: None,
                facts: vec![
                    format!("{}: {from} -> {to}", site.fate.word()),
                    format!(", by {}", visible(&site.kind)),
                ],
            };
            row.write(out, &heads[number], style)?;
            site_change_text(
                out,
                site.old_scores.as_ref(),
                site.new_scores.as_ref(),
                &site.custom_scores,
                style,
            )?;
            let end = StackEnd::of(&site.stack, site.truncated, self.depth);
            stack(out, &site.stack, end, style)?;
        }
        if self.more_sites > 0 {
            let more = counted(self.more_sites, "smaller change");
            writeln!(out, "\n... and {more} (--top)")?;
        }
        Ok(())
    }
}

impl Document for Diff {
    fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing into a String cannot fail.
        let _ = self.write(&mut out, style);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Measures, ProfileFrame, ProfileSite};

    /// Returns a run with one site for each name. Addresses depend on `build`.
    fn profile(build: u64, sites: &[(&str, u64)]) -> Profile {
        let mut profile = Profile::default();
        for (number, &(name, bytes)) in sites.iter().enumerate() {
            let address = build * 0x1000 + number as u64;
            profile.frames.push(ProfileFrame {
                address,
                module: None,
                frame: StackFrame {
                    address: format!("{address:#x}"),
                    module: Some("m".into()),
                    offset: Some(format!("{address:#x}")),
                    function: Some(name.into()),
                    file: None,
                    line: None,
                    inlined: false,
                },
            });
            profile.stacks.push(vec![number as u32]);
            profile.sites.push(ProfileSite {
                stack: number as u32,
                kind: "malloc".into(),
                measures: Measures {
                    live: Amount {
                        blocks: u64::from(bytes > 0),
                        bytes,
                        ..Amount::default()
                    },
                    ..Measures::default()
                },
                ..ProfileSite::default()
            });
        }
        profile
    }

    #[test]
    fn types_are_summed_over_their_sites() {
        let types = |names: &[&str]| {
            (0..)
                .zip(names.iter().map(|name| (*name).to_owned()))
                .collect()
        };
        let mut old = profile(1, &[("a", 10), ("b", 5), ("c", 90), ("d", 7)]);
        old.types = types(&["Point", "Point", "Gone", "unknown"]);
        let mut new = profile(2, &[("a", 100), ("e", 30), ("d", 7)]);
        new.types = types(&["Point", "New"]);
        let found = diff_by_type(&old, &new, Measure::Live, 10);
        assert_eq!((found.by, found.sites.len()), ("type", 0));
        let text = found.text(Style::default());
        let types = found.types.expect("types");
        let rows: Vec<_> = types
            .rows
            .iter()
            .map(|row| {
                (
                    row.name.as_str(),
                    row.fate,
                    row.change_bytes,
                    row.new_blocks,
                )
            })
            .collect();
        let expected = [
            ("Point", Fate::Grew, 85, 1),
            ("New", Fate::Appeared, 30, 1),
            ("Gone", Fate::Went, -90, 0),
        ];
        assert_eq!(rows, expected);
        assert_eq!((types.same, types.more), (1, 0));
        assert!(text.contains("3 types changed, 1 the same"), "{text}");
        assert!(
            text.contains("+85 B grew Point: 15 B in 2 blocks -> 100 B in 1 block"),
            "{text}"
        );
        let few = diff_by_type(&old, &new, Measure::Live, 1)
            .types
            .expect("types");
        assert_eq!((few.rows[0].name.as_str(), few.more), ("Gone", 2));
    }

    #[test]
    fn sites_of_two_builds_are_matched_by_their_functions() {
        let old = profile(
            1,
            &[
                ("parse", 10),
                ("same", 5),
                ("shrinks", 90),
                ("goes", 7),
                ("twice", 1),
                ("twice", 2),
            ],
        );
        let new = profile(
            2,
            &[
                ("twice", 3),
                ("comes", 20),
                ("shrinks", 60),
                ("same", 5),
                ("parse", 1000),
            ],
        );
        let found = diff(&old, &new, Measure::Live, 10);
        let name = |site: &SiteChange| site.stack[0].function.clone().unwrap_or_default();
        let list: Vec<_> = found
            .sites
            .iter()
            .map(|site| (name(site), site.fate, site.change_bytes))
            .collect();
        let expected = [
            ("parse", Fate::Grew, 990),
            ("comes", Fate::Appeared, 20),
            ("twice", Fate::Grew, 0),
            ("goes", Fate::Went, -7),
            ("shrinks", Fate::Shrank, -30),
        ];
        let expected = expected.map(|(name, fate, by)| (name.to_owned(), fate, by));
        // The site of "twice" has two blocks in the old run and one in the new run: fewer blocks
        // with an equal number of bytes.
        let mut expected = expected.to_vec();
        expected[2].1 = Fate::Shrank;
        assert_eq!(list, expected);
        assert_eq!((found.same_sites, found.more_sites), (1, 0));
        let few = diff(&old, &new, Measure::Live, 2);
        let kept: Vec<_> = few.sites.iter().map(name).collect();
        assert_eq!(kept, ["parse", "shrinks"]);
        assert_eq!(few.more_sites, 3);
        assert!(
            few.text(Style::default())
                .contains("#1 +990 B  parse  grew: 10 B in 1 block -> 1000 B")
        );
    }
}
