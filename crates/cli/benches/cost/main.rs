//! Measures the cost of tracing a program, compared with the kernel's uprobes. The number of rounds is fixed and does
//! not depend on the speed of the machine.
//!
//! Run it with `cargo bench`; `cargo bench -- always-on` instead measures the cost of permanent tracing for a program
//! that only allocates. The benchmarks of `experiments/measurements` measure more, and store their results.

mod always_on;

use memhook_benches::programs::compiler;
use memhook_benches::uprobe::{Action, Uprobes};
use memhook_benches::{
    Alternated, Figure, Measured, Memhook, Placement, Round, Spread, Standing, Tool, Traced,
    alternate, bind_to, build, duration, guard, is_test, placement, ratios,
};

/// Both functions are probed, because a heap profiler also has to see releases.
const PROBED: [(&str, bool); 2] = [("malloc", false), ("free", false)];

fn main() {
    guard();
    memhook_tests::binary_is(env!("CARGO_BIN_EXE_memhook-rs"));
    let place = placement();
    bind_to(&place.rest);
    if std::env::args().any(|word| word == "always-on") {
        return always_on::print_table(&place);
    }
    let tools: [Box<dyn Tool>; 4] = [
        Box::new(Memhook::new("traced", "--depth 10")),
        Box::new(Memhook::new(
            "sampled, 512 KiB",
            "--depth 10 --sample 524288",
        )),
        Box::new(Uprobes::new("uprobe", &PROBED, Action::Program)),
        Box::new(Uprobes::new(
            "uprobe, stack",
            &PROBED,
            Action::ProgramWithStack,
        )),
    ];
    let tools: Vec<&dyn Tool> = tools.iter().map(|tool| &**tool).collect();
    println!("Rounds without a tool and with each, in turn:");
    let measured = |name, measure: &dyn Fn() -> Alternated| {
        eprintln!("{name} ...");
        (name, measure())
    };
    let works = [
        measured("malloc/free pair", &|| {
            standing("pair", &["10", "1"], &place, &tools)
        }),
        measured("many stacks", &|| standing("many", &["1"], &place, &tools)),
        measured("g++", &|| real_program(&place, &tools)),
    ];
    let mut failures = Vec::new();
    let mut rows = vec![row("", works.iter().map(|(name, _)| (*name).to_owned()))];
    rows.push(row("untraced", works.iter().map(|(_, all)| untraced(all))));
    for (at, tool) in tools.iter().enumerate() {
        let traced = || works.iter().map(|(_, all)| &all.traced[at]);
        if let Some(why) = common_failure(traced()) {
            rows.push(format!("{:<17}  not run: {why}", tool.name()));
            continue;
        }
        let cells = works.iter().map(|(_, all)| times(all, &all.traced[at]));
        rows.push(row(tool.name(), cells));
        for ((work, _), traced) in works.iter().zip(traced()) {
            if traced.rounds.is_empty() {
                failures.push(format!("{}, {work}: {}", tool.name(), failure(traced)));
            }
        }
    }
    println!("\nTime of an operation; with a tool, how many times as much (median, quartiles):\n");
    rows.iter().for_each(|row| println!("{row}"));
    println!();
    failures.iter().for_each(|failure| println!("{failure}"));
    // Root may trace everything. For another user, the table gives the reason.
    let is_root = nix::unistd::Uid::effective().is_root();
    let has_ours = |all: &Alternated| all.traced[..2].iter().all(|t| !t.rounds.is_empty());
    if is_root && !works.iter().all(|(_, all)| has_ours(all)) {
        std::process::exit(1);
    }
}

/// Returns the reason why a tool did not run, if it was the same each time.
fn common_failure<'a>(mut traced: impl Iterator<Item = &'a Traced>) -> Option<&'a str> {
    let first = traced.next()?;
    let is_same = |other: &Traced| other.rounds.is_empty() && failure(other) == failure(first);
    (first.rounds.is_empty() && traced.all(is_same)).then(|| failure(first))
}

fn failure(traced: &Traced) -> &str {
    traced.failure.as_deref().unwrap_or("no rounds")
}

/// Runs a program that measures itself, while tools are attached and detached.
fn standing(name: &str, args: &[&str], place: &Placement, tools: &[&dyn Tool]) -> Alternated {
    let program = build(name, &["-fomit-frame-pointer"]);
    let mut target = Measured::start(&program, args, &place.target);
    let milliseconds = if is_test() { 10.0 } else { 100.0 };
    let mut subject = Standing {
        pid: target.pid(),
        measure: || target.round(milliseconds),
    };
    alternate(&mut subject, tools, cycles(10))
}

/// Runs a real program: the only one that is installed on every build machine. Its input file is small, because with
/// probes the program takes many times as long.
fn real_program(place: &Placement, tools: &[&dyn Tool]) -> Alternated {
    let text =
        "#include <vector>\nvoid add(std::vector<int>& to, int value) { to.push_back(value); }\n";
    match compiler(place, text) {
        Ok(mut subject) => alternate(&mut *subject, tools, cycles(4)),
        Err(why) => {
            let names: Vec<&str> = tools.iter().map(|tool| tool.name()).collect();
            Alternated::impossible(&names, &why)
        }
    }
}

fn cycles(usual: usize) -> usize {
    if is_test() { 1 } else { usual }
}

fn row(name: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: String = cells.map(|cell| format!("  {cell:>26}")).collect();
    format!("{name:<17}{cells}")
}

fn figures(rounds: &[Round]) -> Vec<f64> {
    let first = |round: &Round| round.figures.first().map(|Figure { ns, .. }| *ns);
    rounds.iter().filter_map(first).collect()
}

fn untraced(all: &Alternated) -> String {
    let spread = Spread::of(figures(&all.untraced));
    spread.map_or_else(|| "not run".to_owned(), |s| duration(s.median))
}

fn times(all: &Alternated, traced: &Traced) -> String {
    let found = ratios(&figures(&all.untraced), &figures(&traced.rounds));
    let Some(found) = found.filter(|_| !traced.rounds.is_empty()) else {
        return "not run".to_owned();
    };
    let lost: u64 = traced.rounds.iter().map(|round| round.outcome.lost).sum();
    if lost > 0 {
        return format!("{lost} events lost");
    }
    // More than three digits would exceed the precision of a round.
    let digits = if found.median < 100.0 { 2 } else { 0 };
    let Spread {
        median, low, high, ..
    } = found;
    format!("x {median:.digits$} ({low:.digits$} to {high:.digits$})")
}
