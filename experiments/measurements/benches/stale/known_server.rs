//! Compares the report on a server with the untouched bytes that the server itself counts.

use super::{attached, report};
use memhook_measurements::build;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

const SITES: [&str; 6] = [
    "never_touched",
    "always_touched",
    "half_touched",
    "each_5_seconds",
    "each_20_seconds",
    "each_60_seconds",
];
const OLDER_S: u32 = 30;

/// Runs the comparison.
pub fn measure() {
    let program = build("cold", &["-O1", "-g"]);
    println!(
        "{:<8} {:<16} {:>9} {:>9} {:>9} {:>9}  inside  precision recall",
        "budget", "site", "truth KB", "estimate", "low", "high"
    );
    for budget in ["0.1%", "1%", "5%"] {
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program");
        let mut input = child.stdin.take().expect("piped");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("ready");
        let (pid, older) = (child.id().to_string(), format!("{OLDER_S}s"));
        let arguments = [
            "stale", &pid, "--older", &older, "-d", "65s", "--budget", budget, "--json", "-T",
            "100",
        ];
        let stale = attached(&arguments);
        input.write_all(b"\n").expect("it listens");
        output.read_line(&mut line).expect("made");
        let report = report(stale);
        writeln!(input, "{OLDER_S}").expect("it listens");
        line.clear();
        output.read_line(&mut line).expect("an answer");
        let truth: Vec<f64> = line
            .split_whitespace()
            .map(|n| n.parse().expect("a number"))
            .collect();
        drop(input);
        assert!(child.wait().expect("it ends").success());
        for (at, name) in SITES.iter().enumerate() {
            row(budget, name, truth[at], &report);
        }
        println!(
            "{budget:<8} took {:.3} % of the time",
            report["cost"].as_f64().unwrap_or(0.0) * 100.0
        );
    }
}

fn row(budget: &str, name: &str, truth: f64, report: &Value) {
    let sites = report["sites"].as_array().expect("sites");
    let of_site = sites
        .iter()
        .find(|site| site["stack"].to_string().contains(&format!("\"{name}")));
    let number = |field: &str| {
        of_site
            .and_then(|site| site[field].as_f64())
            .unwrap_or(f64::NAN)
    };
    let (estimate, low, high) = (
        number("stale_bytes"),
        number("stale_bytes_low"),
        number("stale_bytes_high"),
    );
    // If there are no stale bytes, none were missed.
    let share = |of: f64| {
        if of > 0.0 {
            estimate.min(truth) / of
        } else {
            1.0
        }
    };
    println!(
        "{budget:<8} {name:<16} {:>9.0} {:>9.0} {:>9.0} {:>9.0}  {:<6}  {:>9.2} {:>6.2}",
        truth / 1024.0,
        estimate / 1024.0,
        low / 1024.0,
        high / 1024.0,
        (low..=high).contains(&truth),
        share(estimate),
        share(truth)
    );
}
