//! SARIF 2.1.0 (OASIS), as code scanning services take it.

use super::{frame_line, headline, other_ways, possible_sentence, relative, sentence, site_of};
use crate::evidence::SourceFrame;
use crate::{AllocationSite, Outcome, Verdict};
use memhook_report::{Format, FormatOptions, Nature};
use serde_json::{Value, json};
use std::io::{Result, Write};

/// A SARIF log; source paths below the source root become relative.
pub struct Sarif;

impl Format<[Verdict]> for Sarif {
    fn name(&self) -> &'static str {
        "sarif"
    }

    fn nature(&self) -> Nature {
        Nature::Json
    }

    fn write(
        &self,
        verdicts: &[Verdict],
        options: &FormatOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        let root = &options.source_root;
        let results: Vec<Value> = verdicts.iter().flat_map(|v| results(v, root)).collect();
        let rule = |id: &str, text: &str| json!({ "id": id, "shortDescription": { "text": text } });
        let log = json!({
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{
                "tool": { "driver": {
                    "name": "memhook-rs",
                    "version": env!("CARGO_PKG_VERSION"),
                    "rules": [
                        rule("memory-leak", "Memory that nothing points to any more"),
                        rule("memory-limit", "More memory than a limit allows"),
                        rule("memory-possibly-lost", "Memory that only pointers into it reach"),
                    ],
                }},
                "results": results,
            }],
        });
        serde_json::to_writer_pretty(&mut *out, &log)?;
        writeln!(out)
    }
}

fn results(verdict: &Verdict, root: &str) -> Vec<Value> {
    let mut results: Vec<Value> = verdict
        .counted()
        .iter()
        .map(|group| {
            let site = site_of(verdict, group);
            let mut lines: Vec<String> = site.stack.iter().map(frame_line).collect();
            if group.0.len() > 1 {
                lines.push(format!("... and {}", other_ways(verdict, group)));
            }
            let text = format!("{}\n{}", sentence(verdict, group), lines.join("\n"));
            of_site("memory-leak", "error", &text, site, root)
        })
        .collect();
    results.extend(verdict.evidence.possible.iter().map(|leak| {
        let site = &verdict.evidence.sites[leak.site];
        let text = possible_sentence(verdict, leak);
        of_site("memory-possibly-lost", "note", &text, site, root)
    }));
    if verdict.outcome == Outcome::Failed && verdict.counted().is_empty() {
        results.push(json!({
            "ruleId": "memory-limit",
            "level": "error",
            "message": { "text": headline(verdict) },
        }));
    }
    results
}

/// A result about blocks that one site has allocated.
fn of_site(rule: &str, level: &str, text: &str, site: &AllocationSite, root: &str) -> Value {
    let location = site.culprit(root).map(|frame| location(frame, root));
    let frames: Vec<Value> = site
        .stack
        .iter()
        .map(|frame| json!({ "location": location_or_name(frame, root) }))
        .collect();
    json!({
        "ruleId": rule,
        "level": level,
        "message": { "text": text },
        "locations": location.into_iter().collect::<Vec<_>>(),
        "stacks": [{ "message": { "text": "allocated here" }, "frames": frames }],
        "partialFingerprints": { "site/v2": fingerprint(&site.identity_by(&site.leak_key().1)) },
    })
}

fn location(frame: &SourceFrame, root: &str) -> Value {
    let file = frame.file.as_deref().unwrap_or_default();
    json!({ "physicalLocation": {
        "artifactLocation": { "uri": relative(file, root) },
        "region": { "startLine": frame.line.unwrap_or(1).max(1) },
    }})
}

fn location_or_name(frame: &SourceFrame, root: &str) -> Value {
    let mut value = match frame.file {
        Some(_) => location(frame, root),
        None => json!({}),
    };
    value["message"] = json!({ "text": frame.name() });
    value
}

/// A number that a site has in every build: FNV-1a, 64 bits.
fn fingerprint(identity: &[String]) -> String {
    let bytes = identity.iter().flat_map(|name| name.bytes().chain([0]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}
