//! The page.

mod latency;

use super::markdown::{RATIO_COLUMNS, compared, ns, ratio_row, spread, table};
use super::moved::{self, Committed};
use super::results::{BENCHES, Results, Row};
use latency::latency;
use memhook_measurements::{Machine, Phase, Spread, duration};
use std::fmt::Write as _;

/// Returns the page with only the machine and the ratios.
pub fn ratios_alone(results: &Results, committed: &Committed) -> String {
    let mut page = String::from("# Benchmarks\n\n");
    machine(&mut page, results);
    phase(&mut page, results);
    moved(&mut page, results, committed);
    page
}

fn moved(page: &mut String, results: &Results, committed: &Committed) {
    let columns = [
        "figure",
        "time with / without the tool",
        "committed last",
        "moved by more than its spread",
    ];
    table(
        page,
        moved::TITLE,
        &columns,
        moved::rows(results, committed),
    );
}

/// Writes the phase of the machine during each benchmark program.
fn phase(page: &mut String, results: &Results) {
    let untraced = |bench: &str| {
        let row = results.rows(bench).find(|row| row.flaw().is_none())?;
        let base = row.base()?;
        Some((row.work.to_owned(), duration(base.median)))
    };
    let rows = BENCHES.into_iter().filter_map(|bench| {
        let phase = results.conditions(bench)?.phase?;
        let Phase { median, low, high } = phase;
        let (work, time) = untraced(bench).unwrap_or_default();
        let trip = format!("{} ({} to {})", ns(median), ns(low), ns(high));
        Some(vec![bench.to_owned(), trip, work, time])
    });
    let columns = [
        "benchmark",
        "a cache line from processor to processor and back, ns",
        "untraced",
        "time",
    ];
    table(page, "Phase of the machine", &columns, rows.collect());
}

/// Returns the whole page.
pub fn page(results: &Results, committed: &Committed) -> String {
    let mut page = String::from("# Benchmarks\n\n");
    machine(&mut page, results);
    phase(&mut page, results);
    churn(&mut page, results);
    latency(&mut page, results);
    programs(&mut page, results);
    peers(&mut page, results);
    attach(&mut page, results);
    unwind(&mut page, results);
    consumer(&mut page, results);
    moved(&mut page, results, committed);
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

/// Returns a row about the cost added to an operation.
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
    for work in ["pair, depth 10, probed", "many stacks, probed"] {
        let rows: Vec<Row> = results
            .rows("churn")
            .filter(|row| row.work == work)
            .collect();
        compared(
            page,
            &format!("Added by user probes: {work}"),
            "table",
            &rows,
        );
    }
}

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
    // Only the tight pair is compared, because other workloads would divide by the difference of two noisy figures.
    let rows: Vec<Row> = results
        .rows("peers")
        .filter(|row| row.work == "pair, depth 10")
        .collect();
    compared(
        page,
        "Added to a pair of 64 B, 10 frames deep",
        "memhook-rs",
        &rows,
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
