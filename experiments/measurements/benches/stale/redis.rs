//! Watches a redis-server with a million keys, of which one in ten is read. Measures the share that is reported as
//! cold, and the effect of watching on clients.

use super::{attached, ended, report};
use memhook_measurements::{Spread, bind_to, placement};
use memhook_tests::Target;
use memhook_tests::programs::{Client, Folder, installed, server};
use std::process::Command;
use std::time::{Duration, Instant};

const KEYS: u32 = 1_000_000;
const READ: u32 = KEYS / 10;
const VALUE_BYTES: u32 = 200;
const BUDGET: &str = "1%";
const OLDER: Duration = Duration::from_secs(30);
/// Time in which the threshold passes twice after all keys are set.
const WATCHED: Duration = Duration::from_secs(110);
/// Rounds with and without watching, and the duration of the load in each.
const ROUNDS: usize = 8;
const ROUND: Duration = Duration::from_secs(12);

struct Loaded {
    target: Target,
    client: Client,
    socket: String,
    _folder: Folder,
}

impl Loaded {
    fn start() -> Loaded {
        let folder = Folder::new("stale-redis");
        let socket = folder.path("socket");
        let mut command = placement().command(&installed("redis-server"));
        command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
        command.args(["--loglevel", "warning", "--unixsocket", &socket]);
        // One script creates all keys, and may take long.
        command.args(["--busy-reply-threshold", "0"]);
        let target = server(&mut command, &socket);
        Loaded {
            client: Client::connect(&socket),
            target,
            socket,
            _folder: folder,
        }
    }

    fn pid(&self) -> String {
        self.target.pid().to_string()
    }

    /// Sets the keys, with the names that redis-benchmark uses.
    fn fill(&mut self) {
        let script = format!(
            "for i=0,{} do redis.call('SET', string.format('key:%012d', i), string.rep('x', {VALUE_BYTES})) end",
            KEYS - 1
        );
        let length = script.len();
        self.client.send(&format!(
            "*3\r\n$4\r\nEVAL\r\n${length}\r\n{script}\r\n$1\r\n0\r\n"
        ));
        self.client.line();
        assert_eq!(self.client.redis("DBSIZE"), format!(":{KEYS}"));
    }

    /// Returns the processor time of the server's main thread so far, in nanoseconds (the first number of schedstat,
    /// Documentation/scheduler/sched-stats.rst in the kernel's sources).
    fn cpu_ns(&self) -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{}/schedstat", self.pid()));
        let text = text.expect("it lives");
        let first = text
            .split(' ')
            .next()
            .and_then(|number| number.parse().ok());
        first.expect("a number")
    }

    /// Reads a subset of the keys at random for this time. Returns the nanoseconds of processor time per request.
    fn read(&self, time: Duration) -> f64 {
        const REQUESTS: u32 = 200_000;
        let (begun, cpu_ns) = (Instant::now(), self.cpu_ns());
        let mut requests = 0;
        while begun.elapsed() < time {
            let status = Command::new(installed("redis-benchmark"))
                .args(["-s", &self.socket, "-c", "20", "-q", "-P", "4"])
                .args(["-r", &READ.to_string(), "-n", &REQUESTS.to_string()])
                .args(["GET", "key:__rand_int__"])
                .output()
                .expect("redis-benchmark");
            assert!(status.status.success(), "{status:?}");
            requests += REQUESTS;
        }
        (self.cpu_ns() - cpu_ns) / f64::from(requests)
    }
}

pub fn measure() {
    bind_to(&placement().rest);
    cold_share();
    price();
}

/// Measures the reported share of cold values. Nine in ten values are never read.
fn cold_share() {
    let mut redis = Loaded::start();
    let (pid, older) = (redis.pid(), format!("{}s", OLDER.as_secs()));
    let watched = format!("{}s", WATCHED.as_secs());
    let stale = attached(&[
        "stale", &pid, "--older", &older, "-d", &watched, "--budget", BUDGET, "--json", "-T", "100",
    ]);
    let begun = Instant::now();
    redis.fill();
    redis.read(WATCHED.saturating_sub(begun.elapsed()));
    let report = report(stale);
    // The values are the largest site.
    let sites = report["sites"].as_array().expect("sites").iter();
    let values = sites.max_by_key(|site| site["live_bytes"].as_u64());
    let number = |field: &str| {
        values
            .and_then(|site| site[field].as_f64())
            .unwrap_or(f64::NAN)
    };
    let truth = number("live_bytes") * f64::from(KEYS - READ) / f64::from(KEYS);
    let [low, estimate, high] = ["stale_bytes_low", "stale_bytes", "stale_bytes_high"].map(number);
    println!(
        "redis, {KEYS} keys of which {READ} are read: {:.1} MB of values are cold; said to be: {:.1} ({:.1} to {:.1}), \
         inside: {}; watching took {:.3} % of the time",
        truth / 1e6,
        estimate / 1e6,
        low / 1e6,
        high / 1e6,
        (low..=high).contains(&truth),
        report["cost"].as_f64().unwrap_or(f64::NAN) * 100.0
    );
}

/// Compares the processor time of a read with and without watching, in a traced process. Response times are not
/// compared, because the attacher shares a processor with the clients.
fn price() {
    let mut redis = Loaded::start();
    redis.fill();
    let pid = redis.pid();
    let round = |arguments: &[&str]| {
        let attacher = attached(arguments);
        let ns = redis.read(ROUND);
        (ns, ended(attacher))
    };
    let (mut ratios, mut costs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (traced, _) = round(&["attach", &pid, "--json", "-i", "1h", "-T", "1"]);
        let (watched, report) = round(&[
            "stale", &pid, "--older", "5s", "-d", "1h", "--budget", BUDGET, "--json", "-T", "1",
        ]);
        ratios.push(watched / traced);
        costs.push(report["cost"].as_f64().unwrap_or(f64::NAN) * 100.0);
    }
    let (ratio, cost) = (Spread::of(ratios), Spread::of(costs));
    let (Some(ratio), Some(cost)) = (ratio, cost) else {
        return;
    };
    println!(
        "redis, GET: watched {:.4} of the processor time while traced ({:.4} to {:.4}, {} rounds); \
         it says that watching took {:.3} % of the time",
        ratio.median, ratio.low, ratio.high, ratio.count, cost.median
    );
}
