//! Output of an experiment in `target/papers`: each table as CSV, one Markdown page with all tables and their
//! conditions, and the plots.

use crate::line_chart::{Chart, Line, draw};
use memhook_measurements::{Alternated, Machine, Spread, differences, ratios};
use std::fmt::Write;
use std::io::Result;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A table.
pub struct Sheet {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Sheet {
    /// Creates a table without rows.
    pub fn new(title: &str, columns: &[&str]) -> Sheet {
        Sheet {
            title: title.to_owned(),
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "{}: {cells:?}", self.title);
        self.rows.push(cells);
    }

    fn csv(&self) -> String {
        let quoted = |cell: &String| match cell.contains([',', '"']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell.clone(),
        };
        let line = |cells: &Vec<String>| cells.iter().map(quoted).collect::<Vec<_>>().join(",");
        let lines = std::iter::once(&self.columns).chain(&self.rows).map(line);
        lines.collect::<Vec<_>>().join("\n") + "\n"
    }

    fn markdown(&self) -> String {
        let line = |cells: &Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = format!("## {}\n\n{}", self.title, line(&self.columns));
        text += &format!("|{}\n", "---|".repeat(self.columns.len()));
        text.extend(self.rows.iter().map(line));
        text
    }
}

/// Complete output of one experiment.
pub struct Sheets {
    folder: PathBuf,
    experiment: &'static str,
    began: String,
    load: String,
    since: Instant,
    text: String,
    count: usize,
}

impl Sheets {
    /// Starts the output with the date and the load of the machine.
    pub fn begin(folder: &Path, experiment: &'static str) -> Sheets {
        Sheets {
            folder: folder.to_owned(),
            experiment,
            began: date(),
            load: load(),
            since: Instant::now(),
            text: String::new(),
            count: 0,
        }
    }

    fn path(&self, suffix: &str) -> PathBuf {
        self.folder.join(format!("{}{suffix}", self.experiment))
    }

    /// Returns the path of a file of this experiment in the output folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Adds a table.
    pub fn add(&mut self, sheet: &Sheet) {
        self.count += 1;
        let suffix = match self.count {
            1 => ".csv".to_owned(),
            number => format!("-{number}.csv"),
        };
        let path = self.path(&suffix);
        self.text += &sheet.markdown();
        self.text += "\n";
        if let Err(error) = std::fs::write(&path, sheet.csv()) {
            self.say(&format!("{}: {error}", path.display()));
        }
    }

    /// Adds a sentence.
    pub fn say(&mut self, sentence: &str) {
        let _ = writeln!(self.text, "{sentence}\n");
    }

    /// Adds a program's output verbatim.
    pub fn quote(&mut self, text: &str) {
        let _ = writeln!(self.text, "```\n{}\n```\n", text.trim_end());
    }

    /// Adds a plot, named after the experiment.
    pub fn plot(&mut self, suffix: &str, chart: &Chart, lines: &[Line]) {
        let path = self.path(&format!("{suffix}.svg"));
        match draw(&path, chart, lines) {
            Ok(()) => self.say(&format!("![{}]({})", chart.title, name_of(&path))),
            Err(error) => self.say(&format!("{}: {error}", path.display())),
        }
    }

    /// Writes the page, and returns it.
    pub fn finish(self) -> Result<String> {
        let machine = Machine::here();
        let page = format!(
            "# {}\n\n{} UTC, `cargo experiment papers {}`, {:.0} s; load {} before, {} after; {} \
             processors ({}), Linux {}, {}.\n\n{}",
            self.experiment,
            self.began,
            self.experiment,
            self.since.elapsed().as_secs_f64(),
            self.load,
            load(),
            machine.processors,
            machine.processor,
            machine.kernel,
            machine.libc,
            self.text
        );
        std::fs::write(self.path(".md"), &page)?;
        Ok(page)
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn date() -> String {
    let output = std::process::Command::new("date")
        .args(["-u", "+%Y-%m-%d %H:%M"])
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_default()
}

/// Returns the load average of the last minute.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}

/// Effect of one tool on one workload over all rounds.
pub struct Effect {
    /// Nanoseconds without the tool.
    pub untraced: f64,
    /// Nanoseconds with the tool.
    pub traced: f64,
    /// Median difference in nanoseconds between a round with the tool and the round without a tool in the same cycle.
    pub added: f64,
    /// Median and quartiles of the ratio of these two rounds.
    pub ratio: Spread,
}

/// Returns the effect of the tool at index `tool` on the workload at index `work`, or the reason why the tool has no
/// figures.
pub fn effect(all: &Alternated, tool: usize, work: usize) -> std::result::Result<Effect, String> {
    let traced = &all.traced[tool];
    let ns = |rounds: &[memhook_measurements::Round]| -> Vec<f64> {
        rounds.iter().map(|round| round.figures[work].ns).collect()
    };
    let (without, with) = (ns(&all.untraced), ns(&traced.rounds));
    let why = || traced.failure.clone().unwrap_or("no rounds".to_owned());
    let ratio = ratios(&without, &with).ok_or_else(why)?;
    let median = |all: Vec<f64>| Spread::of(all).map_or(f64::NAN, |spread| spread.median);
    Ok(Effect {
        added: differences(&without, &with).map_or(f64::NAN, |spread| spread.median),
        ratio,
        untraced: median(without),
        traced: median(with),
    })
}

/// Formats a number with a sensible number of digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "-".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_in_both_forms() {
        let mut sheet = Sheet::new("Sizes", &["size", "ns"]);
        sheet.row(vec!["16 B, small".into(), number(12.345)]);
        assert_eq!(sheet.csv(), "size,ns\n\"16 B, small\",12.3\n");
        let table = "## Sizes\n\n| size | ns |\n|---|---|\n| 16 B, small | 12.3 |\n";
        assert_eq!(sheet.markdown(), table);
    }

    #[test]
    fn numbers_have_three_digits() {
        let all = [0.123, 1.234, 12.34, 123.4, f64::NAN].map(number);
        assert_eq!(all, ["0.12", "1.23", "12.3", "123", "-"]);
    }
}
