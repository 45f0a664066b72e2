//! JSON, schema `memhook-rs/gate/1`.

use crate::{Outcome, Verdict, outcome};
use memhook_report::{Format, FormatOptions, Nature};
use serde::Serialize;
use std::io::{Result, Write};

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

/// The verdict, or those of several processes, as one line of JSON.
pub struct Json;

impl Format<[Verdict]> for Json {
    fn name(&self) -> &'static str {
        "json"
    }

    fn nature(&self) -> Nature {
        Nature::Json
    }

    fn write(&self, verdicts: &[Verdict], _: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        const SCHEMA: &str = "memhook-rs/gate/1";
        let document = |verdict| Document {
            schema: SCHEMA,
            headline: super::headline(verdict),
            verdict,
        };
        match verdicts {
            [verdict] => serde_json::to_writer(&mut *out, &document(verdict))?,
            _ => serde_json::to_writer(
                &mut *out,
                &Several {
                    schema: SCHEMA,
                    headline: super::headline_of_all(verdicts),
                    outcome: outcome(verdicts),
                    processes: verdicts.iter().map(document).collect(),
                },
            )?,
        }
        writeln!(out)
    }
}
