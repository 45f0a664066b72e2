//! Comparison of the tools' results for one test, and the table of projects.

use super::tools::{Leaked, Outcome, PLANTED_IN, Runner, Tool};
use std::time::Duration;

/// Results of the tools for one test.
pub struct Compared {
    alone: Outcome,
    gate: Outcome,
    lsan: Outcome,
    memcheck: Outcome,
    /// Results with the planted leak, in the same order.
    planted: [Outcome; 3],
    /// Median times without a tool and under the gate.
    times: [Duration; 2],
}

impl Compared {
    /// Runs the test under each tool. For the times, runs it `runs` times without a tool and `runs` times under the
    /// gate.
    pub fn of(runner: &Runner<'_>, test: &str, runs: usize) -> Result<Compared, String> {
        let run = |tool, with_leak| runner.run(test, tool, with_leak);
        let mut times = [Vec::new(), Vec::new()];
        let (mut alone, mut gate) = (run(Tool::None, false)?, run(Tool::Gate, false)?);
        for _ in 0..runs {
            // The runs alternate, so that load on the machine affects both.
            alone = run(Tool::None, false)?;
            gate = run(Tool::Gate, false)?;
            times[0].push(alone.time);
            times[1].push(gate.time);
        }
        Ok(Compared {
            alone,
            gate,
            lsan: run(Tool::Lsan, false)?,
            memcheck: run(Tool::Memcheck, false)?,
            planted: [
                run(Tool::Gate, true)?,
                run(Tool::Lsan, true)?,
                run(Tool::Memcheck, true)?,
            ],
            times: times.map(median),
        })
    }

    /// Returns all differences between the gate and the other tools, and all disturbances of the test.
    pub fn disagreements(&self, project: &str, test: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut note = |text: String| found.push(format!("{project}: `{test}`: {text}"));
        let code = |outcome: &Outcome| outcome.status.code();
        let leaks = self
            .gate
            .leaked
            .as_ref()
            .is_ok_and(|leaked| leaked.blocks > 0);
        let own = code(&self.alone);
        let expected = match (own, &self.gate.leaked) {
            (Some(0), Err(_)) => Some(3),
            (Some(0), Ok(_)) => Some(i32::from(leaks)),
            _ => own,
        };
        if code(&self.gate) != expected && own.is_some() {
            note(format!(
                "{} under the gate, {} without",
                self.gate.status, self.alone.status
            ));
        }
        let others = [("LeakSanitizer", &self.lsan), ("memcheck", &self.memcheck)];
        for (name, other) in others {
            if self.gate.leaked != other.leaked {
                note(differ("", &self.gate, name, other));
            }
        }
        let [gate, lsan, memcheck] = &self.planted;
        let wanted = self.gate.leaked.clone().map(Leaked::with_planted);
        if gate.leaked != wanted {
            note(format!("planted: the gate {}", said(gate)));
        }
        for (name, other) in [("LeakSanitizer", lsan), ("memcheck", memcheck)] {
            if gate.leaked != other.leaked {
                note(differ("planted: ", gate, name, other));
            }
        }
        if !gate.blamed.iter().any(|function| function == PLANTED_IN) {
            note(format!("planted: blamed are {}", gate.blamed.join(", ")));
        }
        for function in &self.gate.blamed {
            if !self.memcheck.blamed.contains(function) {
                note(format!("only the gate blames {function}"));
            }
        }
        if self.gate.has_unknown_caller {
            note("the gate blames nobody for a leak".to_owned());
        }
        let [alone, gate] = self.times;
        if gate > self.memcheck.time.max(alone) {
            note("the gate takes longer than memcheck".to_owned());
        }
        found
    }
}

fn differ(what: &str, gate: &Outcome, name: &str, other: &Outcome) -> String {
    format!("{what}the gate {}, {name} {}", said(gate), said(other))
}

fn said(outcome: &Outcome) -> String {
    match &outcome.leaked {
        Ok(leaked) => format!("finds {} bytes in {} blocks", leaked.bytes, leaked.blocks),
        Err(why) => format!("has no verdict ({why})"),
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Results of one tool for all tests of a project.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    unknown: usize,
    leaked: Leaked,
}

impl Tally {
    fn add(&mut self, leaked: &Result<Leaked, String>) {
        match leaked {
            Ok(leaked) if leaked.blocks == 0 => self.passed += 1,
            Ok(leaked) => {
                self.failed += 1;
                self.leaked.blocks += leaked.blocks;
                self.leaked.bytes += leaked.bytes;
            }
            Err(_) => self.unknown += 1,
        }
    }

    fn cell(&self) -> String {
        let mut cell = Vec::new();
        if self.passed > 0 {
            cell.push(format!("{} pass", self.passed));
        }
        if self.failed > 0 {
            let Leaked { blocks, bytes } = self.leaked;
            cell.push(format!("{} leak {bytes} B in {blocks}", self.failed));
        }
        if self.unknown > 0 {
            cell.push(format!("{} without a verdict", self.unknown));
        }
        cell.join(", ")
    }
}

/// Row of a project.
pub struct Row {
    name: &'static str,
    gate: Tally,
    lsan: Tally,
    memcheck: Tally,
    tests: usize,
    /// Number of tests for which the gate, LeakSanitizer and memcheck each report the exact size of the planted leak.
    planted: [usize; 3],
    /// Total times without a tool, under the gate, and under memcheck.
    times: [Duration; 3],
}

impl Row {
    pub fn new(name: &'static str) -> Row {
        Row {
            name,
            gate: Tally::default(),
            lsan: Tally::default(),
            memcheck: Tally::default(),
            tests: 0,
            planted: [0; 3],
            times: [Duration::ZERO; 3],
        }
    }

    pub fn add(&mut self, test: &Compared) {
        self.tests += 1;
        self.gate.add(&test.gate.leaked);
        self.lsan.add(&test.lsan.leaked);
        self.memcheck.add(&test.memcheck.leaked);
        let clean = [&test.gate, &test.lsan, &test.memcheck];
        for ((found, clean), planted) in self.planted.iter_mut().zip(clean).zip(&test.planted) {
            let wanted = clean.leaked.clone().map(Leaked::with_planted);
            *found += usize::from(wanted.is_ok() && planted.leaked == wanted);
        }
        let [alone, gate] = test.times;
        for (sum, time) in self.times.iter_mut().zip([alone, gate, test.memcheck.time]) {
            *sum += time;
        }
    }

    pub fn cells(&self) -> String {
        let [alone, gate, memcheck] = self.times.map(|time| time.as_secs_f64());
        let added = (gate - alone) * 1e3 / self.tests.max(1) as f64;
        let planted = self.planted.map(|found| found.to_string()).join("/");
        format!(
            "| {} | {} | {} | {} | {} | {planted} | {:.0} ms | {:.2} (+ {added:.0} ms a test) | {:.1} |",
            self.name,
            self.tests,
            self.gate.cell(),
            self.lsan.cell(),
            self.memcheck.cell(),
            alone * 1e3,
            gate / alone,
            memcheck / alone,
        )
    }
}

/// Returns the table in Markdown.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "| project | tests | gate | LeakSanitizer | memcheck | planted leak found by the three | alone | gate: times | \
         memcheck: times |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        out += &row.cells();
        out.push('\n');
    }
    out
}
