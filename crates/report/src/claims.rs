//! Statements of a report about its own numbers: that they are complete, or where blocks come from.
//!
//! Each such statement is made here, from facts, together with its proof. No other part of a report
//! makes such statements, so each statement has a proof.

use crate::ReportModel;
use crate::labels::one_line;
use crate::recorded::{FROM_START_NOTE, note};
use crate::units::{self, bytes, counted};
use memhook_recording::Recording;

/// Facts about events that a trace may have missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// True if the process was traced from its first instruction, so that no block is older than
    /// the trace.
    pub from_start: bool,
    /// True if only samples of the allocations were recorded.
    pub is_sampled: bool,
    /// True if the trace had no room for some of the live blocks.
    pub is_bounded: bool,
    /// True if the run has gaps, in which no event was seen.
    pub has_gaps: bool,
    /// True if libraries were opened before memhook-rs could patch them.
    pub has_unwatched_libraries: bool,
}

impl Seen {
    /// Returns the facts of a report's run.
    pub fn of(model: &ReportModel) -> Seen {
        Seen {
            from_start: model.attach.from_start,
            is_sampled: model.sampling.is_some(),
            is_bounded: model.bounded.is_some(),
            has_gaps: !model.gaps.is_empty(),
            has_unwatched_libraries: model.totals.unwatched_libraries > 0,
        }
    }

    /// Returns the facts of a recording that holds every event of its run.
    pub fn of_recording(recording: &Recording) -> Seen {
        Seen {
            from_start: note(recording, FROM_START_NOTE) == "1",
            has_gaps: !recording.gaps().is_empty(),
            has_unwatched_libraries: recording.losses().unwatched_libraries > 0,
            ..Seen::default()
        }
    }
}

/// Evidence for a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The hook counts the events that it could not record, and all these counts are 0.
    NothingLost,
    /// According to the relocations of all modules, every slot that leads to an allocator function holds a wrapper.
    EverySlot,
    /// The statement names every possible cause.
    EveryCause,
    /// The allocator's own count of the memory that it has handed out agrees.
    AllocatorsCount,
}

/// A statement: a sentence, or part of a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its text.
    pub sentence: String,
    /// Proofs of the statement. The list is never empty.
    pub proofs: &'static [Proof],
    /// Exceptions that the statement does not cover; may be empty.
    pub bound: &'static str,
}

/// A call through a pointer from another source (dlsym(3), or the loader itself) uses no slot of any module.
const BEYOND_SLOTS: &str = "calls that use no slot: by pointers from dlsym, and the loader's own";

/// Comparison of malloc's own count with the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SecondSource {
    /// malloc's own count and the trace cannot be compared.
    Silent,
    /// malloc's own count and the trace agree within this number of bytes.
    Agrees(u64),
    /// Number of bytes that were allocated by calls that the hook did not see.
    HasMore(u64),
    /// Number of bytes of traced blocks that were released by calls that the hook did not see.
    HasLess(u64),
}

impl SecondSource {
    fn of(model: &ReportModel) -> SecondSource {
        let t = &model.totals;
        let is_of_malloc = model.coverage.iter().all(|c| c.allocator.is_empty());
        let is_exact = model.sampling.is_none()
            && model.bounded.is_none()
            && model.gaps.is_empty()
            && t.lost_events == 0;
        let Some(found) = model.heap_comparison.filter(|_| is_of_malloc && is_exact) else {
            return SecondSource::Silent;
        };
        let more = found.grown_bytes.saturating_sub(found.traced_bytes);
        let is_beyond = more.unsigned_abs() > found.bound_bytes;
        match (is_beyond, more > 0) {
            (true, true) => SecondSource::HasMore(more.unsigned_abs()),
            // Releases of blocks from before the attach can hide an equal number of unseen bytes.
            _ if found.has_unknown_releases => SecondSource::Silent,
            (true, false) => SecondSource::HasLess(more.unsigned_abs()),
            (false, _) => SecondSource::Agrees(found.bound_bytes),
        }
    }
}

/// States how many bytes appeared or disappeared without an event, with the likeliest cause; `None`
/// if the allocator's own count does not contradict the trace.
pub(crate) fn unseen_calls(model: &ReportModel) -> Option<Claim> {
    let (amount, what) = match SecondSource::of(model) {
        SecondSource::HasMore(amount) => (amount, "came"),
        SecondSource::HasLess(amount) => (amount, "of traced blocks went"),
        SecondSource::Silent | SecondSource::Agrees(_) => return None,
    };
    let unhooked = model.coverage.iter().find(|c| c.unhookable > 0);
    let cause = match unhooked {
        _ if model.totals.unwatched_libraries > 0 => "calls by libraries that were opened".into(),
        Some(module) => format!(
            "{} in {} that cannot be hooked",
            counted(module.unhookable, "call"),
            one_line(module.module.clone())
        ),
        None => format!("{BEYOND_SLOTS}, or made inside the program's own operator new"),
    };
    Some(Claim {
        sentence: format!(
            "{} {what} by calls that were not seen, by malloc's own count; most likely {cause}",
            bytes(amount)
        ),
        proofs: &[Proof::AllocatorsCount],
        bound: "",
    })
}

/// States that no event is missing. Returns `None` if one is or may be missing.
pub(crate) fn completeness(model: &ReportModel) -> Option<Claim> {
    let t = &model.totals;
    let is_flawed = |c: &crate::Coverage| c.unhookable > 0 || !c.note.is_empty();
    let flaws = t.lost_events
        + t.truncated_stacks
        + t.unkept_stacks
        + t.reentrant_calls
        + t.unwatched_libraries;
    if flaws > 0
        || !model.gaps.is_empty()
        || model.coverage.iter().any(is_flawed)
        || unseen_calls(model).is_some()
    {
        return None;
    }
    let agrees = match SecondSource::of(model) {
        SecondSource::Agrees(within) => Some(within),
        _ => None,
    };
    let (calls, proofs): (&str, &'static [Proof]) = match (model.coverage.is_empty(), agrees) {
        (true, _) => ("", &[Proof::NothingLost]),
        (false, None) => (
            ", every call through a slot seen",
            &[Proof::NothingLost, Proof::EverySlot],
        ),
        (false, Some(_)) => (
            ", every call through a slot seen",
            &[Proof::NothingLost, Proof::EverySlot, Proof::AllocatorsCount],
        ),
    };
    let agrees = agrees.filter(|_| !model.coverage.is_empty());
    let agrees = agrees.map_or(String::new(), |within| {
        format!(", and malloc's own count agrees within {}", bytes(within))
    });
    Some(Claim {
        sentence: format!("complete: no event lost{calls}{agrees}"),
        proofs,
        bound: BEYOND_SLOTS,
    })
}

/// Warns of libraries that were opened before memhook-rs could patch them; `None` if there are none.
pub fn unwatched_libraries(count: u64) -> Option<String> {
    let (libraries, them) = match count {
        0 => return None,
        1 => ("1 library was".to_owned(), "it"),
        _ => (format!("{} libraries were", units::count(count)), "them"),
    };
    Some(format!(
        "{libraries} opened before memhook-rs could patch {them}: calls by {them} may be missing"
    ))
}

/// Describes live blocks whose allocation is not in the trace. Nothing more is known about their age.
pub fn unseen_blocks(seen: Seen) -> Claim {
    let causes = [
        (!seen.from_start, "allocated before the attach"),
        (seen.is_sampled, "not sampled"),
        (seen.is_bounded, "not kept for lack of memory"),
        (seen.has_gaps, "allocated while nothing was seen"),
        (true, "allocated by a call that was not recorded"),
    ];
    of_causes(&causes)
}

/// Describes released blocks whose allocation is not in the trace.
pub fn unseen_releases(seen: Seen) -> Claim {
    let causes = [
        (!seen.from_start, "from before the attach"),
        (seen.has_gaps, "from times in which nothing was seen"),
        (true, "by constructors of libraries opened since"),
        (
            seen.has_unwatched_libraries,
            "by such libraries before they were patched",
        ),
        (true, "by calls that use no slot"),
    ];
    of_causes(&causes)
}

fn of_causes(causes: &[(bool, &'static str)]) -> Claim {
    let possible: Vec<&str> = causes
        .iter()
        .filter_map(|&(may_be, cause)| may_be.then_some(cause))
        .collect();
    let sentence = match possible.as_slice() {
        [first, .., last] => {
            let others = possible[..possible.len() - 1].join(", ");
            match possible.len() {
                2 => format!("{first}, or {last}"),
                _ => format!("{others}, or {last}"),
            }
        }
        one => one.concat(),
    };
    Claim {
        sentence,
        proofs: &[Proof::EveryCause],
        bound: "",
    }
}

/// Returns the number of slots, as text that follows a claim that all of them are seen.
pub(crate) fn slots_text(model: &ReportModel) -> String {
    let slots = counted(model.attach.slots, "slot");
    format!("{slots} in {}", counted(model.attach.modules, "module"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bounded, Coverage, HeapComparison, Sampling, gaps::UnseenTime};

    /// Builds a report for every combination of facts. Each fact is one bit of a number.
    fn models() -> impl Iterator<Item = ReportModel> {
        (0u32..1 << 13).map(|bits| {
            let is = |bit: u32| bits >> bit & 1 == 1;
            let mut model = ReportModel::default();
            model.attach.from_start = is(0);
            model.sampling = is(1).then(Sampling::default);
            model.bounded = is(2).then(Bounded::default);
            if is(3) {
                model.gaps.push(UnseenTime {
                    from_s: 0.0,
                    to_s: 1.0,
                });
            }
            model.totals.lost_events = is(4).into();
            model.totals.reentrant_calls = is(5).into();
            model.totals.truncated_stacks = is(6).into();
            model.totals.unwatched_libraries = is(12).into();
            if is(7) {
                model.coverage.push(Coverage::default());
            }
            if is(8) {
                model.coverage.push(Coverage {
                    unhookable: 1,
                    ..Coverage::default()
                });
            }
            // malloc's count is more than, less than or equal to the trace, with and without
            // released older blocks.
            model.heap_comparison = is(9).then(|| HeapComparison {
                grown_bytes: if is(10) { 9 << 20 } else { -(9 << 20) },
                traced_bytes: if is(7) { 8 << 20 } else { -(9 << 20) },
                bound_bytes: 1 << 20,
                has_unknown_releases: is(11),
            });
            model
        })
    }

    #[test]
    fn no_claim_is_made_without_its_proof() {
        for model in models() {
            let seen = Seen::of(&model);
            let complete = completeness(&model);
            let blocks = unseen_blocks(seen);
            let releases = unseen_releases(seen);
            for claim in complete.iter().chain([&blocks, &releases]) {
                assert!(!claim.proofs.is_empty(), "{claim:?}");
                let says_before = claim.sentence.contains("before the attach");
                assert!(!(says_before && seen.from_start), "{claim:?}");
                assert!(!claim.sentence.contains("every call seen"), "{claim:?}");
            }
            assert!(seen.from_start || blocks.sentence.contains("before the attach"));
            assert_eq!(blocks.sentence.contains("not sampled"), seen.is_sampled);
            let is_flawless = model.totals.lost_events
                + model.totals.reentrant_calls
                + model.totals.truncated_stacks
                + model.totals.unwatched_libraries
                == 0
                && model.gaps.is_empty()
                && model.coverage.iter().all(|c| c.unhookable == 0);
            let unseen = unseen_calls(&model);
            assert_eq!(complete.is_some(), is_flawless && unseen.is_none());
            if let Some(claim) = unseen {
                let found = model.heap_comparison.expect("a comparison");
                let more = found.grown_bytes - found.traced_bytes;
                assert!(more.unsigned_abs() > found.bound_bytes, "{claim:?}");
                assert!(more > 0 || !found.has_unknown_releases, "{claim:?}");
                assert_eq!(claim.sentence.contains("came by"), more > 0, "{claim:?}");
                assert_eq!(claim.proofs, [Proof::AllocatorsCount]);
                assert!(model.sampling.is_none() && model.bounded.is_none() && !seen.has_gaps);
            }
            if let Some(claim) = complete {
                let has_slots = claim.proofs.contains(&Proof::EverySlot);
                assert_eq!(has_slots, !model.coverage.is_empty());
                assert_eq!(claim.sentence.contains("slot"), has_slots);
                let is_agreed = claim.proofs.contains(&Proof::AllocatorsCount);
                assert_eq!(claim.sentence.contains("agrees"), is_agreed, "{claim:?}");
                assert!(!is_agreed || model.heap_comparison.is_some());
            }
        }
    }

    #[test]
    fn causes_are_one_sentence() {
        let text = |seen| unseen_blocks(seen).sentence;
        assert_eq!(
            text(Seen::default()),
            "allocated before the attach, or allocated by a call that was not recorded"
        );
        let sampled = Seen {
            from_start: true,
            is_sampled: true,
            ..Seen::default()
        };
        assert_eq!(
            text(sampled),
            "not sampled, or allocated by a call that was not recorded"
        );
        let from_start = Seen {
            from_start: true,
            ..Seen::default()
        };
        assert_eq!(
            text(from_start),
            "allocated by a call that was not recorded"
        );
    }
}
