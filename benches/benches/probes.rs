//! What a probe costs a loop that calls a function that increments a counter, and how long it takes to place one.
//! Rounds with and without each tool alternate, in one process.
//!
//! `cargo bench -p memhook-benches --bench probes`

use memhook_benches::{
    FunctionProbe, Measured, Spread, bind_to, build, differences, is_test, placement, ratios,
};

/// Milliseconds of a round, and rounds.
const ROUND_MS: f64 = 100.0;
const ROUNDS: usize = 15;
const FUNCTION: &str = "bar";

/// One round: nanoseconds a call without the probe and with it, and milliseconds to place it.
fn round(target: &mut Measured, probe: FunctionProbe, ms: f64) -> Result<[f64; 3], String> {
    let ns = |target: &mut Measured| -> Result<f64, String> {
        target.send(ms)?;
        target.figures()?.first().copied().ok_or("no answer".into())
    };
    let without = ns(target)?;
    let (placed, time) = probe.place(target, FUNCTION)?;
    let with = ns(target)?;
    match placed.finish()? {
        0 => Err("it has counted nothing".into()),
        _ => Ok([without, with, time.as_secs_f64() * 1e3]),
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
        "{:<32} {:>10} {:>12} {:>12}",
        "tool", "the loop", "ns a call", "ms to place"
    );
    for probe in FunctionProbe::ALL {
        let found: Result<Vec<[f64; 3]>, String> =
            (0..rounds).map(|_| round(&mut target, probe, ms)).collect();
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                println!("{:<32} not measured: {}", probe.name(), why.trim_end());
                continue;
            }
        };
        let column = |n: usize| -> Vec<f64> { found.iter().map(|row| row[n]).collect() };
        let (without, with) = (column(0), column(1));
        let median = |spread: Option<Spread>| spread.map_or(f64::NAN, |spread| spread.median);
        println!(
            "{:<32} {:>+9.1} % {:>12.2} {:>12.1}",
            probe.name(),
            (median(ratios(&without, &with)) - 1.0) * 100.0,
            median(differences(&without, &with)),
            median(Spread::of(column(2))),
        );
    }
}
