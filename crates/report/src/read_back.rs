//! Turns a JSON report back into a profile of its sites, complete enough for
//! [`diff`](crate::diff()).

use crate::named_run::is_cut;
use crate::{
    Amount, Measure, Measures, Profile, ProfileFrame, ProfileScores, ProfileSite, ReportModel,
    RunScores, Sampling, Scores, SiteScores, StackFrame, Target, UnseenTime,
};
use serde::Deserialize;

/// Reason why a report cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum ReadBackError {
    /// The text is not JSON, or not a report.
    #[error("not a report of memhook-rs: {0}")]
    NotAReport(serde_json::Error),
    /// The report has another schema.
    #[error("not a report of this version: its schema is {found:?}, not {wanted:?}")]
    Schema {
        /// Schema of the report.
        found: String,
        /// Schema that memhook-rs reads.
        wanted: &'static str,
    },
    /// The rows of the report are not sites.
    #[error("its rows are grouped by {by} and cannot be compared")]
    Rows {
        /// Kind of the report's rows.
        by: String,
    },
    /// The report has another measure.
    #[error("it counts {found}, not {wanted}")]
    Measure {
        /// Measure of the report.
        found: String,
        /// Measure to compare.
        wanted: &'static str,
    },
    /// The report does not list all sites.
    #[error(
        "it lists only the {listed} largest of {all} sites, so others would seem to come or go"
    )]
    Shortened {
        /// Number of listed sites.
        listed: u64,
        /// Number of all sites.
        all: u64,
    },
}

const SCHEMA: &str = ReportModel::SCHEMA;

#[derive(Deserialize)]
struct Schema {
    schema: String,
}

#[derive(Deserialize)]
struct Report {
    by: String,
    target: Target,
    attach: Attach,
    from_s: f64,
    elapsed_s: f64,
    #[serde(default)]
    gaps: Vec<UnseenTime>,
    sampling: Option<Sampling>,
    measured: Measured,
    scores: Option<RunScores>,
    sites: Vec<SiteRow>,
    more_rows: u64,
}

#[derive(Deserialize)]
struct Attach {
    depth: u32,
}

#[derive(Deserialize)]
struct Measured {
    measure: String,
}

#[derive(Deserialize)]
struct SiteRow {
    bytes: u64,
    blocks: u64,
    error_bytes: Option<u64>,
    kind: String,
    truncated: bool,
    stack: Vec<StackFrame>,
    scores: Option<Scores>,
}

/// Reads the output of `attach --json` or `report --format json`. If there are several reports,
/// reads the last complete one.
pub fn read_back(text: &[u8], measure: Measure) -> Result<Profile, ReadBackError> {
    let mut values =
        serde_json::Deserializer::from_slice(text).into_iter::<&serde_json::value::RawValue>();
    let first = values.next();
    let mut last = match first {
        Some(Ok(value)) => value,
        Some(Err(error)) => return Err(ReadBackError::NotAReport(error)),
        None => {
            return Err(ReadBackError::NotAReport(serde::de::Error::custom(
                "it is empty",
            )));
        }
    };
    // The last report may be cut off.
    for value in values.map_while(Result::ok) {
        last = value;
    }
    let Schema { schema } = serde_json::from_str(last.get()).map_err(ReadBackError::NotAReport)?;
    if schema != SCHEMA {
        return Err(ReadBackError::Schema {
            found: schema,
            wanted: SCHEMA,
        });
    }
    let report: Report = serde_json::from_str(last.get()).map_err(ReadBackError::NotAReport)?;
    if report.by != "site" {
        return Err(ReadBackError::Rows { by: report.by });
    }
    if report.measured.measure != measure.name() {
        return Err(ReadBackError::Measure {
            found: report.measured.measure,
            wanted: measure.name(),
        });
    }
    if report.more_rows > 0 {
        let listed = report.sites.len() as u64;
        return Err(ReadBackError::Shortened {
            listed,
            all: listed.saturating_add(report.more_rows),
        });
    }
    Ok(profile(report, measure))
}

fn profile(report: Report, measure: Measure) -> Profile {
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    let mut profile = Profile {
        target: report.target,
        from_ns: ns(report.from_s),
        to_ns: ns(report.elapsed_s),
        gaps: report.gaps,
        depth: report.attach.depth,
        sampling: report.sampling,
        scores: report.scores.map(|run| ProfileScores {
            run,
            ..ProfileScores::default()
        }),
        ..Profile::default()
    };
    let depth = report.attach.depth;
    profile.frames.push(ProfileFrame::cut_root());
    profile.cut_root = Some(0);
    for site in report.sites {
        let calls = site.stack.iter().filter(|frame| !frame.inlined).count();
        let is_cut = depth > 0 && is_cut(calls, site.truncated, depth, &site.stack);
        let first = profile.frames.len() as u32;
        let frames = site.stack.into_iter().map(|frame| {
            let digits = frame.address.trim_start_matches("0x");
            ProfileFrame {
                address: u64::from_str_radix(digits, 16).unwrap_or(0),
                module: None,
                frame,
            }
        });
        profile.frames.extend(frames);
        if let (Some(all), Some(scores)) = (&mut profile.scores, site.scores) {
            all.sites.push(SiteScores {
                stack: profile.stacks.len() as u32,
                scores,
                ..SiteScores::default()
            });
        }
        profile.sites.push(ProfileSite {
            stack: profile.stacks.len() as u32,
            kind: site.kind,
            truncated: site.truncated,
            measures: measures(
                measure,
                Amount {
                    blocks: site.blocks,
                    bytes: site.bytes,
                    variance: (site.error_bytes.unwrap_or(0) as f64).powi(2),
                    unhit: 0.0,
                },
            ),
            ..ProfileSite::default()
        });
        let frames = first..profile.frames.len() as u32;
        let root = profile.cut_root.filter(|_| is_cut);
        profile.stacks.push(frames.chain(root).collect());
    }
    profile
}

/// Returns all measures, but only one of them has values, because a report has only one measure.
fn measures(measure: Measure, amount: Amount) -> Measures {
    let mut measures = Measures::default();
    *match measure {
        Measure::Live => &mut measures.live,
        Measure::Peak => &mut measures.peak,
        Measure::Allocated => &mut measures.allocated,
        Measure::Released => &mut measures.released,
        Measure::Temporary => &mut measures.temporary,
        Measure::Unreachable => &mut measures.unreachable,
    } = amount;
    measures
}
