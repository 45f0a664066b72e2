//! From what was found in a process to the verdict, written.

use super::names::Names;
use super::options::Args;
use super::outputs::Outputs;
use crate::reached::Reached;
use crate::session::Session;
use memhook_gate::growth::Growth;
use memhook_gate::{
    Baseline, Evidence, Leak, Limits, Outcome, Subject, Sum, Suppressions, judge_each, outcome,
};
use memhook_ledger::{Ledger, Totals};
use memhook_stream::{Losses, Region};

/// What the verdict is measured by, read before anything starts.
pub struct Measure {
    limits: Limits,
    suppressions: Suppressions,
    baseline: Option<Baseline>,
    outputs: Outputs,
}

impl Measure {
    /// Reads and opens everything that the options name.
    pub fn of(args: &Args) -> anyhow::Result<Measure> {
        Ok(Measure {
            limits: args.limits.limits()?,
            suppressions: args.exceptions.read_suppressions()?,
            baseline: args.exceptions.read_baseline()?,
            outputs: Outputs::open(args)?,
        })
    }

    /// Whether known findings are left out.
    pub fn has_baseline(&self) -> bool {
        self.baseline.is_some()
    }

    /// Findings are only listed.
    pub fn limit_no_leaks(&mut self) {
        self.limits.leaked_bytes = None;
        self.limits.leaked_blocks = None;
    }

    /// Whether single sites are limited: then every live block's backtrace matters.
    pub fn needs_all_sites(&self) -> bool {
        !self.limits.sites.is_empty()
    }

    /// Judges each process, writes, and returns the result.
    pub fn conclude(
        mut self,
        args: &Args,
        processes: Vec<Evidence>,
        beside_program: bool,
    ) -> anyhow::Result<Outcome> {
        let verdicts = judge_each(
            processes,
            &self.limits,
            &mut self.suppressions,
            self.baseline.as_ref(),
            args.allow_partial,
        );
        self.outputs.write(args, &verdicts, beside_program)?;
        Ok(outcome(&verdicts))
    }
}

/// Puts names to what was found. `needs_all_sites`: to those of live blocks too.
pub fn evidence(
    needs_all_sites: bool,
    session: &Session,
    totals: &Totals,
    reached: Reached,
) -> Evidence {
    let of_leaks = reached.lost.iter().flat_map(|(stack, lost)| {
        lost.indirect
            .keys()
            .chain(std::iter::once(stack))
            .copied()
            .flatten()
    });
    let of_live = match needs_all_sites {
        true => reached.live.keys().copied().collect(),
        false => Vec::new(),
    };
    let mut names = Names::new(session, of_leaks.chain(of_live.iter().copied()));
    let mut leaks: Vec<Leak> = Vec::new();
    for (&stack, lost) in &reached.lost {
        let site = names.site(stack);
        let leak = match leaks.iter_mut().find(|leak| leak.site == site) {
            Some(leak) => leak,
            None => {
                leaks.push(Leak {
                    site,
                    ..Leak::default()
                });
                leaks.last_mut().expect("just pushed")
            }
        };
        leak.direct.add(lost.direct);
        for (&stack, &sum) in &lost.indirect {
            let site = names.site(stack);
            match leak.indirect.iter_mut().find(|(known, _)| *known == site) {
                Some((_, known)) => known.add(sum),
                None => leak.indirect.push((site, sum)),
            }
        }
    }
    let live: Vec<_> = of_live
        .into_iter()
        .map(|stack| (names.site(Some(stack)), reached.live[&stack]))
        .collect();
    let mut sites = names.into_sites();
    for (site, sum) in live {
        sites[site].live.add(sum);
    }
    let mut gaps = losses(session.region());
    gaps.extend(reached.gaps);
    Evidence {
        sites,
        leaks,
        reachable: reached.reachable,
        peak_bytes: totals.peak_live_bytes,
        allocations: totals.allocations,
        gaps,
        ..Evidence::default()
    }
}

/// Sites that grow: backtrace, growth, blocks more than at the begin.
pub type Grown = [(u32, Growth, Sum)];

/// Puts names to sites that grow in a traced process.
pub fn growth_evidence(session: &Session, totals: &Totals, grown: &Grown) -> Evidence {
    let names = Names::new(session, grown.iter().map(|g| g.0));
    let mut evidence = growth_named(names, totals, grown);
    evidence.gaps = losses(session.region());
    evidence
}

/// The same with names from elsewhere.
pub fn growth_named(mut names: Names<'_>, totals: &Totals, grown: &Grown) -> Evidence {
    let mut leaks = Vec::new();
    let mut rest = Sum {
        blocks: totals.live_blocks,
        bytes: totals.live_bytes,
    };
    for &(stack, growth, direct) in grown {
        rest.blocks = rest.blocks.saturating_sub(direct.blocks);
        rest.bytes = rest.bytes.saturating_sub(direct.bytes);
        leaks.push(Leak {
            site: names.site(Some(stack)),
            direct,
            growth: Some(growth),
            ..Leak::default()
        });
    }
    Evidence {
        subject: Subject::Growth,
        sites: names.into_sites(),
        leaks,
        reachable: rest,
        peak_bytes: totals.peak_live_bytes,
        allocations: totals.allocations,
        ..Evidence::default()
    }
}

/// Why what is known of the live blocks is not exact. A verdict needs all of them, and their stacks.
pub fn bound(ledger: &Ledger, totals: &Totals) -> Option<String> {
    let totals = crate::model::exact_totals(totals, &Losses::default());
    let bounded = ledger.bounded()?;
    let words = crate::model::described(&bounded, &totals).in_words();
    Some(format!("{words}; give it more with --max-memory"))
}

/// What the trace itself missed.
fn losses(region: &Region) -> Vec<String> {
    let losses = region.losses();
    let mut gaps = Vec::new();
    let lost = losses.dropped + losses.ringless;
    if lost > 0 {
        gaps.push(format!("{lost} events were lost"));
    }
    if region.abandoned() {
        gaps.push("the program waited for us too long and went on untraced".into());
    }
    gaps
}
