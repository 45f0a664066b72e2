//! Scores and inferences as text.

use super::{
    AccessSource, CustomChange, CustomScore, CustomSiteChange, CustomValues, Inference, RunScores,
    ScoreChange, Scores,
};
use crate::Style;
use crate::stacks::{StackEnd, stack};
use crate::units::{bytes, count, counted, duration};
use std::collections::BTreeMap;
use std::fmt::{Result, Write};

/// Selects one of the scores.
type ScoreOf = fn(&Scores) -> Option<f64>;

/// Inferences shown without `-v`.
const INFERENCES_SHOWN: usize = 10;

/// Returns a text such as `0.31`, or `unknown`.
fn score(score: Option<f64>) -> String {
    match score {
        // Lifetimes never make a score exactly 0, so the formatted score must not read as 0.
        Some(score) if score > 0.0 && score < 0.005 => format!("{score:.1e}"),
        Some(score) => format!("{score:.2}"),
        None => "unknown".into(),
    }
}

/// Formats the value of a formula with at most three decimals: `1,234.5`; `-` if there is no value.
fn value(value: Option<f64>) -> String {
    let Some(value) = value else {
        return "-".into();
    };
    let size = value.abs();
    if size >= 1e15 || (size > 0.0 && size < 0.001) {
        return format!("{value:.3e}");
    }
    let text = format!("{size:.3}");
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let whole = count(whole.parse().unwrap_or(0));
    let part = part.trim_end_matches('0');
    let sign = if value < 0.0 { "-" } else { "" };
    let point = if part.is_empty() { "" } else { "." };
    format!("{sign}{whole}{point}{part}")
}

/// Returns a change as text: `+65`, `-1.5`, `±0`.
fn change_of_value(change: f64) -> String {
    match change {
        0.0 => "±0".into(),
        _ if change > 0.0 => format!("+{}", value(Some(change))),
        _ => value(Some(change)),
    }
}

/// Writes the values of formulas for the run.
fn custom_text(out: &mut String, scores: &[CustomScore], style: Style) -> Result {
    for score in scores {
        writeln!(
            out,
            "  {} = {}: {} in all, {} a site on average, of {}",
            style.strong(&score.name),
            score.formula,
            style.number(&value(score.sum)),
            value(score.mean),
            counted(score.known_sites, "site")
        )?;
    }
    Ok(())
}

/// Writes the scores of the run.
pub(crate) fn run_text(
    out: &mut String,
    run: &RunScores,
    custom: &[CustomScore],
    style: Style,
) -> Result {
    let one = |name: &str, of: ScoreOf, error_of: ScoreOf| {
        let variance = of(&run.variance).map(|variance| format!(" (variance {variance:.3})"));
        let number = style.number(&score(of(&run.scores)));
        let error = of(&run.scores).and(error_of(&run.scores));
        let error = error.map(|error| format!(" +- {error:.2}"));
        format!(
            "{name} {number}{}{}",
            error.unwrap_or_default(),
            variance.unwrap_or_default()
        )
    };
    writeln!(
        out,
        "\n{} {}, {}, {}",
        style.strong("Scores from 0 (worst) to 1 (best):"),
        one("lifetime", |s| s.lifetime, |_| None),
        one("usage", |s| s.usage, |s| s.usage_error),
        one(
            "useful lifetime",
            |s| s.useful_lifetime,
            |s| s.useful_lifetime_error
        ),
    )?;
    let group = duration(run.group_s);
    writeln!(
        out,
        "  Geometric mean of {}; a group of blocks ends where {group} pass without an allocation",
        counted(run.sites, "site")
    )?;
    if run.access_source.is_none() {
        writeln!(out, "  {}", style.faint(super::HOW_TO_GET_ACCESSES))?;
    } else if run.access_source == Some(AccessSource::Sampled) {
        let of = format!(
            "Usage and useful lifetime are estimates from {}; they are known of {} of {}: the others have a 95 % interval wider than 0.2",
            counted(run.looks, "watched block"),
            run.accessed_sites,
            counted(run.sites, "site")
        );
        writeln!(out, "  {}", style.faint(&of))?;
    } else if run.accessed_sites < run.sites {
        let of = format!(
            "Reads and writes are known of {} of {}: the others are of modules that do not report theirs",
            run.accessed_sites,
            counted(run.sites, "site")
        );
        writeln!(out, "  {}", style.faint(&of))?;
    }
    if run.accesses_missed > 0 {
        let missed = counted(run.accesses_missed, "block");
        writeln!(
            out,
            "  Reads and writes of {missed} could not be counted, for lack of memory or because of their size"
        )?;
    }
    custom_text(out, custom, style)
}

/// Writes the scores of a site, on a separate line below its numbers.
pub(crate) fn site_text(
    out: &mut String,
    scores: &Scores,
    custom: &CustomValues,
    style: Style,
) -> Result {
    let mut known = vec![format!("lifetime {}", score(scores.lifetime))];
    for (name, value, error) in [
        ("usage", scores.usage, scores.usage_error),
        (
            "useful lifetime",
            scores.useful_lifetime,
            scores.useful_lifetime_error,
        ),
    ] {
        match (value, error) {
            (Some(_), Some(error)) => known.push(format!("{name} {} +- {error:.2}", score(value))),
            (Some(_), None) => known.push(format!("{name} {}", score(value))),
            _ => {}
        }
    }
    let custom = custom.iter();
    known.extend(custom.map(|(name, score)| format!("{name} {}", value(*score))));
    writeln!(out, "   {} {}", style.faint("score:"), known.join(", "))
}

/// Writes the change of the scores from one run to another.
pub(crate) fn change_text(
    out: &mut String,
    scores: &ScoreChange,
    custom: &[CustomChange],
    style: Style,
) -> Result {
    let all: [(&str, ScoreOf); 3] = [
        ("lifetime", |s| s.lifetime),
        ("usage", |s| s.usage),
        ("useful lifetime", |s| s.useful_lifetime),
    ];
    let of = |(name, of): (&str, ScoreOf)| match of(&scores.change) {
        Some(change) => from_to_score(name, of(&scores.old.scores), of(&scores.new.scores), change),
        None => format!("{name} unknown"),
    };
    let all = all.map(of).join(", ");
    writeln!(out, "  {} {all}", style.strong("scores"))?;
    for score in custom {
        let by = from_to(score.old.sum, score.new.sum, score.change);
        let name = style.strong(&score.name);
        writeln!(out, "  {name} = {}: {by} in all", score.formula)?;
    }
    Ok(())
}

fn from_to(old: Option<f64>, new: Option<f64>, change: Option<f64>) -> String {
    let change = change.map(|change| format!(" ({})", change_of_value(change)));
    let (old, new) = (value(old), value(new));
    format!("{old} -> {new}{}", change.unwrap_or_default())
}

/// Two scores with the same text count as equal, because they differ only by rounding.
fn from_to_score(name: &str, old: Option<f64>, new: Option<f64>, change: f64) -> String {
    let (old, new) = (score(old), score(new));
    let verdict = match old == new {
        true => "the same",
        false => verdict(change),
    };
    format!("{name} {old} -> {new} ({verdict})")
}

fn verdict(change: f64) -> &'static str {
    if change > 0.0 {
        "better"
    } else if change < 0.0 {
        "worse"
    } else {
        "the same"
    }
}

/// Writes the change of a site's lifetime score, and of the values of formulas.
pub(crate) fn site_change_text(
    out: &mut String,
    old: Option<&Scores>,
    new: Option<&Scores>,
    custom: &BTreeMap<String, CustomSiteChange>,
    style: Style,
) -> Result {
    let known = |scores: Option<&Scores>| scores.and_then(|scores| scores.lifetime);
    let mut parts = Vec::new();
    match (known(old), known(new)) {
        (None, None) => {}
        (Some(old), None) => parts.push(format!("lifetime {}", score(Some(old)))),
        (None, Some(new)) => parts.push(format!("lifetime {}", score(Some(new)))),
        (Some(old), Some(new)) => {
            parts.push(from_to_score("lifetime", Some(old), Some(new), new - old));
        }
    }
    let of_formula = |(name, one): (&String, &CustomSiteChange)| {
        format!("{name} {}", from_to(one.old, one.new, one.change))
    };
    parts.extend(custom.iter().map(of_formula));
    if parts.is_empty() {
        return Ok(());
    }
    writeln!(out, "   {} {}", style.faint("score:"), parts.join(", "))
}

/// Writes the inferences.
pub(crate) fn inferences_text(
    out: &mut String,
    inferences: &[Inference],
    depth: u32,
    style: Style,
) -> Result {
    if inferences.is_empty() {
        return writeln!(out, "\nNothing stands out: no inference about any site.");
    }
    let shown = if style.verbose {
        inferences.len()
    } else {
        INFERENCES_SHOWN
    };
    writeln!(out, "\n{}", style.strong("What stands out:"))?;
    for (number, inference) in inferences.iter().take(shown).enumerate() {
        writeln!(
            out,
            "\n{} {}: {}",
            style.strong(&format!("({})", number + 1)),
            style.number(inference.title),
            inference.evidence
        )?;
        if !inference.advice.is_empty() {
            writeln!(out, "   To try: {}. {}", inference.advice, gain(inference))?;
        }
        let end = StackEnd::of(&inference.stack, inference.truncated, depth);
        stack(out, &inference.stack, end, style)?;
    }
    if inferences.len() > shown {
        let more = counted((inferences.len() - shown) as u64, "more inference");
        writeln!(out, "\n... and {more} (-v)")?;
    }
    Ok(())
}

fn gain(inference: &Inference) -> String {
    let gain = &inference.gain;
    let mut parts = Vec::new();
    if gain.calls > 0 {
        parts.push(format!(
            "{} of the allocator ({} a second)",
            counted(gain.calls, "call"),
            crate::units::count(gain.calls_per_s.round() as u64)
        ));
    }
    if gain.copied_bytes > 0 {
        parts.push(format!("up to {} copied", bytes(gain.copied_bytes)));
    }
    if gain.bytes > 0 {
        parts.push(format!("{} of memory", bytes(gain.bytes)));
    }
    if gain.line_transfers > 0 {
        let transfers = crate::units::count(gain.line_transfers);
        parts.push(format!("up to {transfers} transfers of cache lines"));
    }
    format!("That saves {}", parts.join(" and "))
}
