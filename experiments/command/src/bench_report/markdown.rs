//! Tables and figures as Markdown.

use super::results::Row;
use memhook_measurements::{Spread, duration, times_goal};
use std::fmt::Write as _;

/// Writes a table under a title. Writes nothing if there are no rows.
pub fn table(page: &mut String, title: &str, columns: &[&str], rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(page, "## {title}\n");
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = columns.iter().map(|c| (*c).to_owned()).collect();
    page.push_str(&line(&head));
    let _ = writeln!(page, "|{}", "---|".repeat(columns.len()));
    for row in rows {
        page.push_str(&line(&row));
    }
    page.push('\n');
}

/// Formats median and quartiles. Returns an empty string for `None`.
pub fn spread(spread: Option<Spread>, format: impl Fn(f64) -> String) -> String {
    spread.map_or_else(String::new, |s| {
        format!(
            "{} ({} to {})",
            format(s.median),
            format(s.low),
            format(s.high)
        )
    })
}

/// Formats nanoseconds.
pub fn ns(value: f64) -> String {
    if value.abs() < 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// Writes the time that each row's tool added to an operation, and its ratio to `ours`. Invalid rows are omitted.
/// Without a row for `ours`, the ratio is omitted.
pub fn compared<'a>(page: &mut String, title: &str, ours: &str, rows: &[Row<'a>]) {
    let sound = || rows.iter().filter(|row| row.flaw().is_none());
    let own = sound().find(|row| row.tool == ours);
    let Some(own) = own.and_then(Row::added) else {
        return;
    };
    let cells = sound().filter_map(|row| {
        let added = row.added()?;
        Some(vec![
            row.tool.to_owned(),
            spread(Some(added), |v| format!("{v:+.1}")),
            times_goal(row.tool, added, own),
        ])
    });
    let columns = ["tool", "added, ns", &format!("times what {ours} adds")];
    table(page, title, &columns, cells.collect());
}

/// Columns of [`ratio_row`].
pub const RATIO_COLUMNS: [&str; 8] = [
    "work",
    "tool",
    "untraced, one operation",
    "throughput with / without",
    "for a second of the target on the processor",
    "events lost",
    "tool's processor",
    "target grows by",
];

/// Returns a row about throughput.
pub fn ratio_row(row: &Row) -> Vec<String> {
    let mut cells = vec![row.work.to_owned(), row.tool.to_owned()];
    if let Some(flaw) = row.flaw() {
        cells.extend([String::new(), flaw]);
        cells.resize(RATIO_COLUMNS.len(), String::new());
        return cells;
    }
    let condition = row.condition;
    cells.extend([
        row.base().map_or_else(String::new, |s| duration(s.median)),
        spread(row.throughput(), |v| format!("{v:.3}")),
        spread(condition.cpu_throughput(), |v| format!("{v:.3}")),
        condition.lost.to_string(),
        format!("{:.0} %", condition.tool_cpu * 100.0),
        format!(
            "{:.1} MiB",
            condition.growth_bytes as f64 / f64::from(1 << 20)
        ),
    ]);
    cells
}
