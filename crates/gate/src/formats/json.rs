//! JSON, schema `memhook-rs/gate/1`.

use crate::Verdict;
use serde::Serialize;

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    headline: String,
    #[serde(flatten)]
    verdict: &'a Verdict,
}

/// The verdict as one line of JSON, without the line end.
pub fn json(verdict: &Verdict) -> String {
    let document = Document {
        schema: "memhook-rs/gate/1",
        headline: super::headline(verdict),
        verdict,
    };
    serde_json::to_string(&document).unwrap_or_default()
}
