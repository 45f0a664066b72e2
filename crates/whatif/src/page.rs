//! Comparison of replays as a page.

use crate::comparison::{COLUMN_HEADS, Comparison, ReplayRow};
use memhook_report::{Curve, StaticPage};

pub fn page(comparison: &Comparison) -> String {
    let title = format!("{} under other allocators", comparison.command);
    let mut page = StaticPage::new(&title);
    // The answer comes first, and then its certainty.
    let verdict = comparison.verdict();
    match verdict.split_once(". ") {
        Some((answer, why)) => page.text("h1", answer).text("p", why),
        None => page.text("h1", &verdict),
    };
    page.text("p", &comparison.heading());
    let done: Vec<&ReplayRow> = comparison
        .rows
        .iter()
        .filter(|row| row.problem.is_none())
        .collect();
    let curves: Vec<Curve> = done
        .iter()
        .map(|row| Curve {
            name: row.name(),
            points: row.curve.clone(),
        })
        .collect();
    page.text("h2", "Resident memory over time").curves(
        "Resident bytes over time, one curve for each replay; the table below has their names and sums.",
        &curves,
    );
    let cells: Vec<Vec<String>> = done.iter().map(|row| cells(row)).collect();
    let heads: Vec<&str> = std::iter::once("allocator").chain(COLUMN_HEADS).collect();
    page.table(&heads, &cells, true);
    for row in comparison.rows.iter() {
        if let Some(problem) = &row.problem {
            page.text("p", &format!("{}: {problem}", row.name()));
        }
    }
    for note in comparison.all_notes() {
        page.text("p", &format!("Note: {note}."));
    }
    page.finish()
}

fn cells(row: &ReplayRow) -> Vec<String> {
    std::iter::once(row.name()).chain(row.numbers()).collect()
}
