//! Programs of the distribution with probes on every suitable function. Their output must not
//! change.

use memhook_tests::programs::{
    Client, Folder, installed, loaded_redis, nginx_configuration, server,
};
use memhook_tests::{Prober, Target, calls, changed_code};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

/// Returns the numbers of probed and of refused functions, each of which must have a reason.
fn numbers(what: &str, report: &Value) -> (usize, usize) {
    let refused = report["refused"].as_array().expect("refused");
    let has_reason = |row: &Value| row["why"].as_str().is_some_and(|why| !why.is_empty());
    assert!(refused.iter().all(has_reason));
    let probed = report["probes"].as_array().expect("probes").len();
    eprintln!(
        "{what}: {probed} functions probed, {} refused",
        refused.len()
    );
    (probed, refused.len())
}

fn total(report: &Value) -> u64 {
    calls(report).values().sum()
}

#[test]
fn redis_answers_as_ever() {
    let folder = Folder::new("probed-redis");
    let (redis, load, socket) = loaded_redis(&folder);
    let mut client = Client::connect(&socket);
    let prober = Prober::start(&redis, "*", &[]);
    for key in 0..500 {
        assert_eq!(client.redis(&format!("SET kept:{key} {key:0500}")), "+OK");
        assert_eq!(
            client.redis(&format!("GET kept:{key}")),
            format!("{key:0500}")
        );
        assert_eq!(
            client.redis(&format!("INCR counted:{}", key % 7)),
            format!(":{}", key / 7 + 1)
        );
    }
    let script = "EVAL \"return redis.call('STRLEN',KEYS[1])\" 1 kept:3";
    assert_eq!(client.redis(script), ":500");
    // A child of redis writes the data.
    assert_eq!(client.redis("SAVE"), "+OK");
    let report = prober.finish();
    let (probed, refused) = numbers("redis", &report);
    assert!(probed > 1000 && refused > 0, "{probed} {refused}");
    assert!(total(&report) > 10_000);
    drop(load);
    assert_eq!(changed_code(redis.pid()), Vec::<String>::new());
    assert_eq!(client.redis("GET kept:17"), format!("{:0500}", 17));
}

/// Fills a file with new pages, and runs a checksum over all rows and a recursive query.
const SQL: &str = "create table t(a integer primary key, b text);\n\
    with recursive n(i) as (select 1 union all select i+1 from n where i<20000) \
    insert into t select i, hex(i*7919) from n;\n\
    create index k on t(b);\n\
    select count(*), sum(length(b)), min(b), max(b) from t;\n\
    select group_concat(b, '') from (select b from t order by b limit 50);\n\
    delete from t where a % 3 = 0;\n\
    pragma integrity_check;\n\
    select printf('%.6f', avg(a)) from t;\n";

#[test]
fn sqlite_computes_as_ever() {
    let start = || {
        let mut command = Command::new(installed("sqlite3"));
        command
            .arg(":memory:")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command.spawn().expect("it runs")
    };
    let end = |mut shell: std::process::Child| {
        let mut input = shell.stdin.take().expect("piped");
        input.write_all(SQL.as_bytes()).expect("it reads");
        drop(input);
        let mut text = String::new();
        shell
            .stdout
            .take()
            .expect("piped")
            .read_to_string(&mut text)
            .expect("text");
        assert!(shell.wait().expect("it ends").success());
        text
    };
    let expected = end(start());
    let mut shell = start();
    // An answer shows that the shell has started completely.
    let mut output = BufReader::new(shell.stdout.take().expect("piped"));
    writeln!(shell.stdin.as_mut().expect("piped"), "select 'up';").expect("it reads");
    let mut line = String::new();
    output.read_line(&mut line).expect("text");
    assert_eq!(line, "up\n");
    shell.stdout = Some(output.into_inner());
    let prober = Prober::of(shell.id(), "*", &[]);
    assert_eq!(end(shell), expected);
    let report = prober.report();
    let (probed, _) = numbers("sqlite3", &report);
    assert!(probed > 500, "{probed}");
    assert!(total(&report) > 10_000);
}

#[test]
fn nginx_serves_as_ever() {
    let folder = Folder::new("probed-nginx");
    let socket = folder.path("socket");
    std::fs::write(folder.path("answer.html"), "as ever").expect("written");
    let file = nginx_configuration(&folder, "");
    let mut nginx = Command::new(installed("nginx"));
    nginx.args(["-c", &file]);
    let nginx: Target = server(&mut nginx, &socket);
    let get = || {
        let mut stream = UnixStream::connect(&socket).expect("it listens");
        stream
            .write_all(b"GET /answer.html HTTP/1.0\r\n\r\n")
            .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer.rsplit("\r\n").next().map(str::to_owned)
    };
    assert_eq!(get().as_deref(), Some("as ever"));
    let prober = Prober::start(&nginx, "*", &[]);
    for _ in 0..100 {
        assert_eq!(get().as_deref(), Some("as ever"));
    }
    let report = prober.finish();
    let (probed, _) = numbers("nginx", &report);
    assert!(probed > 500, "{probed}");
    assert!(total(&report) > 1000);
    assert_eq!(changed_code(nginx.pid()), Vec::<String>::new());
    assert_eq!(get().as_deref(), Some("as ever"));
}
