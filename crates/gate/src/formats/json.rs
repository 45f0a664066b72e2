//! JSON, schema `memhook-rs/gate/1`.

use crate::{Judgement, NotJudged, Outcome, Verdict, outcome};
use memhook_report::{Format, FormatOptions, Nature};
use serde::Serialize;
use std::io::{Result, Write};

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    headline: String,
    /// Unjudged processes, in the document of a single verdict. With several verdicts, they are at
    /// the top level of the document.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    not_judged: &'a [NotJudged],
    #[serde(flatten)]
    verdict: &'a Verdict,
}

#[derive(Serialize)]
struct Several<'a> {
    schema: &'static str,
    headline: String,
    outcome: Outcome,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    not_judged: &'a [NotJudged],
    processes: Vec<Document<'a>>,
}

/// Verdicts as one line of JSON.
pub struct Json;

impl Format<Judgement> for Json {
    fn name(&self) -> &'static str {
        "json"
    }

    fn nature(&self) -> Nature {
        Nature::Json
    }

    fn write(&self, judged: &Judgement, _: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        const SCHEMA: &str = "memhook-rs/gate/1";
        let document = |verdict| Document {
            schema: SCHEMA,
            headline: super::headline(verdict),
            not_judged: &[],
            verdict,
        };
        match &**judged {
            [verdict] => serde_json::to_writer(
                &mut *out,
                &Document {
                    headline: super::headline_of_all(judged),
                    not_judged: &judged.not_judged,
                    ..document(verdict)
                },
            )?,
            several => serde_json::to_writer(
                &mut *out,
                &Several {
                    schema: SCHEMA,
                    headline: super::headline_of_all(judged),
                    outcome: outcome(several),
                    not_judged: &judged.not_judged,
                    processes: several.iter().map(document).collect(),
                },
            )?,
        }
        writeln!(out)
    }
}
