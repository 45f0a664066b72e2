//! Markdown for the summary of a job.

use super::{
    alike, amount, headline, headline_of_all, processes, programs, sentence, shared_sentence,
    stack_lines, the_rest,
};
use crate::{Judgement, Outcome, Subject, Verdict};
use memhook_foreign::visible;
use memhook_report::{Format, FormatOptions};
use std::io::{Result, Write};

/// The verdict, a table of sums, and collapsed leaks.
pub struct Markdown;

impl Format<Judgement> for Markdown {
    fn name(&self) -> &'static str {
        "markdown"
    }

    fn write(
        &self,
        verdicts: &Judgement,
        options: &FormatOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        out.write_all(markdown(verdicts, options).as_bytes())
    }
}

/// Writes the verdict, a table of sums, and at most `top` leaks, collapsed. With several processes,
/// counts the processes that pass, and shows common leaks once.
fn markdown(judged: &Judgement, options: &FormatOptions) -> String {
    let title = escape(&headline_of_all(judged));
    if let [verdict] = &**judged {
        return of_one(verdict, &title, options, "###");
    }
    let mut out = format!("### {title}\n\n");
    let (passed, others): (Vec<_>, Vec<_>) =
        judged.iter().partition(|v| v.outcome == Outcome::Passed);
    if judged.has_several_others() {
        for (line, alike) in alike(others.into_iter()) {
            let names = programs(&alike, options).replace('`', "'");
            let count = processes(alike.len());
            out += &format!("- {}: {count}: `{names}`\n", escape(&line));
        }
        let leaks = judged.leaks(|verdict| verdict.outcome != Outcome::Passed);
        for leak in leaks.iter().take(options.top) {
            let lines = stack_lines(leak.verdict, &leak.group, options);
            out += &folded(&shared_sentence(leak), &lines, " open");
        }
        if leaks.len() > options.top {
            out += &format!("\n... and {} more\n", leaks.len() - options.top);
        }
        out += "\n";
    } else {
        for verdict in others {
            out += &of_one(verdict, &escape(&headline(verdict)), options, "####");
            out += "\n";
        }
    }
    if !passed.is_empty() {
        let names = programs(&passed, options).replace('`', "'");
        out += &format!(
            "- {} of {} processes passed: `{names}`\n",
            passed.len(),
            judged.len()
        );
    }
    out
}

/// Writes a collapsed leak.
fn folded(sentence: &str, stack: &[String], open: &str) -> String {
    let stack = stack.join("\n");
    let title = escape(sentence);
    format!("\n<details{open}><summary>{title}</summary>\n\n````\n{stack}\n````\n\n</details>\n")
}

fn of_one(verdict: &Verdict, title: &str, options: &FormatOptions, level: &str) -> String {
    let evidence = &verdict.evidence;
    let mut out = format!("{level} {title}\n\n");
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
        out += &folded(&sentence(verdict, group), &lines, open);
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
