//! Markdown for the summary of a job.

use super::{NO_STACK, amount, headline, headline_of_all, sentence, stack_lines, the_rest};
use crate::{Outcome, Subject, Verdict};
use memhook_foreign::visible;
use memhook_report::{Format, FormatOptions};
use std::io::{Result, Write};

/// The verdict, a table of sums, and leaks, folded.
pub struct Markdown;

impl Format<[Verdict]> for Markdown {
    fn name(&self) -> &'static str {
        "markdown"
    }

    fn write(
        &self,
        verdicts: &[Verdict],
        options: &FormatOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        out.write_all(markdown(verdicts, options).as_bytes())
    }
}

/// The verdict, a table of sums, and at most `top` leaks, folded. Of several processes, those that pass are only
/// listed.
fn markdown(verdicts: &[Verdict], options: &FormatOptions) -> String {
    if let [verdict] = verdicts {
        return of_one(verdict, options, "###");
    }
    let mut out = format!("### {}\n\n", escape(&headline_of_all(verdicts)));
    let (passed, others): (Vec<_>, Vec<_>) =
        verdicts.iter().partition(|v| v.outcome == Outcome::Passed);
    for verdict in others {
        out += &of_one(verdict, options, "####");
        out += "\n";
    }
    for verdict in passed {
        let program = visible(&verdict.evidence.program).replace('`', "'");
        out += &format!("- {}: `{program}`\n", escape(&headline(verdict)));
    }
    out
}

fn of_one(verdict: &Verdict, options: &FormatOptions, level: &str) -> String {
    let evidence = &verdict.evidence;
    let mut out = format!("{level} {}\n\n", escape(&headline(verdict)));
    out += &format!(
        "`{}` {}\n\n",
        visible(&evidence.program).replace('`', "'"),
        evidence.ending
    );
    out += "| | |\n|---|---|\n";
    let mut row = |name: &str, text: String| out += &format!("| {name} | {text} |\n");
    row(
        match evidence.subject {
            Subject::Leaks => "leaked",
            Subject::Growth => "grown",
            Subject::Live => "more than allowed",
        },
        amount(verdict.leaked),
    );
    if verdict.suppressed.blocks > 0 {
        row("suppressed", amount(verdict.suppressed));
    }
    if verdict.known.blocks > 0 {
        row("in the baseline", amount(verdict.known));
    }
    row(the_rest(verdict), amount(evidence.reachable));
    for gap in &evidence.gaps {
        row("not seen", escape(gap));
    }
    let leaks = verdict.counted();
    let open = if verdict.outcome == Outcome::Failed {
        " open"
    } else {
        ""
    };
    for group in leaks.iter().take(options.top) {
        let lines = stack_lines(verdict, group, options);
        let stack = if lines.is_empty() {
            NO_STACK.to_owned()
        } else {
            lines.join("\n")
        };
        let title = escape(&sentence(verdict, group));
        out += &format!("\n<details{open}><summary>{title}</summary>\n\n");
        out += &format!("````\n{stack}\n````\n\n</details>\n");
    }
    if leaks.len() > options.top {
        out += &format!("\n... and {} more\n", leaks.len() - options.top);
    }
    out
}

fn escape(text: &str) -> String {
    let text = visible(text).replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('|', "\\|")
}
