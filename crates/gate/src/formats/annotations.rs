//! Annotations of GitHub Actions: messages that the runner shows next to a source line (GitHub
//! docs, "Workflow commands for GitHub Actions").

use super::{alike, relative, shared_sentence, stack_lines};
use crate::{Judgement, Outcome};
use memhook_report::{Format, FormatOptions};
use std::collections::HashSet;
use std::io::{Result, Write};

/// One line for each leak, or for the verdict if there is no leak to show.
pub struct Annotations;

impl Format<Judgement> for Annotations {
    fn name(&self) -> &'static str {
        "github"
    }

    fn write(
        &self,
        verdicts: &Judgement,
        options: &FormatOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        let lines = annotations(verdicts, options);
        out.write_all(lines.as_bytes())
    }
}

/// Writes one line for each leak and exceeded limit, regardless of the number of processes that
/// have it.
fn annotations(judged: &Judgement, options: &FormatOptions) -> String {
    let root = &options.source_root;
    let mut out = String::new();
    for leak in judged.leaks(|verdict| verdict.outcome == Outcome::Failed) {
        let mut text = shared_sentence(&leak);
        for line in stack_lines(leak.verdict, &leak.group, options) {
            text += &format!("\n{line}");
        }
        let place = leak.site().culprit(root).map_or(String::new(), |frame| {
            let file = property(relative(frame.file.as_deref().unwrap_or_default(), root));
            format!("file={file},line={},", frame.line.unwrap_or(1))
        });
        out += &format!("::error {place}title=Memory leak::{}\n", data(&text));
    }
    let mut said = HashSet::new();
    let violations = judged.iter().flat_map(|verdict| &verdict.violations);
    for violation in violations.filter(|v| !v.option.starts_with("--fail-on leaked")) {
        if said.insert(&violation.text) {
            out += &format!("::error title=Memory limit::{}\n", data(&violation.text));
        }
    }
    let unsound = judged.iter().filter(|v| v.outcome == Outcome::Unsound);
    for (line, processes) in alike(unsound) {
        let of = match processes.len() {
            1 => String::new(),
            several => format!(" ({several} processes)"),
        };
        out += &format!("::error title=Leak gate::{}\n", data(&(line + &of)));
    }
    out
}

/// Escapes text as the runner's own toolkit does (actions/toolkit, command.ts).
fn data(text: &str) -> String {
    let text = text.replace('%', "%25");
    text.replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
