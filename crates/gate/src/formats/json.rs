//! JSON, schema `memhook-rs/gate/1`.

use crate::{Outcome, Verdict, outcome};
use serde::Serialize;

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    headline: String,
    #[serde(flatten)]
    verdict: &'a Verdict,
}

#[derive(Serialize)]
struct Several<'a> {
    schema: &'static str,
    headline: String,
    outcome: Outcome,
    processes: Vec<Document<'a>>,
}

/// One line of JSON, without the line end: the verdict, or those of several processes.
pub fn json(verdicts: &[Verdict]) -> String {
    const SCHEMA: &str = "memhook-rs/gate/1";
    let document = |verdict| Document {
        schema: SCHEMA,
        headline: super::headline(verdict),
        verdict,
    };
    let text = match verdicts {
        [verdict] => serde_json::to_string(&document(verdict)),
        _ => serde_json::to_string(&Several {
            schema: SCHEMA,
            headline: super::headline_of_all(verdicts),
            outcome: outcome(verdicts),
            processes: verdicts.iter().map(document).collect(),
        }),
    };
    text.unwrap_or_default()
}
