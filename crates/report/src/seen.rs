//! Builds a run's report from the observed facts. Running traces and recordings share this code.

use crate::named_run::NamedRun;
use crate::rows::{self, Part, Row, RowsBy, SortBy};
use crate::{Amount, FoldedGroups, ReleaseSite, ReportModel};
use std::cmp::Reverse;

/// Facts about a run up to a moment.
#[derive(Clone)]
pub(crate) struct Seen {
    /// Kind of rows.
    pub by: RowsBy,
    /// Parts of the rows.
    pub parts: Vec<Part>,
    /// Releases of stacks.
    pub releases: Vec<(u32, Amount)>,
    /// The moment in nanoseconds since the attach.
    pub now_ns: u64,
    /// The report without its rows.
    pub facts: ReportModel,
    /// The rows, once they have been chosen.
    pub chosen: Option<Chosen>,
}

/// Sorted rows, limited to those that are shown, and the number of remaining rows.
type Cut = (Vec<Row>, u64);

/// Chosen rows of a report.
#[derive(Clone)]
pub(crate) struct Chosen {
    pub rows: Cut,
    /// Rows for text, if text merges some rows.
    folded: Option<Cut>,
}

impl Seen {
    /// Chooses the rows and releases to show. `complete` gets all rows before they are sorted.
    pub fn choose(
        &mut self,
        sort: SortBy,
        top: usize,
        run: &dyn NamedRun,
        complete: impl FnOnce(&mut [Row]),
    ) {
        let by = self.by;
        let cut = |mut rows: Vec<Row>| {
            // Lifetimes have their own order, which makes them a histogram.
            if by == RowsBy::Lifetime {
                return (rows, 0);
            }
            rows::sort(&mut rows, sort);
            let more_rows = rows.len().saturating_sub(top) as u64;
            rows.truncate(top);
            (rows, more_rows)
        };
        let mut all = rows::rows(by, &self.parts, run);
        complete(&mut all);
        self.chosen = Some(Chosen {
            folded: rows::with_ended_as_one(by, &all).map(cut),
            rows: cut(all),
        });
        self.releases
            .sort_by_key(|&(stack, amount)| (Reverse(amount.bytes), stack));
        self.releases.truncate(top);
    }

    /// Builds the report, with the names that have arrived.
    pub fn report(self, run: &dyn NamedRun) -> ReportModel {
        let shown = |rows| rows::shown(self.by, rows, self.now_ns, run);
        let chosen = self.chosen;
        let (folded, (rows, more_rows)) =
            chosen.map_or_else(Default::default, |chosen| (chosen.folded, chosen.rows));
        let (sites, groups) = shown(rows);
        let release = |(stack, amount): (u32, Amount)| ReleaseSite {
            bytes: amount.bytes,
            blocks: amount.blocks,
            error_bytes: amount.error_bytes(),
            heap: None,
            kind: run.call(stack).0,
            stack: run.stack(stack),
        };
        ReportModel {
            schema: ReportModel::SCHEMA,
            by: self.by.name(),
            elapsed_s: self.now_ns as f64 / 1e9,
            sites,
            groups,
            folded: folded.map(|(rows, more_rows)| FoldedGroups {
                groups: shown(rows).1,
                more_rows,
            }),
            more_rows,
            releases: self.releases.into_iter().map(release).collect(),
            ..self.facts
        }
    }
}
