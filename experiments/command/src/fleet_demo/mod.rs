//! `cargo experiment fleet-demo`: runs two hosts, each with services and an agent, and as stores Prometheus, an
//! OpenTelemetry Collector and a receiver for Pyroscope's API. Checks that the same data arrives in all stores.

mod arrived;
mod chart;
mod hosts;
mod servers;

use anyhow::{Context, Result, ensure};
use arrived::{Arrived, SITE};
use hosts::Host;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Mean bytes between samples, as in the agents' configurations.
const SAMPLE_BYTES: f64 = 65_536.0;
/// Bytes that one request leaks in the planted program (tests/targets/served.cc).
const LEAK_BYTES: u64 = 100_000;

#[derive(clap::Args)]
pub struct Args {
    /// Duration of the hosts' work in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Output directory for the received data and the plot
    #[arg(long, default_value = "target/fleet/demo")]
    out: PathBuf,
}

pub fn run(args: &Args) -> ExitCode {
    match demonstrate(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fleet-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a program to completion. Prints its output if it fails.
fn run_well(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?}: {}: {text}{errors}",
        output.status
    );
    Ok(text)
}

fn demonstrate(args: &Args) -> Result<()> {
    let is_root = std::fs::read_to_string("/proc/self/status")?
        .lines()
        .any(|line| line.starts_with("Uid:\t0\t"));
    ensure!(is_root, "network namespaces need root");
    let out = std::path::absolute(&args.out)?;
    if out.exists() {
        std::fs::remove_dir_all(&out).context("cannot remove what an earlier run left")?;
    }
    std::fs::create_dir_all(&out)?;
    let programs = servers::build(&crate::root().canonicalize()?)?;
    // PostgreSQL does not run as root, and its user must be able to read its files.
    let work = std::env::temp_dir().join(format!("memhook-fleet-{}", std::process::id()));
    std::fs::create_dir_all(&work)?;
    let result = show(args, &programs, &work, &out);
    let _ = std::fs::remove_dir_all(&work);
    result
}

fn show(args: &Args, programs: &servers::Programs, work: &Path, out: &Path) -> Result<()> {
    let network = hosts::Network::new()?;
    let servers = servers::start(programs, &network, out)?;
    let (mut running, mut began) = (Vec::new(), None);
    for number in 0..hosts::NAMES.len() {
        running.push(Host::start(number, work)?);
        began.get_or_insert_with(SystemTime::now);
    }
    let began = began.context("there are no hosts")?;
    println!("the hosts work for {} s", args.seconds);
    let until = Instant::now() + Duration::from_secs(args.seconds);
    while Instant::now() < until {
        for host in &mut running {
            host.expect_alive()?;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let targets = servers.query("sum by (instance) (memhook_agent_targets{phase=\"traced\"})")?;
    let rules = servers.rules()?;
    let mut leaked = Vec::new();
    for host in running {
        leaked.push(host.finish(out)? * LEAK_BYTES);
    }
    // The collector and the receiver write received data within 2 s.
    std::thread::sleep(Duration::from_secs(2));
    let span = (unix(began), unix(SystemTime::now()));
    chart::draw(&servers, span, &out.join("dashboard.svg"))?;
    drop(servers);
    println!("targets that were traced, by host: {targets}");
    println!("alert rules: {rules}");
    let places = [
        Arrived::at_collector(&out.join("collector.jsonl"))?,
        Arrived::at_receiver(&out.join("receiver.jsonl"))?,
        Arrived::in_files(out)?,
    ];
    for (number, host) in hosts::NAMES.iter().enumerate() {
        compare(host, leaked[number], &places)?;
    }
    println!("the picture is {}", out.join("dashboard.svg").display());
    Ok(())
}

/// Compares the data of one host in all stores.
fn compare(host: &str, leaked: u64, places: &[Arrived; 3]) -> Result<()> {
    println!("\nhost {host}: {leaked} bytes were leaked by {SITE}");
    let [collector, receiver, files] = places;
    for service in files.services(host) {
        let sums = places
            .each_ref()
            .map(|place| place.allocated(host, &service).1);
        let profiles = files.allocated(host, &service).0;
        println!(
            "  {service}: {profiles} profiles, {} bytes allocated",
            sums[2]
        );
        // The number of profiles may differ, because a collector drops profiles of times without activity.
        ensure!(
            sums[0] == sums[2] && sums[1] == sums[2],
            "{service}: the collector has {}, the receiver {}, the files {} bytes",
            sums[0],
            sums[1],
            sums[2]
        );
    }
    // Four standard deviations of an estimate from samples, for blocks that are small compared with the sampling
    // distance.
    let error = 4.0 * (leaked as f64 * SAMPLE_BYTES).sqrt();
    for (name, place) in [("collector", collector), ("Pyroscope receiver", receiver)] {
        println!("  live at the {name}, largest first:");
        let sites = place.largest(host);
        for (rank, (service, site, bytes)) in sites.iter().take(5).enumerate() {
            println!("  {:>4}. {bytes:>12}  {service}: {site}", rank + 1);
        }
        let (service, site, bytes) = sites.first().context("nothing arrived")?;
        ensure!(
            (service.as_str(), site.as_str()) == ("leak", SITE),
            "{site} of {service} is on top"
        );
        let off = *bytes as f64 - leaked as f64;
        ensure!(
            off.abs() <= error,
            "{bytes} bytes instead of {leaked}, off by more than {error:.0}"
        );
        println!(
            "        {:+.1} % off, four standard deviations are {:.1} %",
            100.0 * off / leaked as f64,
            100.0 * error / leaked as f64
        );
    }
    Ok(())
}

fn unix(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}
