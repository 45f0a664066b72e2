//! JUnit XML: one test case for each leak or exceeded limit, or one passing case if there are none.

use super::{alike, frame_line, possible_sentence, programs, shared_sentence, stack_lines};
use crate::{Judgement, Outcome, Violation};
use memhook_report::{Format, FormatOptions};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use std::collections::HashSet;
use std::io::{Error, Result, Write};
use std::time::Duration;

/// A JUnit report with one suite.
pub struct Junit;

impl Format<Judgement> for Junit {
    fn name(&self) -> &'static str {
        "junit"
    }

    fn write(
        &self,
        verdicts: &Judgement,
        options: &FormatOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        let mut report = Report::new("memhook-rs gate");
        match &**verdicts {
            [verdict] => {
                report.add_test_suite(suite(&verdict.evidence.program, verdicts, options));
            }
            _ => {
                report.add_test_suite(suite("memhook-rs gate", verdicts, options));
            }
        }
        report.set_time(time(verdicts));
        report.serialize(out).map_err(Error::other)
    }
}

fn time(judged: &Judgement) -> Duration {
    judged.iter().map(|verdict| verdict.evidence.elapsed).sum()
}

/// Writes one case for each leak and each exceeded limit, regardless of how many processes have it,
/// and one case for each process that passed.
fn suite(name: &str, judged: &Judgement, options: &FormatOptions) -> TestSuite {
    let mut suite = TestSuite::new(name);
    suite.set_time(time(judged));
    // Readers add up the times of all cases, but all cases were judged in a single run.
    let mut elapsed = time(judged);
    let mut add = |name: &str, outcome: Outcome, message: &str, text: &str| {
        let mut status = match outcome {
            Outcome::Passed => TestCaseStatus::success(),
            Outcome::Failed => TestCaseStatus::non_success(NonSuccessKind::Failure),
            Outcome::Unsound => TestCaseStatus::non_success(NonSuccessKind::Error),
        };
        if outcome != Outcome::Passed {
            status.set_type("leak").set_message(message);
            status.set_description(text);
        }
        let mut case = TestCase::new(name, status);
        case.set_classname("memhook-rs gate");
        case.set_time(std::mem::take(&mut elapsed));
        suite.add_test_case(case);
    };
    let is_of_leaks =
        |v: &Violation| ["--fail-on leaked", "--fail-on leaked-blocks"].contains(&v.option);
    let is_several = judged.len() > 1;
    for leak in judged.leaks(|verdict| verdict.violations.iter().any(is_of_leaks)) {
        let noun = leak.verdict.evidence.subject.noun();
        let mut lines = stack_lines(leak.verdict, &leak.group, options);
        if is_several {
            lines.push(format!("in {}", programs(&leak.processes, options)));
        }
        let name = match leak.site().frames_to_blame().last() {
            Some(frame) => format!("{noun} in {}", frame.name()),
            None => noun.to_owned(),
        };
        let message = shared_sentence(&leak);
        add(&name, Outcome::Failed, &message, &lines.join("\n"));
    }
    let mut said = HashSet::new();
    for verdict in judged.iter() {
        for violation in verdict.violations.iter().filter(|v| !is_of_leaks(v)) {
            if said.insert((violation.option, &violation.text)) {
                let text = &violation.text;
                add(violation.option, Outcome::Failed, text, text);
            }
        }
    }
    let unsound = judged.iter().filter(|v| v.outcome == Outcome::Unsound);
    for (line, processes) in alike(unsound) {
        let text = match is_several {
            true => format!("{line}\nof {}", programs(&processes, options)),
            false => line.clone(),
        };
        add("leaks", Outcome::Unsound, &line, &text);
    }
    for verdict in judged.iter().filter(|v| v.outcome == Outcome::Passed) {
        let name = match is_several {
            true => verdict.evidence.program.as_str(),
            false => "leaks",
        };
        add(name, Outcome::Passed, "", "");
    }
    let mut possible = String::new();
    for verdict in judged.iter() {
        for leak in &verdict.evidence.possible {
            possible += &possible_sentence(verdict, leak);
            possible.push('\n');
            for frame in &verdict.evidence.sites[leak.site].stack {
                possible += &format!("  {}\n", frame_line(frame, options));
            }
        }
    }
    if !possible.is_empty() {
        suite.set_system_out(possible);
    }
    suite
}
