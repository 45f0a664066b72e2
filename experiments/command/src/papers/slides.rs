//! Sharma, "Dynamic Tracing in Userspace": measures many calls of a function that increments a variable, with and
//! without a probe at its entry, and the time to place the probe.

use super::sheet::{Sheet, Sheets, number};
use memhook_measurements::uprobe::address;
use memhook_measurements::{
    FastTracepoint, FunctionProbe, Measured, Spread, build, differences, in_process_agent,
    placement, ratios,
};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Number of calls in the slides: ten billion.
const THEIR_CALLS: f64 = 1e10;
/// Number of alternating rounds with and without a probe, and the milliseconds of each round. All rounds without a
/// probe together make about ten billion calls.
const ROUNDS: usize = 15;
const ROUND_MS: f64 = 400.0;
/// gdbserver's agent collects each call, even without a requested action, until its buffer of 5 MiB is full.
const COLLECTED_MS: f64 = 2.0;
const FULL_AT: u64 = 873_812;

/// Nanoseconds per call without and with the probe, and the milliseconds to place it.
type Rounds = Vec<[f64; 3]>;

fn ns(target: &mut Measured, ms: f64) -> Result<f64, String> {
    target.send(ms)?;
    target.figures()?.first().copied().ok_or("no answer".into())
}

fn probed(target: &mut Measured, probe: FunctionProbe, ms: f64) -> Result<Rounds, String> {
    let mut found = Vec::new();
    for _ in 0..ROUNDS {
        let without = ns(target, ms)?;
        let (placed, time) = probe.place(target, "bar")?;
        let with = ns(target, ms)?;
        if placed.finish()? == 0 {
            return Err("it has counted nothing".into());
        }
        found.push([without, with, time.as_secs_f64() * 1e3]);
    }
    Ok(found)
}

/// Measures a fast tracepoint without actions, as in the slides.
fn gdbserver(processors: &str) -> Result<Rounds, String> {
    let agent = in_process_agent()?;
    // gdbserver's jumps cannot reach a position-independent program, and replace an instruction of five bytes.
    let flags = ["-no-pie", "-rdynamic", "-DFIVE_BYTES"];
    let program = build("bar", &flags);
    let mut plain = Measured::start(&program, &["1"], processors);
    let mut command = Command::new("taskset");
    let preload = format!("LD_PRELOAD={}", agent.display());
    command.args(["-c", processors, "env", &preload]);
    let mut traced = Measured::run(command.process_group(0).arg(&program).arg("1"));
    let at = address(traced.pid() as i32, "bar")?;
    let (tracepoint, time) = FastTracepoint::place(traced.pid(), &agent, at)?;
    let placed = time.as_secs_f64() * 1e3;
    let one = |_| {
        Ok([
            ns(&mut plain, COLLECTED_MS)?,
            ns(&mut traced, COLLECTED_MS)?,
            placed,
        ])
    };
    let found = (0..5).map(one).collect();
    match tracepoint.finish()? {
        0 => Err("it has collected nothing".into()),
        hits if hits >= FULL_AT => Err("its buffer was full".into()),
        _ => found,
    }
}

fn add(sheet: &mut Sheet, name: &str, found: Result<Rounds, String>) {
    let cells = match found {
        Err(why) => {
            let why = why.lines().next().unwrap_or_default().to_owned();
            let mut cells = vec![why];
            cells.resize(6, "-".into());
            cells
        }
        Ok(found) => {
            let column = |at: usize| found.iter().map(|row| row[at]).collect::<Vec<f64>>();
            let median = |all: Option<Spread>| all.map_or(f64::NAN, |spread| spread.median);
            let (without, with) = (column(0), column(1));
            let added = median(differences(&without, &with));
            let percent = (median(ratios(&without, &with)) - 1.0) * 100.0;
            vec![
                number(median(Spread::of(without.clone()))),
                number(added),
                format!("{percent:.1} %"),
                number(median(Spread::of(without)) * THEIR_CALLS / 1e9),
                number(added * THEIR_CALLS / 1e9),
                number(median(Spread::of(column(2)))),
            ]
        }
    };
    sheet.row(std::iter::once(name.to_owned()).chain(cells).collect());
}

pub fn run(sheets: &mut Sheets) -> Result<(), String> {
    let place = placement();
    let program = build("increment", &["-rdynamic"]);
    let mut target = Measured::start(&program, &[], &place.target);
    let mut sheet = Sheet::new(
        "A function that increments a variable",
        &[
            "tool",
            "untraced, ns a call",
            "added, ns a call",
            "longer by",
            "10^10 calls untraced, s",
            "added to 10^10 calls, s",
            "to place it, ms",
        ],
    );
    for (probe, ms) in [
        (FunctionProbe::Count, ROUND_MS),
        (FunctionProbe::Arguments, ROUND_MS),
        (FunctionProbe::Stack, ROUND_MS),
        (FunctionProbe::Uprobe, 50.0),
    ] {
        let found = probed(&mut target, probe, ms);
        add(&mut sheet, probe.name(), found);
    }
    drop(target);
    add(
        &mut sheet,
        "gdbserver, fast tracepoint",
        gdbserver(&place.target),
    );
    sheets.add(&sheet);
    sheets.say(
        "Seconds for ten billion calls are the nanoseconds of a call times ten billion; a round has \
         as many calls as fit into its time.",
    );
    Ok(())
}
