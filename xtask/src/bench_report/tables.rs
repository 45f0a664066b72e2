//! The page.

use super::results::{BENCHES, Results, Row};
use memhook_benches::{Machine, Spread, duration};
use std::fmt::Write as _;

/// Mallocs are compared with the probes at this size.
const COMPARED: &str = "64 B";
/// What the others are compared with.
const OURS: &str = "table 10";

/// The whole page.
pub fn page(results: &Results) -> String {
    let mut page = String::from("# Benchmarks\n\n");
    machine(&mut page, results);
    churn(&mut page, results);
    latency(&mut page, results);
    programs(&mut page, results);
    peers(&mut page, results);
    attach(&mut page, results);
    unwind(&mut page, results);
    consumer(&mut page, results);
    page
}

fn machine(page: &mut String, results: &Results) {
    let mut machines: Vec<&Machine> = Vec::new();
    for bench in BENCHES {
        if let Some(conditions) = results.conditions(bench)
            && !machines.contains(&&conditions.machine)
        {
            machines.push(&conditions.machine);
        }
    }
    for m in &machines {
        let _ = writeln!(
            page,
            "{}, {} processors, {} GiB; Linux {}, {}, {}.",
            m.processor, m.processors, m.memory_gib, m.kernel, m.libc, m.compiler
        );
    }
    if machines.len() > 1 {
        page.push_str("The parts below were not all measured on the same machine.\n");
    }
    page.push_str(
        "\nTarget on one processor, attacher and load on the other. Rounds with and without each tool \
         alternate in one process; a figure is the median over the rounds of the difference from, or the \
         ratio to, the round without it of the same seconds, with quartiles in brackets. A row in \
         which events were lost is no result and says so.\n\n",
    );
}

fn table(page: &mut String, title: &str, columns: &[&str], rows: Vec<Vec<String>>) {
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

fn spread(spread: Option<Spread>, format: impl Fn(f64) -> String) -> String {
    spread.map_or_else(String::new, |s| {
        format!(
            "{} ({} to {})",
            format(s.median),
            format(s.low),
            format(s.high)
        )
    })
}

fn ns(value: f64) -> String {
    if value.abs() < 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// A row about what was added to an operation.
fn added(row: &Row) -> Vec<String> {
    let mut cells = vec![row.work.to_owned(), row.tool.to_owned()];
    if let Some(flaw) = row.flaw() {
        cells.extend([String::new(), flaw, String::new(), String::new()]);
        return cells;
    }
    cells.extend([
        row.base().map_or_else(String::new, |s| ns(s.median)),
        spread(row.added(), |v| format!("{v:+.1}")),
        row.condition.lost.to_string(),
        format!("{:.0} %", row.condition.tool_cpu * 100.0),
    ]);
    cells
}

fn churn(page: &mut String, results: &Results) {
    let rows = results.rows("churn").map(|row| added(&row)).collect();
    table(
        page,
        "A pair, or an operation, in nanoseconds",
        &[
            "work",
            "tool",
            "untraced",
            "added",
            "events lost",
            "attacher's processor",
        ],
        rows,
    );
    let pair = "pair, depth 10";
    let (Some(ours), Some(probed)) = (
        results.row("churn", pair, "table").and_then(|r| r.added()),
        results
            .row(
                "churn",
                "pair, depth 10, probed",
                "uprobe, BPF, stack 10, malloc and free",
            )
            .and_then(|r| r.added()),
    ) else {
        return;
    };
    let _ = writeln!(
        page,
        "A pair costs with user probes and stacks {:.0} times what it costs with memhook-rs.\n",
        probed.median / ours.median
    );
}

/// By size: one column a tool, nanoseconds a malloc.
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

fn latency(page: &mut String, results: &Results) {
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
    let ours = results.row("latency", COMPARED, OURS);
    let Some(ours) = ours.and_then(|row| row.added()) else {
        return;
    };
    let rows = results
        .rows("latency")
        .filter(|row| row.work == COMPARED && row.flaw().is_none())
        .filter_map(|row| {
            let added = row.added()?;
            Some(vec![
                row.tool.to_owned(),
                spread(Some(added), |v| format!("{v:+.1}")),
                format!("{:.1}", added.median / ours.median),
            ])
        })
        .collect();
    table(
        page,
        &format!("Added to a malloc of {COMPARED}, and divided by what `{OURS}` adds"),
        &["tool", "added, ns", "ratio"],
        rows,
    );
}

fn ratio_row(row: &Row) -> Vec<String> {
    let mut cells = vec![row.work.to_owned(), row.tool.to_owned()];
    if let Some(flaw) = row.flaw() {
        cells.extend([
            String::new(),
            flaw,
            String::new(),
            String::new(),
            String::new(),
        ]);
        return cells;
    }
    cells.extend([
        row.base().map_or_else(String::new, |s| duration(s.median)),
        spread(row.throughput(), |v| format!("{v:.3}")),
        row.condition.lost.to_string(),
        format!("{:.0} %", row.condition.tool_cpu * 100.0),
        format!(
            "{:.1} MiB",
            row.condition.growth_bytes as f64 / f64::from(1 << 20)
        ),
    ]);
    cells
}

const RATIO_COLUMNS: [&str; 7] = [
    "work",
    "tool",
    "untraced, one operation",
    "throughput with / without",
    "events lost",
    "tool's processor",
    "target grows by",
];

fn programs(page: &mut String, results: &Results) {
    let rows = results
        .rows("programs")
        .map(|row| ratio_row(&row))
        .collect();
    table(page, "Programs", &RATIO_COLUMNS, rows);
    let mixed = || {
        results
            .rows("programs")
            .filter(|row| row.work == "mixed C++")
    };
    let mut rows = Vec::new();
    if let Some(base) = mixed().next().and_then(|row| row.base()) {
        rows.push(vec!["none".to_owned(), duration(base.median)]);
    }
    rows.extend(mixed().map(|row| {
        let time = row.with().map(|s| duration(s.median)).unwrap_or_default();
        vec![row.tool.to_owned(), row.flaw().unwrap_or(time)]
    }));
    table(
        page,
        "A batch of the mixed C++ program",
        &["tool", "time"],
        rows,
    );
}

fn peers(page: &mut String, results: &Results) {
    let rows = results.rows("peers").map(|row| ratio_row(&row)).collect();
    table(
        page,
        "Other tools on the same programs",
        &RATIO_COLUMNS,
        rows,
    );
    // Only of the tight pair: elsewhere the difference of two noisy figures would be divided.
    let pairs = || {
        results
            .rows("peers")
            .filter(|row| row.work == "pair, depth 10")
    };
    let ours = pairs().find(|row| row.tool.starts_with("memhook-rs"));
    let Some(ours) = ours.and_then(|row| row.added()) else {
        return;
    };
    let rows = pairs()
        .filter(|row| row.flaw().is_none())
        .filter_map(|row| {
            let added = row.added()?;
            Some(vec![
                row.tool.to_owned(),
                spread(Some(added), |v| format!("{v:+.1}")),
                format!("{:.1}", added.median / ours.median),
            ])
        })
        .collect();
    table(
        page,
        "Added to a pair of 64 B, 10 frames deep, and divided by what memhook-rs adds",
        &["tool", "added, ns", "ratio"],
        rows,
    );
}

fn attach(page: &mut String, results: &Results) {
    let rows = results
        .rows("attach")
        .map(|row| {
            let (target, what) = row.work.split_once(": ").unwrap_or((row.work, ""));
            let with = row.flaw().unwrap_or_else(|| spread(row.with(), duration));
            vec![
                target.to_owned(),
                what.to_owned(),
                spread(row.base(), duration),
                with,
            ]
        })
        .collect();
    table(
        page,
        "Attach and detach",
        &["target", "what", "without", "with"],
        rows,
    );
}

fn facts(results: &Results, bench: &str) -> Vec<Vec<String>> {
    let conditions = results.conditions(bench);
    let facts = conditions.into_iter().flat_map(|c| &c.facts);
    facts
        .map(|(name, value)| vec![name.clone(), value.clone()])
        .collect()
}

fn unwind(page: &mut String, results: &Results) {
    table(
        page,
        "Unwind tables",
        &["what", "size"],
        facts(results, "unwind"),
    );
    let compile = results.plain("unwind/compile/");
    table(
        page,
        "Compiling them, one core",
        &["module", "time", "rows a second"],
        compile.into_iter().map(plain_row).collect(),
    );
    // The slope between two depths is the cost of a frame.
    let slope = |work: &str| {
        let at = |tool| results.row("unwind", work, tool)?.added();
        Some((at("table 20")?.median - at("table 10")?.median) / 10.0)
    };
    let rows = ["remembered backtrace", "backtrace not remembered"]
        .iter()
        .filter_map(|work| {
            let mut cells = vec![(*work).to_owned()];
            for tool in ["table 5", "table 10", "table 20"] {
                let row = results.row("unwind", work, tool)?;
                cells.push(
                    row.flaw()
                        .unwrap_or_else(|| spread(row.added(), |v| format!("{v:+.1}"))),
                );
            }
            cells.push(format!("{:.1}", slope(work)?));
            Some(cells)
        })
        .collect();
    table(
        page,
        "A pair with one backtrace, in nanoseconds",
        &[
            "backtrace",
            "depth 5",
            "depth 10",
            "depth 20",
            "a frame (10 to 20)",
        ],
        rows,
    );
}

fn plain_row((id, time, elements): (&str, Spread, Option<u64>)) -> Vec<String> {
    let rate = elements.map_or_else(String::new, |count| {
        format!("{:.1} million", count as f64 / time.median * 1e3)
    });
    vec![id.to_owned(), spread(Some(time), duration), rate]
}

fn consumer(page: &mut String, results: &Results) {
    let rows = results
        .plain("consumer/")
        .into_iter()
        .map(plain_row)
        .collect();
    table(
        page,
        "The consumer: a pass of 32,768 events, or a query",
        &["what", "time", "events a second"],
        rows,
    );
    table(
        page,
        "Memory of the ledger",
        &["what", "size"],
        facts(results, "consumer"),
    );
}
