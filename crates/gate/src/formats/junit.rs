//! JUnit XML: one test case a leak or exceeded limit; one that passes if there is none.

use super::{NO_STACK, frame_line, headline, sentence};
use crate::{Outcome, Verdict};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

/// The verdicts as a JUnit report, a suite for each process.
pub fn junit(verdicts: &[Verdict]) -> String {
    let mut report = Report::new("memhook-rs gate");
    report.add_test_suites(verdicts.iter().map(suite));
    report.to_string().unwrap_or_default()
}

fn suite(verdict: &Verdict) -> TestSuite {
    let mut suite = TestSuite::new(verdict.evidence.program.as_str());
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
        suite.add_test_case(case);
    };
    let noun = verdict.evidence.subject.noun();
    let of_leaks = ["--max-leaked", "--max-leaked-blocks"];
    let is_of_leaks = |option: &str| of_leaks.contains(&option);
    if verdict.violations.iter().any(|v| is_of_leaks(v.option)) {
        for finding in verdict.counted() {
            let site = &verdict.evidence.sites[finding.leak.site];
            let lines: Vec<String> = site.stack.iter().map(frame_line).collect();
            let text = match lines.is_empty() {
                true => NO_STACK.to_owned(),
                false => lines.join("\n"),
            };
            let name = match site.stack.first() {
                Some(frame) => format!("{noun} in {}", frame.name()),
                None => noun.to_owned(),
            };
            add(&name, Outcome::Failed, &sentence(verdict, finding), &text);
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
    suite
}
