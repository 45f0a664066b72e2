//! Text for people: the verdict first.

use super::{
    NO_STACK, amount, frame_line, headline, headline_of_all, other_ways, possible_sentence,
    possibly, sentence, site_of, the_rest,
};
use crate::{AllocationSite, Group, HeapVerdict, Outcome, Sum, Verdict};
use memhook_foreign::visible;
use memhook_report::{Format, FormatOptions, bytes, counted};
use std::collections::BTreeMap;
use std::io::{Result, Write};

/// Sites listed below a leak that holds others.
const MOST_INDIRECT: usize = 3;

/// The verdict, leaks with their stacks, and the sums.
pub struct Text;

impl Format<[Verdict]> for Text {
    fn name(&self) -> &'static str {
        "text"
    }

    fn write(
        &self,
        verdicts: &[Verdict],
        options: &FormatOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        out.write_all(text(verdicts, options.top, options.lists_all).as_bytes())
    }
}

/// The verdict, at most `most` leaks with their stacks, and the sums. Of several processes, those that passed are
/// counted, or listed with `lists_all`.
fn text(verdicts: &[Verdict], most: usize, lists_all: bool) -> String {
    if let [verdict] = verdicts {
        return of_one(verdict, most);
    }
    let mut out = headline_of_all(verdicts) + "\n";
    let (passed, others): (Vec<_>, Vec<_>) =
        verdicts.iter().partition(|v| v.outcome == Outcome::Passed);
    for verdict in others {
        out += "\n";
        out += &of_one(verdict, most);
    }
    if passed.len() < verdicts.len() && !passed.is_empty() {
        out += &format!(
            "\n  {} of the {} processes passed\n",
            passed.len(),
            verdicts.len()
        );
    }
    for verdict in passed {
        if lists_all {
            let program = visible(&verdict.evidence.program);
            out += &format!("  {}: {program}\n", headline(verdict));
        }
        for unused in &verdict.unused_suppressions {
            out += &format!("  unused suppression: {unused}\n");
        }
    }
    out
}

fn of_one(verdict: &Verdict, most: usize) -> String {
    let mut out = headline(verdict) + "\n";
    let evidence = &verdict.evidence;
    let leaks = verdict.counted();
    for (number, group) in leaks.iter().take(most).enumerate() {
        out += &format!("\n#{} {}\n", number + 1, sentence(verdict, group));
        one_leak(verdict, group, &mut out);
    }
    if leaks.len() > most {
        let more = counted(
            (leaks.len() - most) as u64,
            &format!("more {}", evidence.subject.noun()),
        );
        out += &format!("\n... and {more} (--top)\n");
    }
    for leak in evidence.possible.iter().take(most) {
        out += &format!("\n{}\n", possible_sentence(verdict, leak));
        stack(&evidence.sites[leak.site], &mut out);
    }
    if evidence.possible.len() > most {
        let more = counted((evidence.possible.len() - most) as u64, "more site");
        out += &format!("\n... and of {more}, possibly lost (--top)\n");
    }
    out += "\n";
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

/// The sums of a described heap; those before are malloc's.
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

fn one_leak(verdict: &Verdict, group: &Group<'_>, out: &mut String) {
    let sites = &verdict.evidence.sites;
    stack(site_of(verdict, group), out);
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
        *out += &format!("   {}, by {}\n", amount(*sum), site.kind);
        stack(site, out);
    }
    if indirect.len() > MOST_INDIRECT {
        let more = counted((indirect.len() - MOST_INDIRECT) as u64, "other site");
        *out += &format!("   ... and of {more}\n");
    }
}

fn stack(site: &AllocationSite, out: &mut String) {
    for frame in &site.stack {
        *out += &format!("      {}\n", frame_line(frame));
    }
    if site.stack.is_empty() {
        *out += &format!("      ({NO_STACK})\n");
    } else if site.truncated {
        *out += "      ... (the stack cannot be followed further)\n";
    }
}
