//! Cost of a probe on a function that a loop calls to increment a counter, and the time to place the probe. Rounds with
//! and without each tool alternate in one process. uftrace must start its program, so its rounds use a second process
//! without uftrace.
//!
//! `cargo measure probes`

use memhook_measurements::uprobe::address;
use memhook_measurements::{
    FastTracepoint, FunctionProbe, Measured, Spread, bind_to, build, differences, in_process_agent,
    is_test, place_many, placement, ratios,
};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Milliseconds of a round, and number of rounds.
const ROUND_MS: f64 = 100.0;
const ROUNDS: usize = 15;
/// Milliseconds of a round for a tool that writes megabytes per millisecond.
const WRITTEN_MS: f64 = 20.0;
const WRITTEN_ROUNDS: usize = 5;
const FUNCTION: &str = "bar";
const MANY: (&str, usize) = ("many_*", 1000);
/// Milliseconds of a round for a tool whose buffer is soon full.
const COLLECTED_MS: f64 = 2.0;
/// Number of calls that fill the 5 MiB buffer of gdbserver's agent.
const FULL_AT: u64 = 873_812;

/// Runs one round. Returns the nanoseconds per call without and with the probe, and the milliseconds to place the
/// probe.
fn round(target: &mut Measured, probe: FunctionProbe, ms: f64) -> Result<[f64; 3], String> {
    let without = ns(target, ms)?;
    let (placed, time) = probe.place(target, FUNCTION)?;
    let with = ns(target, ms)?;
    match placed.finish()? {
        0 => Err("it has counted nothing".into()),
        _ => Ok([without, with, time.as_secs_f64() * 1e3]),
    }
}

fn ns(target: &mut Measured, ms: f64) -> Result<f64, String> {
    target.send(ms)?;
    target.figures()?.first().copied().ok_or("no answer".into())
}

fn median(spread: Option<Spread>) -> f64 {
    spread.map_or(f64::NAN, |spread| spread.median)
}

/// Prints a row of the table.
fn print(name: &str, found: Result<Vec<[f64; 3]>, String>) {
    let found = match found {
        Ok(found) => found,
        Err(why) => {
            println!("{name:<44} not measured: {}", why.trim_end());
            return;
        }
    };
    let column = |n: usize| -> Vec<f64> { found.iter().map(|row| row[n]).collect() };
    let (without, with) = (column(0), column(1));
    println!(
        "{name:<44} {:>10.2} {:>+9.1} % {:>12.2} {:>12.1}",
        median(Spread::of(without.clone())),
        (median(ratios(&without, &with)) - 1.0) * 100.0,
        median(differences(&without, &with)),
        median(Spread::of(column(2))),
    );
}

/// Measures uftrace, which runs a specially compiled program, and traces entries and returns.
fn uftrace(processors: &str, rounds: usize, ms: f64) -> Result<Vec<[f64; 3]>, String> {
    let is_there = Command::new("uftrace").arg("--version").output();
    is_there.map_err(|error| format!("uftrace cannot be run: {error}"))?;
    let program = build("bar", &[]);
    let traceable = build("bar", &["-pg"]);
    let data = memhook_measurements::output_folder().join("uftrace.data");
    let mut plain = Measured::start(&program, &["1"], processors);
    let mut command = Command::new("taskset");
    command
        .args([
            "-c",
            processors,
            "uftrace",
            "record",
            "--no-libcall",
            "-F",
            FUNCTION,
            "-d",
        ])
        .arg(&data)
        .arg(&traceable)
        .arg("1");
    let mut traced = Measured::run(&mut command);
    let found = (0..rounds)
        .map(|_| Ok([ns(&mut plain, ms)?, ns(&mut traced, ms)?, f64::NAN]))
        .collect();
    drop(traced);
    let files = std::fs::read_dir(&data).into_iter().flatten().flatten();
    let events = files.filter(|file| file.path().extension().is_some_and(|e| e == "dat"));
    let recorded: u64 = events
        .filter_map(|file| Some(file.metadata().ok()?.len()))
        .sum();
    let _ = std::fs::remove_dir_all(&data);
    match recorded {
        0 => Err("uftrace has recorded nothing".into()),
        _ => found,
    }
}

/// Measures a fast tracepoint without actions, which collects each call until its buffer is full. The calls of a round
/// do not fill the buffer.
fn gdbserver(processors: &str, rounds: usize, ms: f64) -> Result<Vec<[f64; 3]>, String> {
    let agent = in_process_agent()?;
    // gdbserver's jumps cannot reach a position-independent program.
    let flags = ["-no-pie", "-rdynamic", "-DFIVE_BYTES"];
    let program = build("bar", &flags);
    let mut plain = Measured::start(&program, &["1"], processors);
    let mut command = Command::new("taskset");
    let preload = format!("LD_PRELOAD={}", agent.display());
    command
        .args(["-c", processors, "env", &preload])
        .process_group(0);
    let mut traced = Measured::run(command.arg(&program).arg("1"));
    let address = address(traced.pid() as i32, FUNCTION)?;
    let (tracepoint, time) = FastTracepoint::place(traced.pid(), &agent, address)?;
    let placed = time.as_secs_f64() * 1e3;
    let found = (0..rounds)
        .map(|_| Ok([ns(&mut plain, ms)?, ns(&mut traced, ms)?, placed]))
        .collect();
    match tracepoint.finish()? {
        0 => Err("it has collected nothing".into()),
        hits if hits >= FULL_AT => Err("its buffer was full".into()),
        _ => found,
    }
}

fn main() {
    let (rounds, ms) = if is_test() {
        (1, 5.0)
    } else {
        (ROUNDS, ROUND_MS)
    };
    let place = placement();
    bind_to(&place.rest);
    let program = build("bar", &["-rdynamic"]);
    let mut target = Measured::start(&program, &["1"], &place.target);
    println!(
        "{:<44} {:>10} {:>11} {:>12} {:>12}",
        "tool", "ns before", "the loop", "ns a call", "ms to place"
    );
    for probe in FunctionProbe::ALL {
        let found = (0..rounds).map(|_| round(&mut target, probe, ms)).collect();
        print(probe.name(), found);
    }
    let (written_rounds, written_ms) = (rounds.min(WRITTEN_ROUNDS), ms.min(WRITTEN_MS));
    print(
        "uftrace",
        uftrace(&place.target, written_rounds, written_ms),
    );
    print(
        "gdbserver, fast tracepoint",
        gdbserver(&place.target, written_rounds, ms.min(COLLECTED_MS)),
    );
    // The function of Sharma's slides (`docs/papers.md`), which contains only an increment.
    let increment = build("increment", &["-rdynamic"]);
    let mut plain = Measured::start(&increment, &[], &place.target);
    for probe in [
        FunctionProbe::Count,
        FunctionProbe::Arguments,
        FunctionProbe::Stack,
    ] {
        let found = (0..rounds).map(|_| round(&mut plain, probe, ms)).collect();
        print(&format!("an increment: {}", probe.name()), found);
    }
    // Two threads on separate processors, which write to no common cache line.
    let mut two = Measured::start(&program, &["2"], &place.all);
    for probe in [FunctionProbe::Count, FunctionProbe::Stack] {
        let found = (0..rounds).map(|_| round(&mut two, probe, ms)).collect();
        print(&format!("two threads: {}", probe.name()), found);
    }
    let (names, count) = MANY;
    let times = (0..rounds)
        .map(|_| place_many(target.pid(), names, count))
        .collect::<Result<Vec<_>, _>>();
    match times {
        Err(why) => println!("{count} probes: not measured: {why}"),
        Ok(times) => {
            let column = |n: usize| median(Spread::of(times.iter().map(|time| time[n]).collect()));
            println!(
                "{count} probes are placed in {:.1} ms, all threads held for {:.2} ms",
                column(0),
                column(1)
            );
        }
    }
}
