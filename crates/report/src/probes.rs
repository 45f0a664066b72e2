//! Counts of probes: rows by function, as text and as JSON.

use crate::units::{count, counted};
use crate::{Document, StackRow, Style, frame_name};
use memhook_foreign::visible;
use serde::Serialize;
use std::fmt::Write;

/// Number of rows that the text report shows by default.
const SHOWN_ROWS: usize = 40;
/// Number of threads per row that the text report shows by default.
const SHOWN_THREADS: usize = 4;
/// Number of values per argument that the text report shows by default.
const SHOWN_VALUES: usize = 10;
/// Number of call stacks per function that the text report shows by default.
const SHOWN_STACKS: usize = 10;
/// Number of frames per call stack that the text report shows by default.
const SHOWN_FRAMES: usize = 8;
/// Columns of the longest bar of a histogram.
const BAR_WIDTH: f64 = 30.0;

/// Counts of probes.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeReport {
    /// `memhook-rs/probe/1`.
    pub schema: &'static str,
    /// True if the probes have been removed.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// The process.
    pub pid: i32,
    /// Seconds for which calls were counted.
    pub duration_s: f64,
    /// Milliseconds that the placing of the probes took.
    pub placed_ms: f64,
    /// How long all threads were held to place the probes, in milliseconds.
    pub held_ms: f64,
    /// Functions, the most often called first.
    pub probes: Vec<ProbeRow>,
    /// Functions that could not be probed.
    pub refused: Vec<RefusedRow>,
}

/// One function.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeRow {
    /// Name of the function.
    pub function: String,
    /// File name of the function's module.
    pub module: String,
    /// Number of calls.
    pub calls: u64,
    /// Calls per second.
    pub rate_per_s: f64,
    /// Latency of calls, if the user asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<ProbeLatency>,
    /// Calls by thread.
    pub threads: Vec<ProbeThread>,
    /// Arguments that the user asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<ArgumentRow>,
    /// Call stacks of the callers, if the user asked for them. The stacks with the most calls come
    /// first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<Vec<StackRow>>,
    /// Calls whose stack is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_without_stack: Option<u64>,
}

/// The values of one argument, as signed 64-bit numbers.
#[derive(Clone, Debug, Serialize)]
pub struct ArgumentRow {
    /// Number of the argument; 1 is the first.
    pub arg: usize,
    /// Calls whose argument was counted.
    pub calls: u64,
    /// Lowest value.
    pub min: Option<i64>,
    /// Highest value.
    pub max: Option<i64>,
    /// The most frequent values.
    pub top: Vec<ArgumentValue>,
    /// Number of calls with other values.
    pub others: u64,
    /// Counts by the number of bits, ascending.
    pub histogram: Vec<ArgumentClass>,
}

/// One value.
#[derive(Clone, Debug, Serialize)]
pub struct ArgumentValue {
    /// The value itself.
    pub value: i64,
    /// Calls with this value.
    pub calls: u64,
}

/// A range of values.
#[derive(Clone, Debug, Serialize)]
pub struct ArgumentClass {
    /// Lowest value of the range.
    pub from: i64,
    /// Highest value of the range.
    pub to: i64,
    /// Calls with a value in the range.
    pub calls: u64,
}

/// Latency of calls, in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeLatency {
    /// Number of measured calls. Calls that did not return, and the first call of each thread, are
    /// not measured.
    pub calls: u64,
    /// Median latency, rounded up by at most an eighth.
    pub p50: u64,
    /// 99th percentile of the latency, rounded up by at most an eighth.
    pub p99: u64,
    /// Longest latency.
    pub max: u64,
}

/// The calls of one thread.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeThread {
    /// Thread id; `None` if the thread ended before it was seen.
    pub tid: Option<i32>,
    /// Name of the thread.
    pub name: String,
    /// Number of calls by the thread.
    pub calls: u64,
}

/// A function that could not be probed.
#[derive(Clone, Debug, Serialize)]
pub struct RefusedRow {
    /// Name of the function.
    pub function: String,
    /// File name of the function's module.
    pub module: String,
    /// Reason of the refusal.
    pub why: String,
}

impl ProbeReport {
    /// The schema of the JSON form.
    pub const SCHEMA: &'static str = "memhook-rs/probe/1";

    /// Sorts the rows; the most often called function comes first.
    pub fn sort(&mut self) {
        let key = |row: &ProbeRow| (std::cmp::Reverse(row.calls), row.function.clone());
        self.probes.sort_by_key(key);
    }
}

impl Document for ProbeReport {
    fn text(&self, style: Style) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "Process {}: {} in {:.1} s{}",
            self.pid,
            counted(self.probes.len() as u64, "function"),
            self.duration_s,
            match self.refused.len() {
                0 => String::new(),
                n => format!(", {} refused", count(n as u64)),
            }
        );
        let _ = writeln!(out, "\n{:>15} {:>13}  function", "calls", "per second");
        let rows = if style.verbose {
            usize::MAX
        } else {
            SHOWN_ROWS
        };
        for row in self.probes.iter().take(rows) {
            let _ = writeln!(
                out,
                "{:>15} {:>13}  {} ({}){}{}",
                count(row.calls),
                count(row.rate_per_s.round() as u64),
                visible(&row.function),
                visible(&row.module),
                latency(row),
                threads(row, style)
            );
            arguments(row, style, &mut out);
            stacks(row, style, &mut out);
        }
        let more = self.probes.len().saturating_sub(rows);
        if more > 0 {
            let _ = writeln!(
                out,
                "{:>30}  {} more (--verbose)",
                "",
                counted(more as u64, "function")
            );
        }
        if !self.refused.is_empty() {
            let _ = writeln!(out, "\nNot probed:");
            for row in self.refused.iter().take(rows) {
                let _ = writeln!(
                    out,
                    "  {} ({}): {}",
                    visible(&row.function),
                    visible(&row.module),
                    visible(&row.why)
                );
            }
            let more = self.refused.len().saturating_sub(rows);
            if more > 0 {
                let _ = writeln!(
                    out,
                    "  {} more (--verbose)",
                    counted(more as u64, "function")
                );
            }
        }
        out
    }
}

fn latency(row: &ProbeRow) -> String {
    let Some(latency) = &row.latency_ns else {
        return String::new();
    };
    if latency.calls == 0 {
        return "  no call was measured".to_owned();
    }
    let [p50, p99, max] = [latency.p50, latency.p99, latency.max].map(count);
    format!("  half within {p50} ns, 99 % within {p99} ns, at most {max} ns")
}

/// Writes the values of the arguments: the most frequent values, and the histogram.
fn arguments(row: &ProbeRow, style: Style, out: &mut String) {
    for argument in &row.args {
        let (Some(min), Some(max)) = (argument.min, argument.max) else {
            continue;
        };
        let _ = writeln!(out, "{:>32}arg{}: {min} to {max}", "", argument.arg);
        let shown = if style.verbose {
            usize::MAX
        } else {
            SHOWN_VALUES
        };
        for value in argument.top.iter().take(shown) {
            let share = crate::percent(value.calls, argument.calls);
            let calls = count(value.calls);
            let _ = writeln!(out, "{calls:>47} {share:>5.1} %  = {}", value.value);
        }
        let listed = argument.top.iter().take(shown).map(|value| value.calls);
        let others = argument
            .calls
            .saturating_sub(listed.fold(0, u64::saturating_add));
        if others > 0 {
            let share = crate::percent(others, argument.calls);
            let _ = writeln!(out, "{:>47} {share:>5.1} %  other values", count(others));
        }
        if argument.histogram.len() < 2 {
            continue;
        }
        let most = argument.histogram.iter().map(|class| class.calls).max();
        for class in &argument.histogram {
            let width = class.calls as f64 / most.unwrap_or(1).max(1) as f64 * BAR_WIDTH;
            let range = format!("{}..{}", class.from, class.to);
            let bar = "#".repeat((width.ceil() as usize).max(1));
            let _ = writeln!(out, "{range:>47} {:>15}  {bar}", count(class.calls));
        }
    }
}

/// Writes the call stacks of the callers.
fn stacks(row: &ProbeRow, style: Style, out: &mut String) {
    let Some(stacks) = &row.stacks else { return };
    let (shown, frames) = if style.verbose {
        (usize::MAX, usize::MAX)
    } else {
        (SHOWN_STACKS, SHOWN_FRAMES)
    };
    for stack in stacks.iter().take(shown) {
        let names = stack.stack.iter().take(frames).map(|frame| {
            let name = frame_name(frame);
            visible(&name).into_owned()
        });
        let mut text = names.collect::<Vec<_>>().join(" < ");
        if stack.stack.len() > frames || stack.truncated {
            text.push_str(" < \u{2026}");
        }
        let _ = writeln!(out, "{:>32}{:>15}  < {text}", "", count(stack.calls));
    }
    let more = stacks.len().saturating_sub(shown);
    if more > 0 {
        let more = counted(more as u64, "call stack");
        let _ = writeln!(out, "{:>32}{:>15}  {more} more (--verbose)", "", "");
    }
    if let Some(calls @ 1..) = row.calls_without_stack {
        let _ = writeln!(out, "{:>32}{:>15}  without a call stack", "", count(calls));
    }
}

/// Describes the threads that called a function, if there were several.
fn threads(row: &ProbeRow, style: Style) -> String {
    if row.threads.len() < 2 {
        return String::new();
    }
    let shown = if style.verbose {
        usize::MAX
    } else {
        SHOWN_THREADS
    };
    let named = row.threads.iter().take(shown).map(|thread| {
        let name = visible(&thread.name);
        match thread.tid {
            Some(tid) => format!("{name} {tid}: {}", count(thread.calls)),
            None => format!("ended: {}", count(thread.calls)),
        }
    });
    let mut text = named.collect::<Vec<_>>().join(", ");
    let more = row.threads.len().saturating_sub(shown);
    if more > 0 {
        let _ = write!(text, ", {more} more");
    }
    format!("  [{text}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_functions_threads_and_refusals() {
        let thread = |tid, calls| ProbeThread {
            tid,
            name: "worker".into(),
            calls,
        };
        let row = |function: &str, calls, threads| ProbeRow {
            function: function.into(),
            module: "server".into(),
            calls,
            rate_per_s: calls as f64 / 2.0,
            latency_ns: None,
            threads,
            args: Vec::new(),
            stacks: None,
            calls_without_stack: None,
        };
        let mut report = ProbeReport {
            schema: ProbeReport::SCHEMA,
            is_final: true,
            pid: 7,
            duration_s: 2.0,
            placed_ms: 1.0,
            held_ms: 0.5,
            probes: vec![
                row("rare", 2, vec![thread(Some(8), 2)]),
                row(
                    "often",
                    5000,
                    vec![thread(Some(8), 4000), thread(None, 1000)],
                ),
            ],
            refused: vec![RefusedRow {
                function: "tiny".into(),
                module: "server".into(),
                why: "it is too short".into(),
            }],
        };
        report.sort();
        let text = report.text(Style::default());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Process 7: 2 functions in 2.0 s, 1 refused");
        assert_eq!(
            lines[3].trim(),
            "5,000         2,500  often (server)  [worker 8: 4,000, ended: 1,000]"
        );
        assert_eq!(lines[4].trim(), "2             1  rare (server)");
        assert_eq!(lines.last(), Some(&"  tiny (server): it is too short"));
    }
}
