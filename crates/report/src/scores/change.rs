//! Changes of scores from one run to another.

use super::{RunScores, Scores};
use crate::Profile;
use serde::Serialize;
use std::collections::BTreeSet;

/// Change of the scores.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ScoreChange {
    /// Scores of the old run.
    pub old: RunScores,
    /// Scores of the new run.
    pub new: RunScores,
    /// New scores minus old scores. Values above 0 are improvements.
    pub change: Scores,
}

impl ScoreChange {
    /// Computes the change from the old run to the new one.
    pub(crate) fn of(old: RunScores, new: RunScores) -> ScoreChange {
        let change = |of: fn(&Scores) -> Option<f64>| Some(of(&new.scores)? - of(&old.scores)?);
        ScoreChange {
            old,
            new,
            change: Scores {
                lifetime: change(|s| s.lifetime),
                usage: change(|s| s.usage),
                useful_lifetime: change(|s| s.useful_lifetime),
                ..Scores::default()
            },
        }
    }
}

/// Combines the scores of some stacks, weighted by their numbers of blocks.
pub(crate) fn stacks_scores(profile: &Profile, stacks: &BTreeSet<u32>) -> Option<Scores> {
    let all = profile.scores.as_ref()?;
    let scored = stacks.iter().filter_map(|&stack| all.site(stack));
    let mean = |of: fn(&Scores) -> Option<f64>| {
        let known = scored.clone().filter_map(|site| {
            let blocks = site.numbers.chunks.max(1) as f64;
            Some((of(&site.scores)? * blocks, blocks))
        });
        let (sum, blocks) = known.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (blocks > 0.0).then(|| sum / blocks)
    };
    scored.clone().next()?;
    Some(Scores {
        lifetime: mean(|s| s.lifetime),
        usage: mean(|s| s.usage),
        useful_lifetime: mean(|s| s.useful_lifetime),
        usage_error: mean(|s| s.usage_error),
        useful_lifetime_error: mean(|s| s.useful_lifetime_error),
    })
}
