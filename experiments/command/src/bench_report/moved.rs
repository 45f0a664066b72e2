//! Changes since the last committed figures.
//!
//! Each figure is a ratio within one alternated run: the time of an operation with the tool, divided by the time
//! without it in the same seconds. The table that is written here has the format that is read from
//! `docs/measurements.md`, so new figures are committed by copying it there.

use super::results::{BENCHES, Results};
use memhook_measurements::{Spread, ratios};
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

/// Title of the table, on the page and in the committed file.
pub const TITLE: &str = "Ratios to compare with";
/// File with the committed figures.
const COMMITTED: &str = "docs/measurements.md";

/// Committed figures by name.
#[derive(Debug, Default)]
pub struct Committed(HashMap<String, Spread>);

impl Committed {
    /// Reads the committed figures. Returns none if the page has no such table.
    pub fn read(workspace: &Path) -> Committed {
        let output = Command::new("git")
            .arg("-C")
            .arg(workspace)
            .args(["show", &format!("HEAD:{COMMITTED}")])
            .output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        Committed::parse(&text.unwrap_or_default())
    }

    fn parse(text: &str) -> Committed {
        let is_title = |line: &str| line.starts_with('#') && line.ends_with(TITLE);
        let rows = text.lines().skip_while(|line| !is_title(line)).skip(1);
        let rows = rows.take_while(|line| !line.starts_with('#'));
        Committed(rows.filter_map(row).collect())
    }
}

/// Parses `| pair/table | 3.100 (3.000 to 3.300) | … |`.
fn row(line: &str) -> Option<(String, Spread)> {
    let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
    let (name, figure) = (cells.next()?, cells.next()?);
    let (median, quartiles) = figure.strip_suffix(')')?.split_once(" (")?;
    let (low, high) = quartiles.split_once(" to ")?;
    let spread = Spread {
        median: median.parse().ok()?,
        low: low.parse().ok()?,
        high: high.parse().ok()?,
        count: 0,
    };
    Some((name.to_owned(), spread))
}

fn text(spread: &Spread) -> String {
    let Spread {
        median, low, high, ..
    } = spread;
    format!("{median:.3} ({low:.3} to {high:.3})")
}

/// Returns true if a figure has changed by more than the scatter of either run.
fn has_moved(before: &Spread, now: &Spread) -> bool {
    let scatter = (before.high - before.low).max(now.high - now.low);
    (now.median - before.median).abs() > scatter
}

/// Returns the rows: name, ratio, previous ratio, and whether it has changed.
pub fn rows(results: &Results, committed: &Committed) -> Vec<Vec<String>> {
    let of_bench = |bench: &'static str| {
        results.rows(bench).filter_map(move |row| {
            let ratio = ratios(row.untraced, row.traced).filter(|_| row.flaw().is_none())?;
            Some((format!("{bench}/{}/{}", row.work, row.tool), ratio))
        })
    };
    let compared = BENCHES.into_iter().flat_map(of_bench).map(|(name, now)| {
        let before = committed.0.get(&name);
        let mark = match before {
            None => "new".to_owned(),
            Some(before) if has_moved(before, &now) => {
                format!(
                    "**moved**, {:+.0} %",
                    (now.median / before.median - 1.0) * 100.0
                )
            }
            Some(_) => String::new(),
        };
        let before = before.map(text).unwrap_or_default();
        vec![name, text(&now), before, mark]
    });
    compared.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_again() {
        let spread = |median: f64, half: f64| Spread {
            median,
            low: median - half,
            high: median + half,
            count: 0,
        };
        let page = format!(
            "# Measurements\n\n| a | 9.000 (8.000 to 10.000) |\n\n### {TITLE}\n\n| figure | ratio |\n|---|---|\n\
             | churn/pair, depth 10/table | {} | | new |\n| b | {} |\n\n## Next\n| c | {} |\n",
            text(&spread(3.1, 0.2)),
            text(&spread(1.0, 0.0)),
            text(&spread(2.0, 0.0)),
        );
        let committed = Committed::parse(&page);
        assert_eq!(committed.0.len(), 2, "{committed:?}");
        let pair = &committed.0["churn/pair, depth 10/table"];
        assert_eq!(text(pair), "3.100 (2.900 to 3.300)");
        assert!(!has_moved(pair, &spread(3.4, 0.1)), "within the scatter");
        assert!(!has_moved(pair, &spread(4.0, 0.5)), "within its own");
        assert!(has_moved(pair, &spread(4.0, 0.1)));
        assert!(has_moved(pair, &spread(2.5, 0.1)));
        assert!(Committed::parse("").0.is_empty());
    }
}
