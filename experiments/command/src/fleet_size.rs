//! `cargo experiment fleet-size`: computes the load of a profile store with many hosts, by replaying the pushes that a
//! receiver got from a few hosts.
//!
//! docs/fleet-costs.md calculates the same load. This program simulates every push. The hosts start at different times.
//! The store is unavailable for some time. Afterwards, all hosts send the pushes that are queued on their disks.

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Shortest and longest pause of a sender (crates/agent/src/send/store.rs), in seconds.
const FIRST_PAUSE: f64 = 0.5;
const LONGEST_PAUSE: f64 = 120.0;
/// Duration of a request to an available store, in seconds.
const SENDING: f64 = 0.05;

#[derive(clap::Args)]
pub struct Args {
    /// Output file of the receiver of `cargo experiment fleet-demo`
    #[arg(long, default_value = "target/fleet/demo/receiver.jsonl")]
    recorded: PathBuf,
    #[arg(long, default_value_t = 10_000)]
    hosts: u64,
    /// Targets of each host
    #[arg(long, default_value_t = 10)]
    targets: u64,
    /// Seconds between two profiles of a target
    #[arg(long, default_value_t = 60)]
    interval: u64,
    /// Simulated time in seconds
    #[arg(long, default_value_t = 4 * 3600)]
    seconds: u64,
    /// Seconds for which the store is unavailable, from a quarter of the simulated time
    #[arg(long, default_value_t = 3600)]
    away: u64,
    /// Maximum size of the queue on a host's disk, in bytes
    #[arg(long, default_value_t = 64 << 20)]
    queue: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn run(args: &Args) -> ExitCode {
    match recorded(&args.recorded).and_then(|pushes| simulate(args, &pushes)) {
        Ok(fleet) => match fleet.tell(args) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        },
        Err(error) => {
            eprintln!("fleet-size: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the sizes of the pushes of each service of each host, in order.
fn recorded(path: &Path) -> Result<Vec<Vec<u64>>> {
    let hint = || {
        format!(
            "cannot read {}: run cargo experiment fleet-demo",
            path.display()
        )
    };
    let text = std::fs::read_to_string(path).with_context(hint)?;
    let mut series: BTreeMap<(String, String), Vec<u64>> = BTreeMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line)?;
        let label = |name: &str| line["labels"][name].as_str().unwrap_or_default().to_owned();
        let sizes = series
            .entry((label("host"), label("service_name")))
            .or_default();
        let bytes = line["bytes"].as_u64().unwrap_or(0);
        // A push has two profiles: live and allocated memory.
        match sizes.last_mut() {
            Some(last) if line["sums"].get("alloc_space").is_some() => *last += bytes,
            _ => sizes.push(bytes),
        }
    }
    ensure!(!series.is_empty(), "{} has no pushes", path.display());
    Ok(series.into_values().collect())
}

/// Results of the store and the hosts.
struct Fleet {
    /// Pushes and bytes in each second.
    seconds: Vec<(u64, u64)>,
    /// Number of generated pushes, and their bytes.
    made: (u64, u64),
    dropped: u64,
    most_waiting: u64,
    /// Time at which the last host had emptied its queue after the outage.
    caught_up: f64,
}

fn simulate(args: &Args, recorded: &[Vec<u64>]) -> Result<Fleet> {
    ensure!(
        args.interval > 0 && args.hosts > 0 && args.targets > 0,
        "nothing is to be simulated"
    );
    let mut random = Rng::with_seed(args.seed);
    let mut fleet = Fleet {
        seconds: vec![(0, 0); args.seconds as usize],
        made: (0, 0),
        dropped: 0,
        most_waiting: 0,
        caught_up: 0.0,
    };
    let gone = (args.seconds / 4) as f64;
    let back = gone + args.away as f64;
    for _ in 0..args.hosts {
        let pushes = one_host(args, recorded, &mut random);
        fleet.made.0 += pushes.len() as u64;
        fleet.made.1 += pushes.iter().map(|(_, bytes)| bytes).sum::<u64>();
        fleet.send(pushes, (gone, back), args.queue, &mut random);
    }
    Ok(fleet)
}

/// Returns the times and sizes of a host's pushes, in order.
fn one_host(args: &Args, recorded: &[Vec<u64>], random: &mut Rng) -> Vec<(f64, u64)> {
    let mut pushes = Vec::new();
    for _ in 0..args.targets {
        let sizes = &recorded[random.usize(..recorded.len())];
        let mut place = random.usize(..);
        let mut at = random.f64() * args.interval as f64;
        while at < args.seconds as f64 {
            pushes.push((at, sizes[place % sizes.len()]));
            place += 1;
            at += args.interval as f64;
        }
    }
    pushes.sort_by(|a, b| a.0.total_cmp(&b.0));
    pushes
}

impl Fleet {
    /// Simulates the sender of a host, which sends the oldest push first and pauses while the store is unavailable.
    fn send(&mut self, pushes: Vec<(f64, u64)>, away: (f64, f64), queue: u64, random: &mut Rng) {
        let mut waiting = std::collections::VecDeque::new();
        let mut bytes_waiting = 0;
        let mut made = pushes.into_iter().peekable();
        let (mut now, mut pause) = (0.0f64, FIRST_PAUSE);
        let mut has_caught_up = false;
        loop {
            while let Some((_, bytes)) = made.next_if(|(at, _)| *at <= now) {
                waiting.push_back(bytes);
                bytes_waiting += bytes;
                while bytes_waiting > queue {
                    bytes_waiting -= waiting.pop_front().unwrap_or(0);
                    self.dropped += 1;
                }
                self.most_waiting = self.most_waiting.max(bytes_waiting);
            }
            let Some(&bytes) = waiting.front() else {
                match made.peek() {
                    Some((at, _)) => now = *at,
                    None => return,
                }
                continue;
            };
            if (away.0..away.1).contains(&now) {
                now += pause * (0.5 + 0.5 * random.f64());
                pause = (pause * 2.0).min(LONGEST_PAUSE);
                continue;
            }
            pause = FIRST_PAUSE;
            let Some(second) = self.seconds.get_mut(now as usize) else {
                return;
            };
            *second = (second.0 + 1, second.1 + bytes);
            waiting.pop_front();
            bytes_waiting -= bytes;
            now += SENDING;
            if waiting.is_empty() && now > away.1 && !has_caught_up {
                has_caught_up = true;
                self.caught_up = self.caught_up.max(now - away.1);
            }
        }
    }

    /// Prints the results next to the calculation of docs/fleet-costs.md. Returns true if both agree.
    fn tell(&self, args: &Args) -> bool {
        let quiet = &self.seconds[args.interval as usize..(args.seconds / 4) as usize];
        let mean = |of: fn(&(u64, u64)) -> u64| {
            quiet.iter().map(of).sum::<u64>() as f64 / quiet.len() as f64
        };
        let (pushes, bytes) = (mean(|second| second.0), mean(|second| second.1));
        let size = self.made.1 as f64 / self.made.0 as f64;
        let expected = (args.hosts * args.targets) as f64 / args.interval as f64;
        let most = |of: &[(u64, u64)]| {
            let pushes = of.iter().map(|second| second.0).max().unwrap_or(0);
            let bytes = of.iter().map(|second| second.1).max().unwrap_or(0);
            (pushes, bytes as f64 / 1e6)
        };
        let (usual, all) = (most(quiet), most(&self.seconds));
        println!("a push has {size:.0} bytes on average, as recorded");
        println!(
            "by the calculation: {expected:.0} pushes, {:.2} MB a second, {:.0} GB a day",
            expected * size / 1e6,
            expected * size * 86_400.0 / 1e9
        );
        println!(
            "simulated: {pushes:.0} pushes, {:.2} MB a second; at most {} pushes, {:.2} MB",
            bytes / 1e6,
            usual.0,
            usual.1
        );
        println!(
            "after {} s without a store: at most {} pushes, {:.2} MB a second, all sent {:.0} s later; {:.1} MB waited on a host, {} pushes were dropped",
            args.away,
            all.0,
            all.1,
            self.caught_up,
            self.most_waiting as f64 / 1e6,
            self.dropped
        );
        let agree = |a: f64, b: f64| (a / b - 1.0).abs() < 0.05;
        agree(pushes, expected) && agree(bytes, expected * size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(queue: u64) -> Args {
        Args {
            recorded: PathBuf::new(),
            hosts: 50,
            targets: 4,
            interval: 10,
            seconds: 2000,
            away: 500,
            queue,
            seed: 7,
        }
    }

    #[test]
    fn nothing_is_lost_unless_the_queue_is_full() {
        let recorded = [vec![100, 200], vec![300]];
        let fleet = simulate(&args(1 << 20), &recorded).expect("possible");
        let sent: u64 = fleet.seconds.iter().map(|second| second.0).sum();
        assert_eq!((fleet.dropped, fleet.made.0), (0, 50 * 4 * 200));
        // The last pushes are still being sent.
        assert!(fleet.made.0 - sent < 10, "{sent}");
        let away = &fleet.seconds[500..1000];
        assert!(away.iter().all(|second| *second == (0, 0)));
        assert!(fleet.tell(&args(1 << 20)));
        assert!(
            fleet.caught_up > 0.0 && fleet.caught_up <= 150.0,
            "{}",
            fleet.caught_up
        );
        let fleet = simulate(&args(10_000), &recorded).expect("possible");
        assert!(fleet.dropped > 0 && fleet.most_waiting <= 10_000);
    }
}
