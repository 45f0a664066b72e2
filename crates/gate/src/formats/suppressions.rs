//! Suppressions for what was found, to start a file from.

use super::sentence;
use crate::Verdict;
use memhook_report::{Format, FormatOptions};
use std::io::{Result, Write};

/// A `leak:` line for each leak that counts.
pub struct SuppressionFile;

impl Format<[Verdict]> for SuppressionFile {
    fn name(&self) -> &'static str {
        "suppressions"
    }

    fn write(&self, verdicts: &[Verdict], _: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        out.write_all(suppressions(verdicts).as_bytes())
    }
}

/// A `leak:` line for each leak that counts, by its innermost named function; those without a name
/// are left out.
fn suppressions(verdicts: &[Verdict]) -> String {
    let mut out = String::new();
    let of_one = |verdict| Verdict::counted(verdict).map(move |finding| (verdict, finding));
    for (verdict, finding) in verdicts.iter().flat_map(of_one) {
        let site = &verdict.evidence.sites[finding.leak.site];
        let frame = site
            .stack
            .iter()
            .find(|f| f.function.is_some() && !f.inlined)
            .or_else(|| site.stack.iter().find(|f| f.module.is_some()));
        let Some(frame) = frame else { continue };
        let pattern = match &frame.function {
            Some(function) => format!("^{function}$"),
            None => frame.module_name().unwrap_or_default().to_owned(),
        };
        let line = format!("leak:{pattern}\n");
        if !out.contains(&line) {
            out += &format!("# {}\n{line}", sentence(verdict, finding));
        }
    }
    out
}
