//! From what was found in a process to the verdict, written.

use super::options::Args;
use super::outputs::Outputs;
use crate::frames::{SessionStacks, module_files};
use memhook_attach::Session;
use memhook_gate::{
    Baseline, Evidence, Grown, Limits, MappedModule, NameSource, Outcome, Reached, Suppressions,
    judge_each, outcome,
};
use memhook_ledger::{Ledger, Totals};
use memhook_stream::Region;
use memhook_symbols::Symbolizer;

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

/// What was found in a traced process. `needs_all_sites`: live blocks get the names of their stacks too.
pub fn evidence(
    needs_all_sites: bool,
    session: &Session,
    totals: &Totals,
    reached: Reached,
) -> Evidence {
    with_names(session, |source| {
        memhook_gate::evidence(needs_all_sites, source, totals, reached)
    })
}

/// Which sites of a traced process grow.
pub fn growth_evidence(session: &Session, totals: &Totals, grown: &Grown) -> Evidence {
    with_names(session, |source| {
        memhook_gate::growth_evidence(source, totals, grown)
    })
}

fn with_names(session: &Session, gather: impl FnOnce(NameSource<'_>) -> Evidence) -> Evidence {
    let mut symbols = Symbolizer::new(session.root().search_order());
    let files = module_files(session);
    let modules = files.iter().map(|file| MappedModule {
        addresses: file.start..file.end,
        path: file.path.clone(),
    });
    let modules = modules.collect();
    symbols.set_modules(files);
    let mut evidence = gather(NameSource {
        backtraces: &SessionStacks(session),
        modules,
        symbols,
    });
    // What the trace itself missed comes first.
    let mut gaps = losses(session.region());
    gaps.append(&mut evidence.gaps);
    evidence.gaps = gaps;
    evidence
}

/// Why what is known of the live blocks is not exact. A verdict needs all of them, and their stacks.
pub fn bound(ledger: &Ledger, totals: &Totals) -> Option<String> {
    let bounded = ledger.bounded()?;
    let words = memhook_report::described(&bounded, totals.live_blocks).in_words();
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
