//! Formats of verdicts, for people and for machines. Each format has a source file, and a line in
//! [`FORMATS`].

mod annotations;
mod json;
mod junit;
mod markdown;
mod processes;
mod sarif;
mod suppressions;
#[cfg(test)]
mod tests;
pub(crate) mod text;

use crate::evidence::{SourceFrame, Subject, Sum};
use crate::growth::GrowthKind;
use crate::{
    AllocationSite, Group, HeapVerdict, Judgement, Outcome, PossibleLeak, SharedLeak, Verdict,
    outcome,
};
use memhook_foreign::visible;
use memhook_report::claims::unseen_blocks;
use memhook_report::{
    Format, FormatOptions, LONGEST_NAME, MAIN_HEAP, bytes, count, counted, short_place,
    shortened_name,
};
use processes::{alike, processes, programs, unjudged};

/// All formats for the verdicts on a program's processes.
pub static FORMATS: [&dyn Format<Judgement>; 7] = [
    &text::Text,
    &json::Json,
    &junit::Junit,
    &sarif::Sarif,
    &markdown::Markdown,
    &annotations::Annotations,
    &suppressions::SuppressionFile,
];

/// Returns the verdicts in the format with this name.
///
/// # Errors
/// Fails if there is no such format, or if the verdicts cannot be written in it.
pub fn rendered(
    name: &str,
    verdicts: &Judgement,
    options: &FormatOptions,
) -> std::io::Result<String> {
    let format = FORMATS.into_iter().find(|format| format.name() == name);
    let format = format.ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut out = Vec::new();
    memhook_report::formats::write(format, verdicts, options, &mut out)?;
    String::from_utf8(out).map_err(std::io::Error::other)
}

/// Returns `4.1 KiB in 12 blocks`.
fn amount(sum: Sum) -> String {
    format!("{} in {}", bytes(sum.bytes), counted(sum.blocks, "block"))
}

/// Returns the outcome and its reason, in one line.
fn headline(verdict: &Verdict) -> String {
    let program = verdict.evidence.program.split(' ').next();
    match (verdict.outcome, verdict.evidence.ending.failure()) {
        // "Passed" would be misleading for a program that failed.
        (Outcome::Passed, Some(how)) => {
            let line = outcome_line(verdict);
            let memory = line.strip_prefix("PASSED: ").unwrap_or(&line);
            let program = visible(program.unwrap_or_default()).into_owned();
            format!("{memory}; {program} itself {how}")
        }
        _ => outcome_line(verdict),
    }
}

fn outcome_line(verdict: &Verdict) -> String {
    let reasons: Vec<&str> = verdict.violations.iter().map(|v| v.text.as_str()).collect();
    match verdict.outcome {
        Outcome::Failed => format!("FAILED: {}", reasons.join("; ")),
        Outcome::Passed => match verdict.counted().len() {
            0 => match verdict.evidence.subject {
                Subject::Leaks => "PASSED: no leaks".to_owned(),
                Subject::Growth => "PASSED: no site keeps growing".to_owned(),
                Subject::Live => "PASSED: within the limits".to_owned(),
            },
            leaks => {
                let noun = verdict.evidence.subject.noun();
                let leaks = counted(leaks as u64, noun);
                let sums = match verdict.heaps.as_slice() {
                    [] => amount(verdict.leaked),
                    heaps => in_heaps(heaps),
                };
                format!("PASSED: {leaks} within the limits, {sums}")
            }
        },
        Outcome::Unsound => format!(
            "NO VERDICT: {} ({})",
            if verdict.evidence.is_blind {
                "not everything was seen"
            } else {
                "nothing was found, but not everything was seen"
            },
            verdict.evidence.gaps.join("; ")
        ),
    }
}

/// Describes the leaks of each heap that has any.
fn in_heaps(heaps: &[HeapVerdict]) -> String {
    let leaking = heaps.iter().filter(|heap| heap.leaked.blocks > 0);
    let sums = leaking.map(|heap| format!("{}: {}", heap.name, amount(heap.leaked)));
    sums.collect::<Vec<_>>().join("; ")
}

/// Returns the outcome and its reason in one line, along with the processes that were not judged.
fn headline_of_all(judged: &Judgement) -> String {
    let of = |outcome| judged.iter().filter(|v| v.outcome == outcome).count();
    let all = format!("{} processes", judged.len());
    let line = match (&**judged, outcome(judged)) {
        ([verdict], _) => headline(verdict),
        (_, Outcome::Failed) => format!("FAILED: {} of {all}", of(Outcome::Failed)),
        (_, Outcome::Passed) => format!("PASSED: all {all}"),
        (_, Outcome::Unsound) => format!(
            "NO VERDICT: nothing was found, but of {} of {all} not everything was seen",
            of(Outcome::Unsound)
        ),
    };
    line + &unjudged(&judged.not_judged)
}

/// Returns ` of heap pool`; empty for malloc's heap.
fn of_heap(site: &AllocationSite) -> String {
    let described = site.heap.as_deref().filter(|heap| *heap != MAIN_HEAP);
    described.map_or(String::new(), |heap| format!(" of heap {heap}"))
}

/// Describes a group of findings in one line.
fn sentence(verdict: &Verdict, group: &Group<'_>) -> String {
    sentence_with(verdict, group, (group.direct(), group.total()), 1)
}

/// Describes a leak of one or several processes in one line.
fn shared_sentence(leak: &SharedLeak<'_>) -> String {
    let sums = (leak.direct, leak.total);
    sentence_with(leak.verdict, &leak.group, sums, leak.processes.len())
}

/// Describes a leak. `sums` has the directly leaked blocks, and all blocks including those
/// reachable only from them, in all processes with the leak.
fn sentence_with(
    verdict: &Verdict,
    group: &Group<'_>,
    (direct, total): (Sum, Sum),
    processes: usize,
) -> String {
    let site = site_of(verdict, group);
    if let Some(growth) = group.main().leak.growth {
        if growth.kind == GrowthKind::Size {
            let sum = group.direct();
            return format!(
                "grows: {} more than at the beginning, in {} that became larger, by {} (p = {:.1e})",
                bytes(sum.bytes),
                counted(sum.blocks, "block"),
                site.kind,
                growth.p
            );
        }
        return format!(
            "grows: {} more than at the beginning{}, by {} (p = {:.1e})",
            amount(group.direct()),
            of_heap(site),
            site.kind,
            growth.p
        );
    }
    let what = match verdict.evidence.subject {
        Subject::Live => "live at the end",
        _ => "leaked",
    };
    let mut out = format!(
        "{} {what}{}, by {}",
        amount(direct),
        of_heap(site),
        site.kind
    );
    let indirect = Sum {
        blocks: total.blocks - direct.blocks,
        bytes: total.bytes - direct.bytes,
    };
    if indirect.blocks > 0 {
        out += &format!(", and {} that only they reach", amount(indirect));
    }
    if processes > 1 {
        out += &format!(", in {} processes", count(processes as u64));
    }
    if let Some(before) = group.before() {
        out += &format!("; {} in the baseline", amount(before));
    }
    out
}

/// Returns `possibly lost 24 B in 1 block`; `None` if there are no such blocks, or the user did not
/// ask for them.
fn possibly(verdict: &Verdict) -> Option<String> {
    let sum = verdict.evidence.possibly_lost();
    (sum.blocks > 0).then(|| format!("possibly lost {}", amount(sum)))
}

/// Describes the possibly lost blocks of a site in one line.
fn possible_sentence(verdict: &Verdict, leak: &PossibleLeak) -> String {
    let site = &verdict.evidence.sites[leak.site];
    format!(
        "{} possibly lost, by {}: only pointers into blocks reach them",
        amount(leak.blocks),
        site.kind
    )
}

/// Returns the site of the largest leak of a group.
fn site_of<'a>(verdict: &'a Verdict, group: &Group<'_>) -> &'a AllocationSite {
    &verdict.evidence.sites[group.main().leak.site]
}

/// Returns `by 3 other ways to parse`; empty if the group has only one stack.
fn other_ways(verdict: &Verdict, group: &Group<'_>) -> String {
    let others = group.0.len() as u64 - 1;
    let culprit = site_of(verdict, group).frames_to_blame().last();
    match culprit {
        Some(frame) if others > 0 => {
            let ways = counted(others, "other way");
            visible(&format!("by {ways} to {}", frame.name())).into_owned()
        }
        _ => String::new(),
    }
}

/// Returns the wording for blocks that are neither leaked nor growing.
fn the_rest(verdict: &Verdict) -> &'static str {
    match verdict.evidence.subject {
        Subject::Leaks => "still reachable",
        Subject::Growth | Subject::Live => "otherwise live",
    }
}

/// Returns the text that replaces a missing stack: the known facts about its blocks.
fn no_stack(verdict: &Verdict) -> String {
    let why = match verdict.evidence.seen {
        Some(seen) => unseen_blocks(seen).sentence,
        None => "the process was not traced".to_owned(),
    };
    format!("no allocation stack: {why}")
}

/// Returns the call stack of the largest leak of a group, and the number of other stacks; never
/// empty.
fn stack_lines(verdict: &Verdict, group: &Group<'_>, options: &FormatOptions) -> Vec<String> {
    let frames = &site_of(verdict, group).stack;
    let none = frames.is_empty().then(|| no_stack(verdict));
    let others = (group.0.len() > 1).then(|| format!("... and {}", other_ways(verdict, group)));
    let lines = frames.iter().map(|frame| frame_line(frame, options));
    none.into_iter().chain(lines).chain(others).collect()
}

/// Returns a frame in one line. Parts of a very long name are omitted, unless the user wants
/// everything.
fn frame_line(frame: &SourceFrame, options: &FormatOptions) -> String {
    let place = frame.place();
    let place = relative(&place, &options.source_root);
    let place = match options.lists_all {
        true => place.to_owned(),
        false => short_place(place),
    };
    let inlined = if frame.inlined { " [inlined]" } else { "" };
    let name = match options.lists_all {
        true => frame.name(),
        false => shortened_name(frame.name(), LONGEST_NAME),
    };
    let line = if place.is_empty() {
        format!("{name}{inlined}")
    } else {
        format!("{name}  {place}{inlined}")
    };
    visible(&line).into_owned()
}

/// Returns a path below `root` without that prefix, and other paths without a leading `./`.
fn relative<'a>(path: &'a str, root: &str) -> &'a str {
    let below = if root.is_empty() {
        None
    } else {
        path.strip_prefix(root)
    };
    match below.and_then(|rest| rest.strip_prefix('/')) {
        Some(rest) => rest,
        None => path.strip_prefix("./").unwrap_or(path),
    }
}
