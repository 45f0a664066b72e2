//! Figure 13: scans the backend of a database under load at several periods, with the search on this machine and on
//! another. The paper's OSDB is no longer available, so this experiment uses PostgreSQL under pgbench.

use super::super::needs::postgresql;
use super::super::scanner::{Search, scan_behind, scanning};
use super::super::sheet::{Sheet, Sheets, number};
use memhook_measurements::{Spread, placement, ratios};
use memhook_tests::programs::{Folder, server};
use memhook_tests::{Target, until};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const SECONDS: u64 = 9;
const ROUNDS: usize = 3;
/// Scan periods, each short enough for two scans in a round.
const PERIODS: [u64; 2] = [2, 4];
const NOBODY: u32 = 65534;

/// PostgreSQL refuses to run as root. The server and the clients may use both processors, as in the paper.
fn as_nobody(program: PathBuf) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &placement().all]);
    if nix::unistd::geteuid().is_root() {
        let id = NOBODY.to_string();
        command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"]);
    }
    command.arg(program).current_dir("/");
    command
}

fn start(folder: &Folder) -> Result<Target, String> {
    let data = folder.path("data");
    let say = |error: std::io::Error| error.to_string();
    std::fs::create_dir(&data).map_err(say)?;
    for path in [folder.path(""), data.clone()] {
        // Only root can change the owner.
        let _ = std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY));
    }
    let mut initdb = as_nobody(postgresql("initdb")?);
    initdb.args(["-D", &data, "-U", "tester", "-A", "trust", "--no-sync"]);
    let output = initdb.output().map_err(say)?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let mut command = as_nobody(postgresql("postgres")?);
    command.args(["-D", &data, "-k", &folder.path(""), "-F"]);
    command.args(["-c", "listen_addresses=", "-c", "autovacuum=off"]);
    command.stderr(Stdio::null());
    let postmaster = server(&mut command, &folder.path(".s.PGSQL.5432"));
    let program = postgresql("pgbench")?;
    until("the server takes clients", || {
        let mut command = pgbench(program.clone(), folder, &["-i", "-q", "-s", "5"]);
        command.output().is_ok_and(|output| output.status.success())
    });
    Ok(postmaster)
}

fn pgbench(program: PathBuf, folder: &Folder, options: &[&str]) -> Command {
    let mut command = as_nobody(program);
    command.args(["-h", &folder.path(""), "-U", "tester"]);
    command.args(options).arg("postgres");
    command
}

/// Returns the child of the postmaster that serves the client.
fn backend(postmaster: u32) -> Option<u32> {
    let path = format!("/proc/{postmaster}/task/{postmaster}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let serves = |child: &&str| {
        let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("tester postgres [local]")
    };
    children.split_whitespace().find(serves)?.parse().ok()
}

/// Returns the transactions per second.
fn load(folder: &Folder) -> Result<f64, String> {
    let time = SECONDS.to_string();
    let options = ["-n", "-c", "1", "-T", &time];
    let output = pgbench(postgresql("pgbench")?, folder, &options).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("tps = "));
    let rate = line.and_then(|line| line.split(' ').next()?.parse().ok());
    rate.ok_or_else(|| format!("pgbench: {}", String::from_utf8_lossy(&output.stderr)))
}

pub fn run(sheets: &mut Sheets) -> Result<(), String> {
    let folder = Folder::new("papers-postgresql");
    let postmaster = start(&folder)?;
    let mut sheet = Sheet::new(
        "pgbench with one client, whose backend is scanned",
        &[
            "scan every",
            "searched",
            "transactions/s without",
            "with",
            "time with / without (quartiles)",
            "scans",
            "held, ms, median (longest)",
        ],
    );
    for (search, place) in [(Search::Here, "here"), (Search::Elsewhere, "elsewhere")] {
        for period in PERIODS {
            let [mut without, mut with] = [const { Vec::new() }; 2];
            let (mut held, mut count) = (Vec::new(), 0);
            for _ in 0..ROUNDS {
                without.push(1.0 / load(&folder)?);
                let one = || {
                    let pid = backend(postmaster.pid()).ok_or("there is no backend")?;
                    scan_behind(pid, search)
                };
                let every = Duration::from_secs(period);
                let (rate, scans) = scanning(every, one, || load(&folder));
                with.push(1.0 / rate?);
                let scans = scans?;
                count += scans.len();
                held.extend(scans.iter().map(|scan| scan.held_ms));
            }
            let ratio = ratios(&without, &with).ok_or("no rounds")?;
            let rate = |all: &Vec<f64>| {
                Spread::of(all.clone()).map_or(f64::NAN, |spread| 1.0 / spread.median)
            };
            let longest = held.iter().copied().fold(f64::NAN, f64::max);
            let median = Spread::of(held).map_or(f64::NAN, |spread| spread.median);
            sheet.row(vec![
                format!("{period} s"),
                place.to_owned(),
                number(rate(&without)),
                number(rate(&with)),
                format!(
                    "{:.3} ({:.3} to {:.3})",
                    ratio.median, ratio.low, ratio.high
                ),
                count.to_string(),
                format!("{} ({})", number(median), number(longest)),
            ]);
        }
    }
    sheets.add(&sheet);
    // The postmaster ends its backends, then exits.
    postmaster.signal(libc::SIGINT);
    until("the server ends", || !postmaster.is_alive());
    Ok(())
}
