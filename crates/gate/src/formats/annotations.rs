//! Annotations of GitHub Actions: lines that its runner shows at the source line (GitHub docs,
//! "Workflow commands for GitHub Actions").

use super::{headline, relative, sentence, site_of, stack_lines};
use crate::{Outcome, Verdict};
use memhook_report::{Format, FormatOptions};
use std::io::{Result, Write};

/// One line for each leak, or for the verdict where there is no leak to show.
pub struct Annotations;

impl Format<[Verdict]> for Annotations {
    fn name(&self) -> &'static str {
        "github"
    }

    fn write(
        &self,
        verdicts: &[Verdict],
        options: &FormatOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        let mut lines = verdicts.iter().map(|verdict| of_one(verdict, options));
        lines.try_for_each(|lines| out.write_all(lines.as_bytes()))
    }
}

fn of_one(verdict: &Verdict, options: &FormatOptions) -> String {
    let root = &options.source_root;
    let mut out = String::new();
    if verdict.outcome == Outcome::Failed {
        for group in verdict.counted() {
            let site = site_of(verdict, &group);
            let mut text = sentence(verdict, &group);
            for line in stack_lines(verdict, &group, options) {
                text += &format!("\n{line}");
            }
            let place = site.culprit(root).map_or(String::new(), |frame| {
                let file = property(relative(frame.file.as_deref().unwrap_or_default(), root));
                format!("file={file},line={},", frame.line.unwrap_or(1))
            });
            out += &format!("::error {place}title=Memory leak::{}\n", data(&text));
        }
    }
    let others = verdict.violations.iter();
    for violation in others.filter(|v| !v.option.starts_with("--max-leaked")) {
        out += &format!("::error title=Memory limit::{}\n", data(&violation.text));
    }
    if verdict.outcome == Outcome::Unsound {
        out += &format!("::error title=Leak gate::{}\n", data(&headline(verdict)));
    }
    out
}

/// Escapes as the runner's own toolkit does (actions/toolkit, command.ts).
fn data(text: &str) -> String {
    let text = text.replace('%', "%25");
    text.replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
