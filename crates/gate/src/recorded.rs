//! Turns a recording into evidence of everything except reachability.

use crate::gather::{growth_evidence, live_evidence};
use crate::names::NameSource;
use crate::survivors::{MOMENTS, Survivors};
use crate::{Ending, Evidence, Sum};
use memhook_ledger::{Ledger, LedgerOptions};
use memhook_recording::{Error, Recording, RecordingEnd, ScoreOptions};
use memhook_report::claims::{Seen, unseen_releases};
use memhook_report::{RunScores, counted};
use memhook_stream::Gap;
use std::time::Duration;

/// Part of a recording to examine, and the kinds of findings.
pub struct RecordedOptions {
    /// Start and end of the examined part of the run, since the attach.
    pub stretch: (Duration, Duration),
    /// Confidence of a verdict on growth; `None` if live blocks instead of growth are judged.
    pub growth_confidence: Option<f64>,
    /// True if live blocks by site are findings, because there is a baseline to compare with or to
    /// write.
    pub are_sites_findings: bool,
    /// True if there are limits on single sites, so that every live block's backtrace matters.
    pub needs_all_sites: bool,
    /// Options for scores, if these are limited.
    pub scores: Option<ScoreOptions>,
}

/// Returns the evidence in a recording.
///
/// # Errors
/// Fails if the recording is damaged.
pub fn recorded_evidence(
    recording: &Recording,
    source: NameSource<'_>,
    options: &RecordedOptions,
) -> Result<Evidence, Error> {
    let (from, to) = options.stretch;
    let pause = to.saturating_sub(from) / MOMENTS;
    let mut survivors = Survivors::default();
    let (mut next, mut end) = (from, None);
    let is_cut = to < recorded_time(recording);
    let mut watch = |replay: &memhook_recording::Replay| {
        let now = Duration::from_nanos(replay.now_ns());
        // Several moments may be counted together if nothing happened between them.
        while options.growth_confidence.is_some() && next <= now.min(to) {
            survivors.count(replay.ledger(), next, pause);
            next += pause.max(Duration::from_millis(1));
        }
        if now >= to && end.is_none() && is_cut {
            end = Some((replay.totals(), live(replay.ledger())));
        }
    };
    let ledger_options = LedgerOptions {
        track_release_stacks: false,
        ignore_unknown_releases: false,
        ..LedgerOptions::default()
    };
    let replay = recording.replay_with(ledger_options, &mut watch)?;
    let (totals, live) = end.unwrap_or_else(|| (replay.totals(), live(replay.ledger())));
    let mut evidence = match options.growth_confidence {
        Some(confidence) => {
            let verdicts = survivors.verdicts(confidence);
            let mut evidence = growth_evidence(source, &totals, &verdicts.grown);
            survivors.complete(&mut evidence);
            evidence.gaps.extend(verdicts.unclear);
            evidence
        }
        None => {
            let with_sites = options.are_sites_findings || options.needs_all_sites;
            let stacks = if with_sites { live.as_slice() } else { &[] };
            let names = source.look_up(stacks.iter().map(|s| s.0));
            live_evidence(names, &totals, stacks, options.are_sites_findings)
        }
    };
    evidence.ending = Ending::Recorded;
    evidence.elapsed = to.saturating_sub(from);
    evidence.gaps.extend(gaps(recording));
    let until_ns = u64::try_from(to.as_nanos()).unwrap_or(u64::MAX);
    let unseen: Vec<Gap> = Gap::within(recording.gaps(), 0, until_ns).collect();
    evidence.note_missed(recording.losses(), &unseen);
    let without = "a recording does not show what is reachable, so leaks are not searched for";
    evidence.notes.push(without.into());
    if let Some(options) = &options.scores {
        let stretch = is_cut.then_some((from, to));
        score_evidence(recording, stretch, options, &mut evidence)?;
    }
    if totals.unknown_releases > 0 {
        let causes = unseen_releases(Seen::of_recording(recording)).sentence;
        evidence.notes.push(format!(
            "{} of blocks that are not in the recording are not counted: {causes}",
            counted(totals.unknown_releases, "release")
        ));
    }
    Ok(evidence)
}

/// Adds the scores of a recording, or of a part of it, to the evidence.
///
/// # Errors
/// Fails if the recording is damaged, or does not contain every allocation.
pub fn score_evidence(
    recording: &Recording,
    stretch: Option<(Duration, Duration)>,
    options: &ScoreOptions,
    evidence: &mut Evidence,
) -> Result<(), Error> {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let (from, to) = stretch.map(|(from, to)| (ns(from), ns(to))).unzip();
    let activity = recording.scored_activity(from, to, 1, Some(options))?;
    let scores = activity.scored.as_ref().map(RunScores::of);
    if let Some(run) = &scores
        && let Some(lifetime) = run.scores.lifetime
    {
        let note = format!(
            "lifetime score {lifetime:.3}, of {}",
            counted(run.sites, "site")
        );
        evidence.notes.push(note);
    }
    if let Some(run) = &scores
        && let Some(usage) = run.scores.usage
    {
        let (known, sites) = (run.accessed_sites, counted(run.sites, "site"));
        let note = format!("usage score {usage:.3}, known of {known} of {sites}");
        evidence.notes.push(note);
    }
    evidence.scores = scores;
    Ok(())
}

/// Returns the duration of a recording.
pub fn recorded_time(recording: &Recording) -> Duration {
    Duration::from_nanos(recording.span_ns().1)
}

/// Returns the live blocks by backtrace.
fn live(ledger: &Ledger) -> Vec<(u32, Sum)> {
    let sites = ledger.live_by(None).into_iter();
    let sum = |blocks, bytes| Sum { blocks, bytes };
    sites.map(|s| (s.stack, sum(s.blocks, s.bytes))).collect()
}

/// Returns the gaps of a recording.
fn gaps(recording: &Recording) -> Vec<String> {
    let mut gaps = Vec::new();
    match recording.end() {
        Some(RecordingEnd::Finished) => {}
        Some(end) => gaps.push(format!("the recording is not the whole run: {end}")),
        None => gaps.push("the end of the recording is missing".into()),
    }
    if recording.part() > 0 {
        gaps.push("parts of the recording before this one are missing".into());
    }
    gaps
}
