//! Unreachable blocks of processes in mode `scan`. They are reported, or freed by the process
//! itself if a rule requests it. The agent follows the decision of `scan` on which blocks may be
//! freed, and never loosens it.

use crate::board::{Identity, Numbers, Reclaimed};
use crate::config::{File, Reclaim};
use crate::haste::hastened;
use crate::said::{chain, warn};
use crate::scanning::{Queue, Searches};
use crate::worker::Ended;
use memhook_attach::{Error as AttachError, ReclaimError, Reclaiming};
use memhook_heap::{Candidates, Error as HeapError, Refusal};
use memhook_inject::Error as HoldError;
use memhook_report::{bytes, counted};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Age below which a process is not searched. During start-up, a process changes its data
/// continuously, and may execute another program.
const SETTLING: Duration = Duration::from_secs(60);
/// Share of the interval over which simultaneous searches are spread.
const SPREAD: f64 = 0.25;
/// Maximum time for which a search waits until the agent is within its budget.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reason for freeing nothing: a word for metrics, and a sentence.
type Why = (&'static str, String);

/// Reports or frees the unreachable blocks of one process.
pub struct Reclaims {
    how: Reclaim,
    /// Reasons that were logged.
    told: BTreeSet<&'static str>,
    /// Bytes and blocks that were logged last.
    told_reclaimable: (u64, u64),
    /// Duration of the last round without its pauses, an upper bound on its processor time.
    spent: Duration,
}

impl Reclaims {
    /// Creates the state before the first round.
    pub fn new(how: Reclaim) -> Reclaims {
        Reclaims {
            how,
            told: BTreeSet::new(),
            told_reclaimable: (0, 0),
            spent: Duration::ZERO,
        }
    }

    /// Returns the time before the first search of a process that was just chosen.
    pub fn first_pause(identity: &Identity, interval: Duration) -> Duration {
        // Fibonacci hashing puts consecutive processes far apart.
        let number = identity.started.wrapping_add(identity.pid as u64);
        let spread = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) as f64 / u64::MAX as f64;
        hastened(SETTLING) + interval.mul_f64(SPREAD * spread.min(1.0))
    }

    /// Returns the shortest pause between rounds such that a round like the last one takes at most
    /// the given share of the time.
    pub fn pause_within(&self, share: f64) -> Duration {
        self.spent.div_f64(share)
    }

    /// Searches twice, as `scan` does, and reports or frees the permitted blocks. A refusal is not
    /// an error, because the next round may succeed.
    pub fn round(&mut self, searches: &Searches, numbers: &mut Numbers) -> Result<(), Ended> {
        let mut reclaimed = numbers.reclaimed.take().unwrap_or_default();
        reclaimed.how = self.how.name();
        reclaimed.rounds += 1;
        reclaimed.reclaimable = (0, 0);
        self.spent = Duration::ZERO;
        let refused = self.try_round(searches, numbers, &mut reclaimed)?;
        if let Some(why) = &refused {
            *reclaimed.refusals.entry(why.0).or_default() += 1;
            self.tell_refusal(searches.identity(), why);
        }
        self.tell_reclaimable(searches.identity(), reclaimed.reclaimable);
        reclaimed.refused = refused.map(|(_, why)| why);
        numbers.reclaimed = Some(reclaimed);
        Ok(())
    }

    fn try_round(
        &mut self,
        searches: &Searches,
        numbers: &mut Numbers,
        reclaimed: &mut Reclaimed,
    ) -> Result<Option<Why>, Ended> {
        if searches.is_starved()? {
            let why = "its threads get too little processor time to spare any: give it more (its control group may have a quota)";
            return Ok(Some(("starved", why.into())));
        }
        let Some(turn) = searches.turn_within_budget(Queue::Copies, PATIENCE)? else {
            let why = "the agent has used up its share of the processors, or its memory";
            return Ok(Some(("budget", why.into())));
        };
        let begin = Instant::now();
        let first = self.first_search(searches, numbers);
        self.spent += begin.elapsed();
        let mut reclaiming = match first? {
            Ok(reclaiming) => reclaiming,
            Err(why) => return Ok(Some(why)),
        };
        drop(turn);
        searches.rest_until(Instant::now() + Reclaiming::PAUSE)?;
        let _turn = searches.turn()?;
        let begin = Instant::now();
        let refused = self.second_search(&mut reclaiming, searches, numbers, reclaimed);
        self.spent += begin.elapsed();
        refused
    }

    fn first_search(
        &self,
        searches: &Searches,
        numbers: &mut Numbers,
    ) -> Result<Result<Reclaiming, Why>, Ended> {
        let begin = Reclaiming::begin(searches.identity().pid, searches.request(), None);
        let mut reclaiming = match begin {
            Ok(reclaiming) => reclaiming,
            Err(error) => return Ok(Err((reason_of_beginning(&error), chain(&error)))),
        };
        let found = search(&mut reclaiming, searches, numbers)?;
        Ok(found.map(|_| reclaiming))
    }

    fn second_search(
        &self,
        reclaiming: &mut Reclaiming,
        searches: &Searches,
        numbers: &mut Numbers,
        reclaimed: &mut Reclaimed,
    ) -> Result<Option<Why>, Ended> {
        let found = match search(reclaiming, searches, numbers)? {
            Ok(found) => found,
            Err(why) => return Ok(Some(why)),
        };
        let counted = searches.count(&found.captured, &found.scan, numbers);
        counted.map_err(Ended::Refused)?;
        reclaimed.reclaimable = (found.bytes(&found.chosen), found.chosen.len() as u64);
        Ok(match self.how {
            Reclaim::ReportOnly => None,
            Reclaim::Free => free(reclaiming, &found, searches.identity(), reclaimed),
        })
    }

    /// Logs the amount that could be freed, if it differs from the amount logged last.
    fn tell_reclaimable(&mut self, identity: &Identity, found: (u64, u64)) {
        let is_new = std::mem::replace(&mut self.told_reclaimable, found) != found;
        if self.how == Reclaim::ReportOnly && is_new {
            let (size, blocks) = (bytes(found.0), counted(found.1, "block"));
            tracing::info!(
                pid = identity.pid,
                process = identity.process,
                "{blocks} of {size} in all would be freed"
            );
        }
    }

    /// Logs the reason why a process is not reclaimed, once for each reason.
    fn tell_refusal(&mut self, identity: &Identity, (reason, why): &Why) {
        if self.told.insert(reason) {
            let Identity { pid, process, .. } = identity;
            warn(&format!(
                "process {pid} ({process}) is not reclaimed: {why}"
            ));
        }
    }
}

/// Searches once.
fn search(
    reclaiming: &mut Reclaiming,
    searches: &Searches,
    numbers: &mut Numbers,
) -> Result<Result<Candidates, Why>, Ended> {
    let found = match reclaiming.scan() {
        Ok(found) => found,
        Err(_) if searches.has_gone() => return Err(Ended::Gone),
        Err(error) => return Ok(Err((reason(&error), chain(&error)))),
    };
    searches.count_hold(&found.captured, numbers);
    Ok(match &found.refused {
        Some(refusal) => Err((reason_of_doubt(refusal), refusal.to_string())),
        None => Ok(found),
    })
}

/// Makes the process free the chosen blocks. Returns the reason why some were not freed.
fn free(
    reclaiming: &mut Reclaiming,
    found: &Candidates,
    identity: &Identity,
    reclaimed: &mut Reclaimed,
) -> Option<Why> {
    let done = reclaiming.release(found);
    let (size, blocks) = (found.bytes(&done.released), done.released.len() as u64);
    reclaimed.freed.0 += size;
    reclaimed.freed.1 += blocks;
    reclaimed.holds += done.holds;
    reclaimed.held += done.held;
    reclaimed.longest_hold = reclaimed.longest_hold.max(done.longest);
    if blocks > 0 {
        tracing::info!(
            pid = identity.pid,
            process = identity.process,
            longest_hold = ?done.longest,
            "{} of {} in all freed",
            counted(blocks, "block"),
            bytes(size)
        );
    }
    let failed = done.failed?;
    Some((reason(&failed), chain(&failed)))
}

fn reason_of_beginning(error: &ReclaimError) -> &'static str {
    match error {
        ReclaimError::Access(_) => "access",
        ReclaimError::Filtered { .. } => "seccomp",
        ReclaimError::Claim(AttachError::AlreadyTraced { .. } | AttachError::Busy { .. }) => {
            "traced"
        }
        ReclaimError::Heap(error) => reason(error),
        _ => "failed",
    }
}

fn reason_of_doubt(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::OtherAllocator(_)
        | Refusal::LinkedIn(_)
        | Refusal::CallsBack(_)
        | Refusal::NotShown(_) => "allocator",
        Refusal::InMalloc => "in_malloc",
        Refusal::Unparsed { .. } | Refusal::NoCaches | Refusal::OtherCount => "heap",
        Refusal::Unsearched(_) => "unsearched",
    }
}

fn reason(error: &HeapError) -> &'static str {
    match error {
        HeapError::HeapOfMusl { .. }
        | HeapError::NoHeap { .. }
        | HeapError::UnknownLayout { .. } => "heap",
        HeapError::NoRoom { .. } | HeapError::NoSpace { .. } | HeapError::NoRoomToFork { .. } => {
            "memory"
        }
        HeapError::TooLong { .. }
        | HeapError::NoShortHold { .. }
        | HeapError::LongCall { .. }
        | HeapError::Inject(HoldError::StopsTooLate { .. }) => "max_hold",
        HeapError::LongHolds { .. } | HeapError::Inject(HoldError::Starved { .. }) => "starved",
        HeapError::Inject(HoldError::AlreadyTraced { .. }) => "traced",
        HeapError::Inject(_) => "not_held",
        HeapError::OwnFreeHook => "free_hook",
        HeapError::OtherProgram { .. } => "other_program",
        HeapError::Process(_) | HeapError::Unread { .. } => "access",
        _ => "failed",
    }
}

/// Describes what a configuration frees, one line for each rule.
pub fn notes(file: &File) -> Vec<String> {
    let rules = file.rule.iter().map(toml::Spanned::get_ref);
    let notes = rules.filter_map(|rule| {
        let name = rule.name.get_ref();
        Some(match rule.reclaim.as_ref()?.get_ref() {
            Reclaim::Free => format!(
                "the rule \"{name}\" frees unreachable blocks of its processes, by calls of their own free()"
            ),
            Reclaim::ReportOnly => format!(
                "the rule \"{name}\" reports which unreachable blocks of its processes could be freed, and frees none"
            ),
        })
    });
    notes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_of_many_processes_are_spread() {
        let hour = Duration::from_secs(3600);
        let pauses: Vec<Duration> = (0..200)
            .map(|number| {
                let identity = Identity {
                    pid: 4000 + number,
                    started: 77_000,
                    ..Identity::default()
                };
                Reclaims::first_pause(&identity, hour)
            })
            .collect();
        assert!(pauses.iter().all(|pause| *pause >= SETTLING));
        assert!(pauses.iter().all(|pause| *pause <= SETTLING + hour / 4));
        // Each tenth of the time gets between two thirds and four thirds of its share of the
        // searches.
        for part in 0..10 {
            let begin = SETTLING + hour / 40 * part;
            let within = begin..begin + hour / 40;
            let count = pauses.iter().filter(|pause| within.contains(pause)).count();
            assert!((14..=26).contains(&count), "{part}: {count}");
        }
    }

    #[test]
    fn a_share_of_the_time_is_kept() {
        let mut reclaims = Reclaims::new(Reclaim::Free);
        reclaims.spent = Duration::from_secs(3);
        assert_eq!(reclaims.pause_within(0.01), Duration::from_secs(300));
    }

    #[test]
    fn each_reason_is_said_once() {
        let mut reclaims = Reclaims::new(Reclaim::Free);
        let identity = Identity::default();
        for why in ["at 0x10, damaged", "at 0x20, damaged"] {
            reclaims.tell_refusal(&identity, &("heap", why.into()));
        }
        reclaims.tell_refusal(&identity, &("allocator", "another one".into()));
        assert_eq!(reclaims.told, BTreeSet::from(["allocator", "heap"]));
    }
}
