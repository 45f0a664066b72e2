//! Programs from the distribution, traced twice under load while their answers are checked.

use memhook_tests::programs::{Client, Folder, installed, loaded_redis, server};
use memhook_tests::{Attacher, Target};
use serde_json::Value;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

fn no_loss(report: &Value) {
    for field in ["lost_events", "unhooked_releases"] {
        assert_eq!(report["totals"][field], 0, "{field}: {}", report["totals"]);
    }
}

fn total(report: &Value, field: &str) -> u64 {
    report["totals"][field].as_u64().expect(field)
}

/// Returns the number of live blocks with sizes in a range, over all sites. A site with blocks of
/// several sizes is counted by its mean size.
fn blocks_of(report: &Value, sizes: std::ops::Range<u64>) -> u64 {
    let sites = report["sites"].as_array().expect("sites").iter();
    sites
        .filter_map(|s| Some((s["bytes"].as_u64()?, s["blocks"].as_u64()?)))
        .filter(|(bytes, blocks)| sizes.contains(&(bytes / blocks)))
        .map(|(_, blocks)| blocks)
        .sum()
}

/// Returns the number of backtraces that contain a function whose name contains this text.
fn named(report: &Value, function: &str) -> usize {
    let sites = report["sites"].as_array().expect("sites").iter();
    sites
        .filter(|site| {
            let frames = site["stack"].as_array().expect("a stack");
            let mut names = frames.iter().filter_map(|f| f["function"].as_str());
            names.any(|name| name.contains(function))
        })
        .count()
}

const KEYS: usize = 500;
const VALUE_BYTES: usize = 50_001;

fn value(key: usize) -> String {
    format!("{key:0VALUE_BYTES$}")
}

#[test]
fn redis_under_load() {
    memhook_tests::patiently(|| {
        let folder = Folder::new("redis");
        let (redis, load, socket) = loaded_redis(&folder);
        let mut client = Client::connect(&socket);

        let attacher = Attacher::start(&redis, &[]);
        for key in 0..KEYS {
            let answer = client.redis(&format!("SET kept:{key} {}", value(key)));
            assert_eq!(answer, "+OK");
        }
        let report = attacher.finish();
        no_loss(&report);
        assert!(
            total(&report, "allocations") > 10_000,
            "{}",
            report["totals"]
        );
        // A value is stored in one block: its text, a header, and the space that redis reserves
        // after it.
        let size = VALUE_BYTES as u64;
        assert_eq!(
            blocks_of(&report, size..size + 20),
            KEYS as u64,
            "{report:#}"
        );

        // The second trace sees the release of blocks from the first.
        let attacher = Attacher::start(&redis, &[]);
        for key in 0..KEYS {
            assert_eq!(client.redis(&format!("GET kept:{key}")), value(key));
            assert_eq!(client.redis(&format!("DEL kept:{key}")), ":1");
        }
        let report = attacher.finish();
        no_loss(&report);
        assert!(total(&report, "unknown_releases") >= KEYS as u64);
        assert_eq!(blocks_of(&report, size..size + 20), 0);

        for key in 0..100 {
            client.redis(&format!("SET after:{key} {key}"));
            assert_eq!(client.redis(&format!("GET after:{key}")), key.to_string());
        }
        drop(load);
        client.send("SHUTDOWN NOSAVE\r\n");
        assert!(redis.finish().success());
    });
}

#[test]
fn memcached_under_load() {
    memhook_tests::patiently(|| {
        let folder = Folder::new("memcached");
        let socket = folder.path("socket");
        let mut memcached = Command::new(installed("memcached"));
        memcached.args(["-t", "4", "-m", "64", "-s", &socket]);
        // SAFETY: no arguments, cannot fail.
        if unsafe { libc::geteuid() } == 0 {
            memcached.args(["-u", "root"]);
        }
        let memcached = server(&mut memcached, &socket);
        let stop = AtomicBool::new(false);
        let rounds = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for worker in 0..6 {
                let (socket, stop, rounds) = (&socket, &stop, &rounds);
                scope.spawn(move || {
                    let mut round = 0usize;
                    while !stop.load(Relaxed) {
                        // A connection causes only a few allocations, because items come from
                        // slabs.
                        let mut client = Client::connect(socket);
                        for i in 0..50 {
                            let text = format!("{worker}-{round}-{i}").repeat(1 + i * 7);
                            let length = text.len();
                            client.send(&format!("set k{worker}-{i} 0 0 {length}\r\n{text}\r\n"));
                            assert_eq!(client.line(), "STORED");
                            client.send(&format!("get k{worker}-{i}\r\n"));
                            assert_eq!(client.line(), format!("VALUE k{worker}-{i} 0 {length}"));
                            assert_eq!(client.bytes(length), text);
                            assert_eq!(client.line(), "END");
                        }
                        round += 1;
                        rounds.fetch_add(1, Relaxed);
                    }
                });
            }
            for _ in 0..2 {
                let attacher = Attacher::start(&memcached, &[]);
                let before = rounds.load(Relaxed);
                memhook_tests::until("memcached answers", || rounds.load(Relaxed) >= before + 60);
                no_loss(&attacher.finish());
            }
            stop.store(true, Relaxed);
        });
        memcached.signal(libc::SIGINT);
        assert!(memcached.finish().success());
    });
}

#[test]
fn sqlite_inserts_and_checks_its_database() {
    memhook_tests::patiently(|| {
        let folder = Folder::new("sqlite");
        let mut sqlite = Target::silent(
            Command::new(installed("sqlite3")).args(["-batch", &folder.path("base.db")]),
        );
        // sqlite3's own output is buffered, but the output of a shell command is not.
        sqlite.send("create table t(i integer primary key, s text, r blob);\n.shell echo ready\n");
        sqlite.expect("ready");
        for round in 1..=2 {
            let attacher = Attacher::start(&sqlite, &[]);
            sqlite.send(&format!(
            "begin; with recursive c(x) as (values(1) union all select x+1 from c where x<40000)\n\
             insert into t(s, r) select printf('%d-%d', x, {round}), zeroblob(x % 700) from c; commit;\n\
             create index s{round} on t(s, i);\n\
             create table held{round} as select group_concat(s) from t;\n\
             .once |cat\nselect count(*), sum(length(r)), count(distinct s) from t;\n\
             .once |cat\npragma integrity_check;\n.shell echo done\n"
        ));
            let bytes: u64 = (1..=40_000u64).map(|x| x % 700).sum::<u64>() * round;
            let rows = 40_000 * round;
            sqlite.expect(&format!("{rows}|{bytes}|{rows}"));
            sqlite.expect("ok");
            sqlite.expect("done");
            let report = attacher.finish();
            no_loss(&report);
            assert!(
                total(&report, "allocations") > 50_000,
                "{}",
                report["totals"]
            );
            assert!(named(&report, "sqlite3") > 0, "{report:#}");
        }
        assert!(sqlite.finish().success());
    });
}

/// With PYTHONMALLOC=malloc, every object is a malloc block.
const PYTHON: &str = "
import sys, threading
print('ready', flush=True)
kept = []
def work(seed, out):
    table = {}
    for i in range(20000):
        key = str((i * 7919 + seed) % 5000)
        table[key] = table.get(key, 0) + i
    out.append((len(table), sum(table.values())))
for line in sys.stdin:
    out = []
    threads = [threading.Thread(target=work, args=(n, out)) for n in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert out == [(5000, sum(range(20000)))] * 4, out
    kept.append([bytearray(1000002 + n % 2) for n in range(8)])
    assert sum(len(b) for round in kept for b in round) == 8000020 * len(kept)
    print('done', flush=True)
";

#[test]
fn python_with_threads_checks_its_sums() {
    memhook_tests::patiently(|| {
        let mut python = Target::run(
            Command::new(installed("python3"))
                .env("PYTHONMALLOC", "malloc")
                .args(["-c", PYTHON]),
        );
        for _ in 0..2 {
            let attacher = Attacher::start(&python, &[]);
            python.send("go\n");
            python.expect("done");
            let report = attacher.finish();
            no_loss(&report);
            assert!(
                total(&report, "allocations") > 50_000,
                "{}",
                report["totals"]
            );
            assert_eq!(blocks_of(&report, 1_000_002..1_000_010), 8, "{report:#}");
        }
        assert!(python.finish().success());
    });
}
