//! Turns the findings about processes into a written verdict.

use super::options::Args;
use crate::exit_code;
use memhook_gate::{
    Evidence, Exceptions, Judgement, Limits, NotJudged, Outputs, judge_each, outcome,
};

/// Criteria of the verdict, read before anything starts.
pub struct Measure {
    limits: Limits,
    exceptions: Exceptions,
    outputs: Outputs,
    allows_partial: bool,
    failed: u8,
}

impl Measure {
    /// Reads and opens every file that the options name. `is_beside_program` is true if standard output belongs to a
    /// started program.
    pub fn of(args: &Args, is_beside_program: bool) -> anyhow::Result<Measure> {
        Ok(Measure {
            limits: args.limits.limits()?,
            exceptions: args.exceptions.read()?,
            outputs: Outputs::open(args.outputs.resolve(&args.exceptions, is_beside_program))?,
            allows_partial: args.allow_partial,
            failed: args.error_exitcode,
        })
    }

    /// Returns true if known findings are left out.
    pub fn has_baseline(&self) -> bool {
        self.exceptions.baseline.is_some()
    }

    /// Removes the limits on leaks, so that findings are only listed.
    pub fn limit_no_leaks(&mut self) {
        self.limits.leaked_bytes = None;
        self.limits.leaked_blocks = None;
    }

    /// Returns true if there are limits on single sites, so that every live block's backtrace matters.
    pub fn needs_all_sites(&self) -> bool {
        !self.limits.sites.is_empty()
    }

    /// Judges each process, writes the verdicts, and returns the exit code.
    pub fn conclude(self, processes: Vec<Evidence>) -> anyhow::Result<u8> {
        self.conclude_beside(processes, Vec::new())
    }

    /// Like `conclude`, for a command that also has processes that are not judged.
    pub fn conclude_beside(
        mut self,
        processes: Vec<Evidence>,
        not_judged: Vec<NotJudged>,
    ) -> anyhow::Result<u8> {
        let verdicts = judge_each(
            processes,
            &self.limits,
            &mut self.exceptions,
            self.allows_partial,
        );
        let judgement = Judgement {
            verdicts,
            not_judged,
        };
        self.outputs.write(&judgement)?;
        Ok(exit_code::of_verdict(outcome(&judgement), self.failed))
    }
}
