//! JUnit XML: one test case a leak or exceeded limit; one that passes if there is none.

use super::{NO_STACK, frame_line, headline, possible_sentence, sentence, site_of, stack_lines};
use crate::{Outcome, Verdict};
use memhook_report::{Format, FormatOptions};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use std::io::{Error, Result, Write};

/// A JUnit report with a suite for each process.
pub struct Junit;

impl Format<[Verdict]> for Junit {
    fn name(&self) -> &'static str {
        "junit"
    }

    fn write(
        &self,
        verdicts: &[Verdict],
        options: &FormatOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        let mut report = Report::new("memhook-rs gate");
        report.add_test_suites(verdicts.iter().map(|verdict| suite(verdict, options)));
        report.set_time(verdicts.iter().map(|v| v.evidence.elapsed).sum());
        report.serialize(out).map_err(Error::other)
    }
}

fn suite(verdict: &Verdict, options: &FormatOptions) -> TestSuite {
    let mut suite = TestSuite::new(verdict.evidence.program.as_str());
    suite.set_time(verdict.evidence.elapsed);
    // Readers add up the cases, which were all judged in the same time.
    let mut elapsed = verdict.evidence.elapsed;
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
    let noun = verdict.evidence.subject.noun();
    let of_leaks = ["--max-leaked", "--max-leaked-blocks"];
    let is_of_leaks = |option: &str| of_leaks.contains(&option);
    if verdict.violations.iter().any(|v| is_of_leaks(v.option)) {
        for group in verdict.counted() {
            let site = site_of(verdict, &group);
            let lines = stack_lines(verdict, &group, options);
            let text = if lines.is_empty() {
                NO_STACK.to_owned()
            } else {
                lines.join("\n")
            };
            let name = match site.frames_to_blame().last() {
                Some(frame) => format!("{noun} in {}", frame.name()),
                None => noun.to_owned(),
            };
            add(&name, Outcome::Failed, &sentence(verdict, &group), &text);
        }
    }
    for violation in &verdict.violations {
        if !is_of_leaks(violation.option) {
            add(
                violation.option,
                Outcome::Failed,
                &violation.text,
                &violation.text,
            );
        }
    }
    if verdict.violations.is_empty() {
        let line = headline(verdict);
        add("leaks", verdict.outcome, &line, &line);
    }
    let mut possible = String::new();
    for leak in &verdict.evidence.possible {
        possible += &possible_sentence(verdict, leak);
        possible.push('\n');
        for frame in &verdict.evidence.sites[leak.site].stack {
            possible += &format!("  {}\n", frame_line(frame, options));
        }
    }
    if !possible.is_empty() {
        suite.set_system_out(possible);
    }
    suite
}
