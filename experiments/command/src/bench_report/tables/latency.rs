//! Cost of malloc by size, in the format of three tables of the thesis: with probes (5.1), hooked without recording
//! (5.3), and recorded with call stacks (6.1).

use crate::bench_report::markdown::{compared, ns, table};
use crate::bench_report::results::{Results, Row};
use std::fmt::Write as _;

/// Size at which mallocs are compared with the probes.
const COMPARED: &str = "64 B";
/// Tool that all other tools are compared with.
const OURS: &str = "table 10";

/// Writes a table by size: one column per tool, in nanoseconds per malloc.
fn by_size(page: &mut String, results: &Results, title: &str, columns: &[(&str, &str)]) {
    let mut sizes: Vec<&str> = Vec::new();
    for row in results.rows("latency") {
        if !sizes.contains(&row.work) {
            sizes.push(row.work);
        }
    }
    let cell = |size: &str, tool: &str| match results.row("latency", size, tool) {
        None => "not measured".to_owned(),
        Some(row) if row.flaw().is_some() => "no result".to_owned(),
        Some(row) => row.with().map_or_else(String::new, |s| ns(s.median)),
    };
    let base = |size: &str| {
        let first = columns.first().map_or("", |(_, tool)| tool);
        let row = results.row("latency", size, first);
        row.and_then(|r| r.base())
            .map_or_else(String::new, |s| ns(s.median))
    };
    let rows = sizes
        .iter()
        .map(|size| {
            let mut cells = vec![(*size).to_owned(), base(size)];
            cells.extend(columns.iter().map(|(_, tool)| cell(size, tool)));
            cells
        })
        .collect();
    let mut head = vec!["size", "baseline"];
    head.extend(columns.iter().map(|(name, _)| *name));
    table(page, title, &head, rows);
    for (_, tool) in columns {
        let mut flaws = sizes
            .iter()
            .filter_map(|size| results.row("latency", size, tool)?.flaw());
        if let Some(flaw) = flaws.next_back() {
            let _ = writeln!(page, "{tool}: {flaw}\n");
        }
    }
}

/// The tables.
pub fn latency(page: &mut String, results: &Results) {
    for (title, kind) in [
        ("User probes on malloc", "uprobe"),
        ("User probes on malloc with a BPF program", "uprobe, BPF"),
        (
            "User probes on malloc with a BPF program that takes stacks of 10",
            "uprobe, BPF, stack 10",
        ),
        (
            "User probes on malloc whose records carry stacks of 10",
            "uprobe, call chain 10",
        ),
    ] {
        let names = ["entry", "return", "both"].map(|at| format!("{kind}, {at}"));
        let columns = [
            ("entry only", names[0].as_str()),
            ("return only", &names[1]),
            ("both", &names[2]),
        ];
        let title = format!("{title}: nanoseconds a malloc");
        by_size(page, results, &title, &columns);
    }
    by_size(
        page,
        results,
        "Hooked and not recorded: nanoseconds a malloc",
        &[
            ("hooked", "pass-through"),
            ("--sample 524288", "sample 512 KiB"),
        ],
    );
    by_size(
        page,
        results,
        "Recorded with call stacks: nanoseconds a malloc",
        &[
            "fp 5", "fp 10", "fp 20", "table 5", "table 10", "table 20", "glibc 5", "glibc 10",
            "glibc 20",
        ]
        .map(|tool| (tool, tool)),
    );
    let rows: Vec<Row> = results
        .rows("latency")
        .filter(|row| row.work == COMPARED)
        .collect();
    compared(
        page,
        &format!("Added to a malloc of {COMPARED}"),
        OURS,
        &rows,
    );
}
