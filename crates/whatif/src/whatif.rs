//! Runs all replays of a recording, one after the other.

use crate::child::{Bounds, Measured, Replayer, Touch};
use crate::comparison::{Comparison, Recommendation, ReplayRow, Truth};
use crate::operations::{Moments, Plan, Sums};
use crate::variants::{self, Variant};
use crate::{Error, recorded, truth};
use memhook_process::CgroupMemory;
use memhook_recording::{Recording, ResidentSample};
use memhook_report::bytes;
use std::path::PathBuf;
use std::time::Duration;

/// Approximate number of points in a curve.
const POINTS: u64 = 2000;
/// Assumed overhead of an allocator, as a share of the blocks' bytes, when checking whether a
/// replay fits into memory.
const OVERHEAD: f64 = 0.25;
/// Memory used in this process for each live block, in the ledger and elsewhere.
const BYTES_PER_BLOCK: u64 = 160;
/// Share of the remaining memory that a replay may use.
const SHARE_OF_MEMORY: f64 = 0.8;
/// Minimum gain from a change of the allocator. A smaller gain may be due to chance.
const LEAST_GAIN: f64 = 0.10;

/// Request for a replay.
#[derive(Clone, Debug)]
pub struct WhatIf {
    /// Additional allocators, as libraries.
    pub libraries: Vec<PathBuf>,
    /// Time limit for one replay.
    pub at_most: Duration,
    /// Limit on the resident bytes of a replay; `None` to use all available memory.
    pub max_memory: Option<u64>,
}

/// Replays a recording with its own allocator, then with others.
pub fn what_if(recording: &Recording, wanted: &WhatIf) -> Result<Comparison, Error> {
    recorded::check(recording)?;
    let (sums, lives) = recorded::survey(recording)?;
    recorded::check_sums(&sums)?;
    let resident_bytes = room(&sums, wanted.max_memory)?;
    let resident = recorded::resident(recording);
    let job = Job {
        recording,
        sums,
        plan: Plan {
            moments: Moments {
                times: truth::times(&resident),
                every: (sums.operations / POINTS).max(1),
            },
            lives,
        },
        replayer: Replayer::new()?,
        bounds: Bounds {
            resident_bytes,
            time: wanted.at_most,
        },
    };
    let used = recorded::allocator(recording, &variants::MODULES);
    let (same, mut others) = variants::all(used);
    others.extend(
        wanted
            .libraries
            .iter()
            .map(|path| Variant::of_library(path)),
    );
    let mut comparison = Comparison::of(recording, &sums);
    comparison.recorded_allocator = used
        .map_or("glibc", |module| module.trim_start_matches("lib"))
        .to_owned();
    let mut touch = Touch::Ends;
    match same {
        None => comparison.notes.push(format!(
            "{} is not on this machine, so nothing shows whether these replays are accurate",
            comparison.recorded_allocator
        )),
        Some(same) => {
            let checked = job.same(&same, &resident)?;
            touch = checked.touch;
            comparison.truth = checked.truth;
            comparison
                .rows
                .push(ReplayRow::of(&same, &checked.measured, true));
        }
    }
    comparison.touched = match touch {
        Touch::Ends => "ends",
        Touch::All => "all",
    };
    for variant in &others {
        let measured = job.replay(variant, touch)?;
        comparison
            .rows
            .push(ReplayRow::of(variant, &measured, false));
    }
    comparison.recommendation = recommendation(&comparison);
    Ok(comparison)
}

/// Returns the memory that a replay may use. Fails if it will need more.
fn room(sums: &Sums, wanted: Option<u64>) -> Result<u64, Error> {
    let level = CgroupMemory::of(std::process::id() as i32).tightest_of_all();
    let available = level.map_or(u64::MAX, |level| level.free);
    let of_available = (available as f64 * SHARE_OF_MEMORY) as u64;
    let room = wanted.map_or(of_available, |wanted| wanted.min(of_available));
    let blocks = sums.peak_live_bytes as f64 * (1.0 + OVERHEAD);
    let needed = (blocks as u64).saturating_add(u64::from(sums.slots) * BYTES_PER_BLOCK);
    if needed > room {
        return Err(Error::NoMemory {
            needed: bytes(needed),
            available: bytes(room),
        });
    }
    Ok(room)
}

struct Job<'a> {
    recording: &'a Recording,
    sums: Sums,
    plan: Plan,
    replayer: Replayer,
    bounds: Bounds,
}

/// Replay with the recorded allocator.
struct Checked {
    touch: Touch,
    truth: Option<Truth>,
    measured: Measured,
}

impl Job<'_> {
    fn replay(&self, variant: &Variant, touch: Touch) -> Result<Measured, Error> {
        let (sums, plan) = (&self.sums, &self.plan);
        self.replayer
            .replay(self.recording, sums, plan, variant, touch, self.bounds)
    }

    /// Replays the recorded allocator under both assumptions about how much of each block the
    /// program writes to, because the recording does not contain this information. Returns the
    /// assumption that comes closer to the recorded process, for use in all other replays.
    fn same(&self, variant: &Variant, resident: &[ResidentSample]) -> Result<Checked, Error> {
        let with = |touch| -> Result<Checked, Error> {
            let measured = self.replay(variant, touch)?;
            let truth = match measured.problem {
                None => truth::compare(resident, &measured.curve),
                Some(_) => None,
            };
            Ok(Checked {
                touch,
                truth,
                measured,
            })
        };
        let ends = with(Touch::Ends)?;
        let Some(truth) = ends.truth else {
            return Ok(ends);
        };
        // Writing to more pages makes more memory resident, which cannot help if there is too much
        // already.
        if truth.mean_error.max(truth.peak_error) > 0.0 {
            return Ok(ends);
        }
        let all = with(Touch::All)?;
        let is_closer = all.truth.is_some_and(|all| all.error() < truth.error());
        Ok(if is_closer { all } else { ends })
    }
}

/// Returns the allocator or setting that needs the least memory, if the current one needs clearly
/// more, and the replays are accurate.
fn recommendation(comparison: &Comparison) -> Option<Recommendation> {
    if !comparison.truth.is_some_and(|truth| truth.holds) {
        return None;
    }
    let now = comparison.rows.iter().find(|row| row.is_recorded)?;
    let done = comparison
        .rows
        .iter()
        .filter(|row| row.problem.is_none() && row.failed_calls == 0);
    let best = done.min_by_key(|row| row.mean_rss_bytes)?;
    let saved = now.mean_rss_bytes.checked_sub(best.mean_rss_bytes)?;
    let is_clear = saved as f64 >= now.mean_rss_bytes as f64 * LEAST_GAIN;
    (is_clear && !best.is_recorded && now.mean_rss_bytes > 0).then(|| Recommendation {
        allocator: best.allocator.clone(),
        settings: best.settings.clone(),
        library: best.library.clone(),
        mean_saved_bytes: saved,
        peak_saved_bytes: now.peak_rss_bytes as i64 - best.peak_rss_bytes as i64,
        allocator_ms_more: best.allocator_ms - now.allocator_ms,
    })
}
