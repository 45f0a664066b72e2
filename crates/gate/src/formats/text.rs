//! Human-readable text. A log is read from the end, so the verdict comes last, with the location
//! and the remedy.

use super::{
    alike, amount, frame_line, headline, headline_of_all, no_stack, other_ways, possible_sentence,
    possibly, programs, relative, sentence, shared_sentence, site_of, the_rest, unjudged,
};
use crate::{
    AllocationSite, Group, HeapVerdict, Judgement, Outcome, Subject, Sum, Verdict, outcome,
};
use memhook_foreign::visible;
use memhook_report::{
    Format, FormatOptions, LONGEST_NAME, bytes, count, counted, short_place, shortened_name,
    without_parameters,
};
use std::collections::BTreeMap;
use std::io::{Result, Write};

/// Maximum number of sites listed below a leak that holds others.
const MOST_INDIRECT: usize = 3;
/// Maximum number of frames of a leak. With this number, a leak takes at most 15 lines.
const MOST_FRAMES: usize = 8;
/// Advice on findings that are not mistakes.
const REMEDY: &str = "accept it: --gen-suppressions prints rules for --suppressions; \
    or --write-baseline FILE, and --baseline FILE from then on\n";

/// Leaks with their stacks, the sums, and the verdict.
pub struct Text;

impl Format<Judgement> for Text {
    fn name(&self) -> &'static str {
        "text"
    }

    fn write(
        &self,
        verdicts: &Judgement,
        options: &FormatOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        let (verdict, remedy) = conclusion(verdicts, options);
        let text = details(verdicts, options) + &verdict + remedy;
        out.write_all(text.as_bytes())
    }
}

/// Returns the line with the verdict, and the remedy, if any.
pub(crate) fn conclusion(verdicts: &Judgement, options: &FormatOptions) -> (String, &'static str) {
    let line = match &**verdicts {
        [verdict] => with_site(verdict, options) + &unjudged(&verdicts.not_judged),
        _ => headline_of_all(verdicts),
    };
    let has_findings = verdicts.iter().any(|verdict| {
        verdict.outcome == Outcome::Failed
            && verdict.evidence.subject != Subject::Live
            && !verdict.counted().is_empty()
    });
    let remedy = match outcome(verdicts) {
        Outcome::Failed if has_findings => REMEDY,
        _ => "",
    };
    (line + "\n", remedy)
}

/// Returns the verdict and, if the gate failed, the location of the largest finding.
fn with_site(verdict: &Verdict, options: &FormatOptions) -> String {
    let line = headline(verdict);
    let leaks = verdict.counted();
    let blamed = leaks
        .first()
        .and_then(|group| site_of(verdict, group).frames_to_blame().last());
    match blamed {
        Some(frame) if verdict.outcome == Outcome::Failed => {
            let place = match (&frame.file, frame.line) {
                (Some(file), Some(line)) => {
                    let place = format!("{}:{line}", relative(file, &options.source_root));
                    format!(" ({})", short_place(&place))
                }
                _ => String::new(),
            };
            let more = match leaks.len() {
                1 => String::new(),
                all => format!(", and {} more", count(all as u64 - 1)),
            };
            let name = frame.name();
            let name = shortened_name(without_parameters(&name).to_owned(), LONGEST_NAME);
            let site = format!("{name}{place}{more}");
            format!("{line}: {}", visible(&site))
        }
        _ => line,
    }
}

/// Returns the text before the verdict: at most `top` leaks with their stacks, and the sums. With
/// several processes, those that passed are only counted (or, with `lists_all`, listed), and leaks
/// that the others share are written once.
pub(crate) fn details(verdicts: &Judgement, options: &FormatOptions) -> String {
    if let [verdict] = &**verdicts {
        return of_one(verdict, options);
    }
    let mut out = String::new();
    let (passed, others): (Vec<_>, Vec<_>) =
        verdicts.iter().partition(|v| v.outcome == Outcome::Passed);
    if verdicts.has_several_others() {
        shared(verdicts, &others, options, &mut out);
    } else {
        for verdict in others {
            out += &of_one(verdict, options);
            out += &with_site(verdict, options);
            out += "\n\n";
        }
    }
    if passed.len() < verdicts.len() && !passed.is_empty() {
        out += &format!(
            "  {} of the {} processes passed\n",
            passed.len(),
            verdicts.len()
        );
    }
    for verdict in passed {
        if options.lists_all {
            let program = visible(&verdict.evidence.program);
            out += &format!("  {}: {program}\n", headline(verdict));
        }
        for unused in &verdict.unused_suppressions {
            out += &format!("  unused suppression: {unused}\n");
        }
    }
    out
}

/// Describes several processes that did not pass: every outcome, and each shared leak once.
fn shared(judged: &Judgement, others: &[&Verdict], options: &FormatOptions, out: &mut String) {
    let leaks = judged.leaks(|verdict| verdict.outcome != Outcome::Passed);
    for (number, leak) in leaks.iter().take(options.top).enumerate() {
        *out += &format!("#{} {}\n", number + 1, shared_sentence(leak));
        one_leak(leak.verdict, &leak.group, options, out);
        *out += &format!("   in {}\n\n", programs(&leak.processes, options));
    }
    if leaks.len() > options.top {
        let more = counted((leaks.len() - options.top) as u64, "more leak");
        *out += &format!("... and {more} (--top)\n\n");
    }
    let outcomes = alike(others.iter().copied());
    let shown = match options.lists_all {
        true => outcomes.len(),
        false => options.top,
    };
    for (line, alike) in outcomes.iter().take(shown) {
        let count = super::processes(alike.len());
        *out += &format!("  {count}, {}: {line}\n", programs(alike, options));
        for gap in alike.iter().take(1).flat_map(|v| &v.evidence.gaps) {
            *out += &format!("    not seen: {}\n", visible(gap));
        }
    }
    if outcomes.len() > shown {
        let left = outcomes[shown..]
            .iter()
            .map(|(_, processes)| processes.len());
        *out += &format!("  ... and {} more (-v)\n", super::processes(left.sum()));
    }
    for unused in others
        .iter()
        .flat_map(|verdict| &verdict.unused_suppressions)
    {
        *out += &format!("  unused suppression: {unused}\n");
    }
}

fn of_one(verdict: &Verdict, options: &FormatOptions) -> String {
    let most = options.top;
    let mut out = String::new();
    let evidence = &verdict.evidence;
    let leaks = verdict.counted();
    for (number, group) in leaks.iter().take(most).enumerate() {
        out += &format!("#{} {}\n", number + 1, sentence(verdict, group));
        one_leak(verdict, group, options, &mut out);
        out += "\n";
    }
    if leaks.len() > most {
        let more = counted(
            (leaks.len() - most) as u64,
            &format!("more {}", evidence.subject.noun()),
        );
        out += &format!("... and {more} (--top)\n\n");
    }
    for leak in evidence.possible.iter().take(most) {
        out += &format!("{}\n", possible_sentence(verdict, leak));
        stack(verdict, &evidence.sites[leak.site], options, &mut out);
        out += "\n";
    }
    if evidence.possible.len() > most {
        let more = counted((evidence.possible.len() - most) as u64, "more site");
        out += &format!("... and of {more}, possibly lost (--top)\n\n");
    }
    out += &format!("  {} {}\n", visible(&evidence.program), evidence.ending);
    let mut sums = vec![format!(
        "{} {}",
        the_rest(verdict),
        amount(evidence.reachable)
    )];
    sums.extend(possibly(verdict).map(|possibly| format!("of these {possibly}")));
    if verdict.suppressed.blocks > 0 {
        sums.push(format!("suppressed {}", amount(verdict.suppressed)));
    }
    if verdict.known.blocks > 0 {
        sums.push(format!("in the baseline {}", amount(verdict.known)));
    }
    if evidence.allocations > 0 {
        sums.push(format!("peak {}", bytes(evidence.peak_bytes)));
        sums.push(counted(evidence.allocations, "allocation"));
    }
    out += &format!("  {}\n", sums.join(", "));
    for heap in verdict.heaps.iter().skip(1) {
        out += &heap_line(verdict, heap);
    }
    for gap in &evidence.gaps {
        out += &format!("  not seen: {}\n", visible(gap));
    }
    for note in &evidence.notes {
        out += &format!("  {}\n", visible(note));
    }
    for unused in &verdict.unused_suppressions {
        out += &format!("  unused suppression: {unused}\n");
    }
    out
}

/// Returns the sums of a described heap. The preceding lines are about malloc.
fn heap_line(verdict: &Verdict, heap: &HeapVerdict) -> String {
    let mut sums = vec![format!("{} {}", the_rest(verdict), amount(heap.reachable))];
    for (what, sum) in [
        ("suppressed", heap.suppressed),
        ("in the baseline", heap.known),
    ] {
        if sum.blocks > 0 {
            sums.push(format!("{what} {}", amount(sum)));
        }
    }
    sums.push(format!("peak {}", bytes(heap.peak_bytes)));
    sums.push(counted(heap.allocations, "allocation"));
    format!("  heap {}: {}\n", visible(&heap.name), sums.join(", "))
}

fn one_leak(verdict: &Verdict, group: &Group<'_>, options: &FormatOptions, out: &mut String) {
    let sites = &verdict.evidence.sites;
    stack(verdict, site_of(verdict, group), options, out);
    let ways = other_ways(verdict, group);
    if !ways.is_empty() {
        *out += &format!("      ... and {ways}\n");
    }
    let mut by_site: BTreeMap<usize, Sum> = BTreeMap::new();
    for (site, sum) in group.0.iter().flat_map(|finding| &finding.leak.indirect) {
        by_site.entry(*site).or_default().add(*sum);
    }
    let mut indirect: Vec<_> = by_site.into_iter().collect();
    indirect.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
    for (site, sum) in indirect.iter().take(MOST_INDIRECT) {
        let site = &sites[*site];
        let by = format!("   {}, by {}", amount(*sum), site.kind);
        match site.frames_to_blame().last() {
            Some(frame) if !options.lists_all => {
                *out += &format!("{by}: {}\n", frame_line(frame, options))
            }
            _ => {
                *out += &format!("{by}\n");
                stack(verdict, site, options, out);
            }
        }
    }
    if indirect.len() > MOST_INDIRECT {
        let more = counted((indirect.len() - MOST_INDIRECT) as u64, "other site");
        *out += &format!("   ... and of {more}\n");
    }
}

/// Returns all frames if everything is listed. Otherwise returns the frames up to the frame to
/// blame, and as many of its callers as fit.
fn stack(verdict: &Verdict, site: &AllocationSite, options: &FormatOptions, out: &mut String) {
    let frames = &site.stack;
    let shown = match options.lists_all || frames.len() <= MOST_FRAMES + 1 {
        true => frames.as_slice(),
        false => {
            // If there are too many wrappers, the frames that end with the function to blame are
            // shown.
            let blamed = site.frames_to_blame().len();
            let first = blamed.saturating_sub(MOST_FRAMES);
            &frames[first..first + MOST_FRAMES]
        }
    };
    for frame in shown {
        *out += &format!("      {}\n", frame_line(frame, options));
    }
    if shown.len() < frames.len() {
        let left = counted((frames.len() - shown.len()) as u64, "more frame");
        *out += &format!("      ... {left} (-v)\n");
    } else if frames.is_empty() {
        *out += &format!("      ({})\n", no_stack(verdict));
    } else if site.truncated {
        *out += "      ... (the stack continues: no unwind information, or no memory for more)\n";
    }
}
