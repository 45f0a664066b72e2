//! Verdicts on the processes of one program, and the leaks that they share.

use crate::verdict::{Group, Outcome, Verdict};
use crate::{AllocationSite, Sum};
use serde::Serialize;
use std::collections::HashMap;
use std::ops::Deref;

/// Verdicts on all processes that were judged, in the order in which the processes started.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    /// One verdict for each process.
    pub verdicts: Vec<Verdict>,
    /// Programs with processes that were not judged.
    pub not_judged: Vec<NotJudged>,
}

/// A program with processes that were not judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotJudged {
    /// Name of the program.
    pub program: String,
    /// Number of its processes.
    pub processes: u64,
}

impl From<Vec<Verdict>> for Judgement {
    fn from(verdicts: Vec<Verdict>) -> Judgement {
        Judgement {
            verdicts,
            not_judged: Vec::new(),
        }
    }
}

impl Deref for Judgement {
    type Target = [Verdict];

    fn deref(&self) -> &[Verdict] {
        &self.verdicts
    }
}

/// A leak, in all processes that have it.
#[derive(Clone, Debug)]
pub struct SharedLeak<'a> {
    /// Verdict on the process in which the leak is largest.
    pub verdict: &'a Verdict,
    /// The leak in that process.
    pub group: Group<'a>,
    /// Blocks, in all processes, to which no other leaked block points.
    pub direct: Sum,
    /// The directly leaked blocks and the blocks reachable only from them.
    pub total: Sum,
    /// Verdicts on all processes with this leak.
    pub processes: Vec<&'a Verdict>,
}

impl<'a> SharedLeak<'a> {
    /// Returns the site of the largest part.
    pub fn site(&self) -> &'a AllocationSite {
        &self.verdict.evidence.sites[self.group.main().leak.site]
    }

    fn add(&mut self, verdict: &'a Verdict, group: Group<'a>) {
        self.direct.add(group.direct());
        self.total.add(group.total());
        self.processes.push(verdict);
        if group.total().bytes > self.group.total().bytes {
            (self.verdict, self.group) = (verdict, group);
        }
    }
}

impl Judgement {
    /// Returns the leaks that count, largest first. Each leak is listed once, regardless of how
    /// many processes have it. `of` selects the processes.
    pub fn leaks(&self, of: impl Fn(&Verdict) -> bool) -> Vec<SharedLeak<'_>> {
        let mut leaks: Vec<SharedLeak<'_>> = Vec::new();
        let mut places = HashMap::new();
        for verdict in self.iter().filter(|verdict| of(verdict)) {
            for group in verdict.counted() {
                let key = verdict.evidence.sites[group.main().leak.site].leak_key();
                let place = *places.entry(key).or_insert(leaks.len());
                match leaks.get_mut(place) {
                    Some(known) => known.add(verdict, group),
                    None => leaks.push(SharedLeak {
                        verdict,
                        direct: group.direct(),
                        total: group.total(),
                        processes: vec![verdict],
                        group,
                    }),
                }
            }
        }
        // The sort is stable, so leaks of equal size stay in the order in which they were found.
        leaks.sort_by_key(|leak| std::cmp::Reverse(leak.total.bytes));
        leaks
    }

    /// Returns true if more than one process did not pass, so that shared leaks are reported once.
    pub(crate) fn has_several_others(&self) -> bool {
        let others = self.iter().filter(|v| v.outcome != Outcome::Passed);
        others.take(2).count() > 1
    }
}

/// Counts programs by the names of their processes, in the order in which they were first seen.
pub fn not_judged(names: impl IntoIterator<Item = String>) -> Vec<NotJudged> {
    let mut programs: Vec<NotJudged> = Vec::new();
    for program in names {
        match programs.iter_mut().find(|known| known.program == program) {
            Some(known) => known.processes += 1,
            None => programs.push(NotJudged {
                program,
                processes: 1,
            }),
        }
    }
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_program_are_counted() {
        let names = ["sh", "ctest", "sh", "sh"].map(str::to_owned);
        let programs = not_judged(names);
        let counts: Vec<_> = programs
            .iter()
            .map(|p| (p.program.as_str(), p.processes))
            .collect();
        assert_eq!(counts, [("sh", 3), ("ctest", 1)]);
    }
}
