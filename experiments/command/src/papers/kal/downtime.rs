//! Time for which a process is stopped for a snapshot, compared with a stop and copy of the same process (the downtimes
//! of figures 8 and 10).

use super::super::held::Copier;
use super::super::scanner::{Search, scan};
use super::super::sheet::{Sheet, Sheets, number};
use memhook_measurements::{Spread, placement, ratios};
use memhook_tests::{Target, build_target};
use std::process::Command;

const ROUNDS: usize = 7;
/// Name, number of blocks, mean payload in bytes, megabytes written per second.
const WORKS: [(&str, [&str; 3]); 4] = [
    ("10 MB, idle", ["90000", "72", "0"]),
    ("10 MB, writing 100 MB/s", ["90000", "72", "100"]),
    ("100 MB, writing 100 MB/s", ["900000", "72", "100"]),
    ("1 GB, writing 100 MB/s", ["7000000", "110", "100"]),
];

/// Starts a `scan_graph` of this size on the target's processor.
pub fn graph(arguments: &[&str]) -> Target {
    let program = build_target("scan_graph", &[]);
    let mut command = Command::new("taskset");
    command.args(["-c", &placement().target]).arg(program);
    Target::run(command.args(arguments))
}

pub fn run(sheets: &mut Sheets) -> Result<(), String> {
    let mut sheet = Sheet::new(
        "Milliseconds for which all threads are stopped, medians (longest)",
        &[
            "process",
            "MB read by stop and copy",
            "stop and copy",
            "scan, precopy",
            "stop and copy / scan",
            "scan --snapshot stop",
        ],
    );
    for (name, arguments) in WORKS {
        let target = graph(&arguments);
        let pid = target.pid();
        let mut copier = Copier::with_room(1600 << 20);
        let [mut stopped, mut held, mut whole, mut bytes] = [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            let copy = copier.copy(pid)?;
            stopped.push(copy.held_ms);
            bytes.push(copy.bytes / 1e6);
            held.push(scan(pid, Search::Here, &[])?.held_ms);
            let options = ["--snapshot", "stop", "--max-hold", "5s"];
            whole.push(scan(pid, Search::Here, &options)?.held_ms);
        }
        let spread = |all: &Vec<f64>| {
            let longest = all.iter().copied().fold(f64::NAN, f64::max);
            let median = Spread::of(all.clone()).map_or(f64::NAN, |spread| spread.median);
            format!("{} ({})", number(median), number(longest))
        };
        let ratio = ratios(&held, &stopped).map_or(f64::NAN, |spread| spread.median);
        let megabytes = Spread::of(bytes).map_or(f64::NAN, |spread| spread.median);
        sheet.row(vec![
            name.to_owned(),
            number(megabytes),
            spread(&stopped),
            spread(&held),
            number(ratio),
            spread(&whole),
        ]);
        if !target.finish().success() {
            return Err("the target's own check failed".into());
        }
    }
    sheets.add(&sheet);
    Ok(())
}
