//! Table 5.2: a short program from its start to its end, under each tool. The thesis starts its planner Mimir.

use super::super::sheet::{Sheet, Sheets, number};
use super::super::spawned::{bpftrace_of_all, libc_of};
use memhook_measurements::programs::find;
use memhook_measurements::{Running, Spread, placement, ratios};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

const RUNS: usize = 24;
const SQL: &str = "create table t(a, b); \
    with recursive n(i) as (select 1 union all select i + 1 from n where i < 300) \
    insert into t select i, 'row number ' || i from n; \
    select count(*), max(b) from t where a % 7 = 0;\n";

/// Method of tracing a program: user probes on all processes, or a command that starts the program.
struct Way {
    name: &'static str,
    probes: &'static str,
    through: Vec<String>,
}

fn ways() -> Vec<Way> {
    let probed = |name, probes| Way {
        name,
        probes,
        through: Vec::new(),
    };
    let through = |name, words: &str| Way {
        name,
        probes: "",
        through: words.split_whitespace().map(str::to_owned).collect(),
    };
    let binary = memhook_tests::binary().display();
    vec![
        probed(
            "bpftrace, malloc at entry",
            "uprobe:LIBC:malloc { @ = count(); }",
        ),
        probed(
            "bpftrace, malloc at return",
            "uretprobe:LIBC:malloc { @ = count(); }",
        ),
        probed(
            "bpftrace, both",
            "uprobe:LIBC:malloc { @ = count(); } uretprobe:LIBC:malloc { @r = count(); }",
        ),
        through("memhook-rs run", &format!("{binary} run -q --")),
        through(
            "memhook-rs run, with a recording",
            &format!("{binary} run -q --force -o /dev/null --"),
        ),
        through(
            "heaptrack",
            "heaptrack -o /dev/shm/memhook-papers-heaptrack",
        ),
        through("valgrind, no tool", "valgrind -q --tool=none"),
        through("valgrind memcheck", "valgrind -q --tool=memcheck"),
    ]
}

/// Returns the run time of the program in milliseconds.
fn once(through: &[String], processors: &str) -> Result<f64, String> {
    let program = find("sqlite3", "sqlite3")?;
    let mut command = Command::new("taskset");
    // Tools have their own threads, so they may use both processors.
    command.args(["-c", processors]).args(through).arg(program);
    command.args(["-batch", ":memory:"]);
    let begin = Instant::now();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut input = child.stdin.take().ok_or("no pipe")?;
    input
        .write_all(SQL.as_bytes())
        .map_err(|error| error.to_string())?;
    drop(input);
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    let ms = begin.elapsed().as_secs_f64() * 1e3;
    let answer = String::from_utf8_lossy(&output.stdout);
    match answer.lines().any(|line| line.starts_with("42|")) {
        true => Ok(ms),
        false => Err(format!("sqlite3 answers {answer:?}")),
    }
}

pub fn run(sheets: &mut Sheets) -> Result<(), String> {
    let place = placement();
    let program = find("sqlite3", "sqlite3")?;
    let libc = libc_of(&program.to_string_lossy())?;
    let mut sheet = Sheet::new(
        "sqlite3 from its start to its end, 300 rows",
        &[
            "tool",
            "alone, ms",
            "with the tool, ms",
            "added, ms",
            "ratio",
        ],
    );
    for way in ways() {
        let mut figures = [Vec::new(), Vec::new()];
        let mut failure = None;
        // The probes stay in place for several runs, because placing them takes a second.
        for _ in 0..RUNS / 4 {
            let alone: Result<Vec<f64>, String> = (0..4).map(|_| once(&[], &place.all)).collect();
            figures[0].extend(alone?);
            let probing: Option<Box<dyn Running>> = match way.probes {
                "" => None,
                probes => Some(bpftrace_of_all(probes, &libc)?),
            };
            let with: Result<Vec<f64>, String> =
                (0..4).map(|_| once(&way.through, &place.all)).collect();
            if let Some(probing) = probing {
                probing.finish()?;
            }
            match with {
                Ok(with) => figures[1].extend(with),
                Err(why) => failure = Some(why),
            }
        }
        let [alone, with] = figures;
        let cells = match (failure, ratios(&alone, &with)) {
            (None, Some(ratio)) => {
                let median = |all| Spread::of(all).map_or(f64::NAN, |spread| spread.median);
                let (alone, with) = (median(alone), median(with));
                [alone, with, with - alone, ratio.median].map(number)
            }
            (why, _) => [why.unwrap_or_default(), "-".into(), "-".into(), "-".into()],
        };
        let cells = std::iter::once(way.name.to_owned()).chain(cells);
        sheet.row(cells.collect());
    }
    let _ = std::fs::remove_file("/dev/shm/memhook-papers-heaptrack.zst");
    let _ = std::fs::remove_file("/dev/shm/memhook-papers-heaptrack.gz");
    sheets.add(&sheet);
    Ok(())
}
