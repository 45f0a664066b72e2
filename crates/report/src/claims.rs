//! What a report states over its numbers: that something is complete, or where something comes from.
//!
//! Each such sentence is made here, from facts, and together with what proves it. Nothing else of a report states such a
//! thing, so none can be stated without a proof.

use crate::ReportModel;
use crate::units::counted;

/// What is known of what a trace may have missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The process was traced from its first instruction, so there was nothing before.
    pub from_start: bool,
    /// Only samples of the allocations are recorded.
    pub is_sampled: bool,
    /// The trace had no room for all live blocks.
    pub is_bounded: bool,
    /// There were times in which nothing was seen.
    pub has_gaps: bool,
}

impl Seen {
    /// Of a report's run.
    pub fn of(model: &ReportModel) -> Seen {
        Seen {
            from_start: model.attach.from_start,
            is_sampled: model.sampling.is_some(),
            is_bounded: model.bounded.is_some(),
            has_gaps: !model.gaps.is_empty(),
        }
    }
}

/// What a sentence rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The hook counts what it could not record, and all those counts are 0.
    NothingLost,
    /// Each slot that leads to an allocator's function, by the relocations of all modules, holds a wrapper.
    EverySlot,
    /// It names everything that can be the cause.
    EveryCause,
}

/// A sentence, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What is stated.
    pub sentence: String,
    /// Why that is so; never empty.
    pub proofs: &'static [Proof],
    /// What it does not cover; may be empty.
    pub bound: &'static str,
}

/// A call by a pointer from elsewhere (dlsym(3), the loader's own) leads through no slot of any module.
const BEYOND_SLOTS: &str = "calls that use no slot: by pointers from dlsym, and the loader's own";

/// That nothing is missing; `None` if something is, or may be.
pub(crate) fn completeness(model: &ReportModel) -> Option<Claim> {
    let t = &model.totals;
    let is_flawed = |c: &crate::Coverage| c.unhookable > 0 || !c.note.is_empty();
    let flaws = t.lost_events + t.truncated_stacks + t.unkept_stacks + t.reentrant_calls;
    if flaws > 0 || !model.gaps.is_empty() || model.coverage.iter().any(is_flawed) {
        return None;
    }
    let (calls, proofs): (&str, &'static [Proof]) = match model.coverage.is_empty() {
        true => ("", &[Proof::NothingLost]),
        false => (
            ", every call through a slot seen",
            &[Proof::NothingLost, Proof::EverySlot],
        ),
    };
    Some(Claim {
        sentence: format!("complete: no event lost{calls}"),
        proofs,
        bound: BEYOND_SLOTS,
    })
}

/// Where live blocks come from whose allocation is not in the trace: all that is known of their age.
pub fn unseen_blocks(seen: Seen) -> Claim {
    let causes = [
        (!seen.from_start, "allocated before the attach"),
        (seen.is_sampled, "not sampled"),
        (seen.is_bounded, "not kept for want of memory"),
        (
            seen.has_gaps,
            "allocated in times in which nothing was seen",
        ),
        (true, "allocated by a call that was not recorded"),
    ];
    of_causes(&causes)
}

/// Where blocks came from that were released, and whose allocation is not in the trace.
pub(crate) fn unseen_releases(seen: Seen) -> Claim {
    let causes = [
        (!seen.from_start, "from before the attach"),
        (seen.has_gaps, "from times in which nothing was seen"),
        (true, "by constructors of libraries opened since"),
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

/// How much of the slots there is, behind a claim that they are all seen.
pub(crate) fn slots_text(model: &ReportModel) -> String {
    let slots = counted(model.attach.slots, "slot");
    format!("{slots} in {}", counted(model.attach.modules, "module"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bounded, Coverage, Sampling, gaps::UnseenTime};

    /// Every report that a choice of facts makes, one bit each.
    fn models() -> impl Iterator<Item = ReportModel> {
        (0u32..1 << 9).map(|bits| {
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
            if is(7) {
                model.coverage.push(Coverage::default());
            }
            if is(8) {
                model.coverage.push(Coverage {
                    unhookable: 1,
                    ..Coverage::default()
                });
            }
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
                == 0
                && model.gaps.is_empty()
                && model.coverage.iter().all(|c| c.unhookable == 0);
            assert_eq!(complete.is_some(), is_flawless);
            if let Some(claim) = complete {
                let has_slots = claim.proofs.contains(&Proof::EverySlot);
                assert_eq!(has_slots, !model.coverage.is_empty());
                assert_eq!(claim.sentence.contains("slot"), has_slots);
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
