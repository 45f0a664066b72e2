//! Relative speed of a program that only allocates and releases, while it is traced. The loop is so short that each
//! instruction of a skipped call shows.

use crate::{cycles, failure, figures, row, untraced};
use memhook_benches::{
    Alternated, Measured, Memhook, Placement, Spread, Standing, Tool, Traced, alternate, build,
    is_test, ratios,
};

const MODES: [&str; 6] = [
    "--depth 10",
    "--sample 512K",
    "--overhead 1%",
    "--overhead 2%",
    "--overhead 5%",
    "--size 1G..",
];

/// Prints a column for each number of threads.
pub fn print_table(place: &Placement) {
    let tools = MODES.map(|options| Memhook::new(options, options));
    let tools: Vec<&dyn Tool> = tools.iter().map(|tool| tool as &dyn Tool).collect();
    let threads = ["1", "2", "16"];
    let works = threads.map(|threads| alternated(threads, place, &tools));
    println!(
        "Operations per second of the target's time, traced / untraced (median, quartiles):\n"
    );
    let header = threads.map(|threads| format!("threads: {threads}"));
    println!("{}", row("", header.into_iter()));
    println!("{}", row("untraced", works.iter().map(untraced)));
    for (at, mode) in MODES.iter().enumerate() {
        let cells = works.iter().map(|all| speed(all, &all.traced[at]));
        println!("{}", row(mode, cells));
    }
    for traced in works.iter().flat_map(|all| &all.traced) {
        if traced.rounds.is_empty() {
            println!("{}: {}", traced.tool, failure(traced));
        }
    }
}

fn alternated(threads: &str, place: &Placement, tools: &[&dyn Tool]) -> Alternated {
    let processors = if threads == "1" {
        &place.target
    } else {
        &place.all
    };
    let mut target = Measured::start(&build("slots", &[]), &[threads], processors);
    let milliseconds = if is_test() { 10.0 } else { 400.0 };
    let mut subject = Standing {
        pid: target.pid(),
        measure: || target.round(milliseconds),
    };
    alternate(&mut subject, tools, cycles(10))
}

fn speed(all: &Alternated, traced: &Traced) -> String {
    let Some(times) = ratios(&figures(&all.untraced), &figures(&traced.rounds)) else {
        return "not run".to_owned();
    };
    let Spread {
        median, low, high, ..
    } = times;
    format!(
        "{:.2} ({:.2} to {:.2})",
        1.0 / median,
        1.0 / high,
        1.0 / low
    )
}
