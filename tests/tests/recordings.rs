//! Recordings from end to end: made beside a live report, carried away, read in every way.

use memhook_tests::programs::{Background, Client, Folder, installed, server};
use memhook_tests::{Attacher, Target, build_target, run};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Runs memhook-rs; its standard output.
fn output(args: &[&str]) -> String {
    let (code, out, err) = run(args);
    assert_eq!(code, 0, "{args:?}: {err}");
    out
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&output(args)).expect("JSON")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn sum(rows: &Value, field: &str) -> u64 {
    let rows = rows.as_array().expect("rows");
    rows.iter().map(|row| number(&row[field])).sum()
}

/// Bytes, blocks, allocating function and functions of each site, in some order.
fn sites(report: &Value) -> Vec<(u64, u64, String, Vec<String>)> {
    let rows = report["sites"].as_array().expect("sites");
    let mut sites: Vec<_> = rows
        .iter()
        .map(|site| {
            let frames = site["stack"].as_array().expect("a stack").iter();
            // Names may come from files that the live report could read and a later one cannot.
            let frames = frames.map(|frame| frame["offset"].to_string());
            let kind = site["kind"].as_str().expect("a kind").to_owned();
            (
                number(&site["bytes"]),
                number(&site["blocks"]),
                kind,
                frames.collect(),
            )
        })
        .collect();
    sites.sort();
    sites
}

/// Records a run of the program from ready to done; the live report.
fn record(program: &Path, args: &[&str], file: &str, options: &[&str]) -> Value {
    let mut target = Target::start(program, args);
    let attacher = Attacher::start(&target, &[&["-o", file], options].concat());
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success(), "the target's self-check");
    report
}

#[test]
fn redis_recorded_under_load_and_carried_away() {
    let folder = Folder::new("recorded-redis");
    let socket = folder.path("socket");
    let mut redis = Command::new(installed("redis-server"));
    redis.args(["--port", "0", "--save", "", "--appendonly", "no"]);
    redis.args(["--loglevel", "warning", "--unixsocket", &socket]);
    let redis = server(&mut redis, &socket);
    let load = Background::start(
        Command::new(installed("redis-benchmark"))
            .args([
                "-s", &socket, "-l", "-q", "-c", "20", "-P", "16", "-r", "1000",
            ])
            .args(["-n", "20000", "-t", "set,get,lpush,lpop,sadd,hset,incr"]),
    );
    let file = folder.path("run.mhk");
    let attacher = Attacher::start(&redis, &["-o", &file, "--stacks", "all"]);
    let mut client = Client::connect(&socket);
    for key in 0..500 {
        let answer = client.redis(&format!("SET kept:{key} {key:05000}"));
        assert_eq!(answer, "+OK");
    }
    let live = attacher.finish();
    drop(load);
    drop(redis);

    let elsewhere = Folder::new("elsewhere");
    let copy = elsewhere.path("copy.mhk");
    std::fs::copy(&file, &copy).expect("copied");
    std::fs::remove_file(&file).expect("removed");
    let report = json(&["report", &copy, "--json", "-T", "100000"]);
    assert_eq!(report["totals"], live["totals"], "sums of the whole run");
    assert!(number(&live["totals"]["allocations"]) > 10_000);
    assert_eq!(sites(&report), sites(&live));
    assert_eq!(report["target"], live["target"]);
    assert_eq!(
        report["releases"].as_array().map(Vec::len),
        live["releases"].as_array().map(Vec::len)
    );

    views_agree(&copy, &report);
    formats_agree(&elsewhere, &copy, &report);
    windows_agree(&copy, &report);
}

/// Every view has the same sum.
fn views_agree(file: &str, report: &Value) {
    let totals = &report["totals"];
    for by in ["site", "module", "thread", "size"] {
        let view = json(&["report", file, "--json", "-T", "100000", "--by", by]);
        let rows = if by == "site" {
            &view["sites"]
        } else {
            &view["groups"]
        };
        assert_eq!(sum(rows, "bytes"), number(&totals["live_bytes"]), "by {by}");
        assert_eq!(
            sum(rows, "blocks"),
            number(&totals["live_blocks"]),
            "by {by}"
        );
    }
    let of =
        |measure: &str| json(&["report", file, "--json", "--measure", measure])["measured"].clone();
    assert_eq!(of("peak")["bytes"], totals["peak_live_bytes"]);
    assert_eq!(of("allocated")["bytes"], totals["allocated_bytes"]);
    assert_eq!(of("allocated")["blocks"], totals["allocations"]);
    assert_eq!(of("released")["bytes"], totals["released_bytes"]);
    let lifetimes = json(&["report", file, "--json", "--by", "lifetime"]);
    assert_eq!(
        sum(&lifetimes["groups"], "bytes"),
        number(&totals["released_bytes"])
    );
    let freed = json(&["report", file, "--json", "--who-frees"]);
    assert_eq!(freed["bytes"], totals["released_bytes"]);
    for tree in ["top-down", "bottom-up"] {
        let tree = json(&["report", file, "--json", "--tree", tree]);
        assert_eq!(tree["value"], totals["live_bytes"]);
        assert_eq!(
            sum(&tree["children"], "value"),
            number(&totals["live_bytes"])
        );
    }
    let temporary = number(&of("temporary")["blocks"]);
    assert!(temporary > 0 && temporary <= number(&of("released")["blocks"]));
}

fn formats_agree(folder: &Folder, file: &str, report: &Value) {
    let folded = output(&["report", file, "-f", "folded"]);
    let values = folded
        .lines()
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    assert_eq!(values.sum::<u64>(), number(&report["totals"]["live_bytes"]));
    for format in [
        "flamegraph",
        "pprof",
        "heaptrack",
        "speedscope",
        "massif",
        "html",
    ] {
        let to = folder.path(format);
        output(&["report", file, "-f", format, "-o", &to]);
        let size = std::fs::metadata(&to).expect("written").len();
        assert!(size > 100, "{format}: {size} bytes");
        let (code, _, err) = run(&["report", file, "-f", format, "-o", &to]);
        assert_eq!((code, err.contains("exists already")), (2, true), "{err}");
    }
}

fn windows_agree(file: &str, report: &Value) {
    let ms = (report["elapsed_s"].as_f64().expect("a time") * 500.0) as u64;
    let half = format!("{ms}ms");
    let first = json(&["report", file, "--json", "--to", &half]);
    let exact_ms = first["elapsed_s"].as_f64().expect("a time") * 1e3;
    assert!(exact_ms >= ms as f64, "{exact_ms} of {ms}");
    let second = json(&["report", file, "--json", "--from", &half]);
    assert_eq!(first["elapsed_s"], second["from_s"]);
    for field in ["allocations", "allocated_bytes", "released_bytes"] {
        let parts = number(&first["totals"][field]) + number(&second["totals"][field]);
        assert_eq!(parts, number(&report["totals"][field]), "{field}");
    }
    assert_eq!(
        second["totals"]["live_bytes"],
        report["totals"]["live_bytes"]
    );
}

#[test]
fn sums_of_intervals_are_the_live_reports_too() {
    let folder = Folder::new("recorded-sums");
    let program = build_target("regression", &[]);
    let file = folder.path("sums.mhk");
    let options = ["--record", "summary", "--summary-interval", "20ms"];
    let live = record(&program, &["10"], &file, &options);
    let report = json(&["report", &file, "--json", "-T", "1000"]);
    for field in [
        "allocations",
        "allocated_bytes",
        "released_bytes",
        "live_bytes",
        "live_blocks",
    ] {
        assert_eq!(report["totals"][field], live["totals"][field], "{field}");
    }
    assert_eq!(sites(&report), sites(&live));
    for args in [
        ["--by", "thread"],
        ["--by", "lifetime"],
        ["--measure", "temporary"],
    ] {
        let (code, _, err) = run(&[&["report", &file], &args[..]].concat());
        assert_eq!((code, err.lines().count()), (2, 1), "{err}");
        assert!(err.contains("sums of intervals"), "{err}");
    }
}

#[test]
fn a_planted_regression_comes_out_first() {
    let folder = Folder::new("recorded-diff");
    let (old, new) = (folder.path("old.mhk"), folder.path("new.mhk"));
    record(&build_target("regression", &["-g"]), &[], &old, &[]);
    let other = build_target("regression", &["-g", "-DOTHER_BUILD"]);
    record(&other, &["70"], &new, &[]);
    let diff = json(&["diff", &old, &new, "--json"]);
    let sites = diff["sites"].as_array().expect("sites");
    let name = |site: &Value| {
        site["stack"][0]["function"]
            .as_str()
            .unwrap_or("")
            .to_owned()
    };
    assert!(name(&sites[0]).starts_with("serve_request"), "{diff:#}");
    assert_eq!(sites[0]["fate"], "appeared");
    assert_eq!(sites[0]["change_bytes"], 70 * 300);
    let last = sites.last().expect("a site");
    assert!(name(last).starts_with("only_sometimes"), "{diff:#}");
    assert_eq!(
        (last["fate"].as_str(), last["change_bytes"].as_i64()),
        (Some("went"), Some(-40))
    );
    assert_eq!(sites.len(), 2, "fill_cache is the same in both: {diff:#}");
    let text = output(&["diff", &old, &new]);
    assert!(text.contains("#1 +20.5 KiB appeared"), "{text}");
    let allocated = json(&["diff", &old, &new, "--json", "--measure", "allocated"]);
    let changes = allocated["sites"].as_array().expect("sites");
    assert_eq!(changes.len(), 1, "the same requests: {allocated:#}");
}

/// Names where the files are gone: none, from a bundle, from a copy of the file system.
#[test]
fn names_on_another_machine() {
    let folder = Folder::new("recorded-names");
    let program = build_target("regression", &["-g", "-Wl,--build-id"]);
    let here = folder.path("program");
    std::fs::copy(&program, &here).expect("copied");
    let file = folder.path("run.mhk");
    record(Path::new(&here), &["3"], &file, &[]);
    let bundle = folder.path("syms");
    output(&["symbols", "pack", &file, "-o", &bundle]);
    // The machine's own copy is another build by now.
    let other = build_target("regression", &["-g", "-Wl,--build-id", "-DOTHER_BUILD"]);
    std::fs::remove_file(&here).expect("removed");
    std::fs::copy(&other, &here).expect("copied");
    let innermost = |options: &[&str]| {
        let (code, out, err) = run(&[&["report", &file, "--json", "-T", "1"], options].concat());
        assert_eq!(code, 0, "{err}");
        let report: Value = serde_json::from_str(&out).expect("JSON");
        (report["sites"][0]["stack"][0].clone(), err)
    };
    let (frame, err) = innermost(&[]);
    assert!(
        err.contains(&here) && err.contains("another build"),
        "refused by name: {err}"
    );
    assert_eq!(frame["function"], Value::Null);
    assert_eq!(frame["module"], "program");
    let offset = frame["offset"].as_str().expect("an offset").to_owned();
    let named = |options: &[&str]| {
        let (frame, err) = innermost(options);
        let function = frame["function"].as_str().unwrap_or_default();
        assert!(
            function.starts_with("fill_cache"),
            "{options:?}: {frame} {err}"
        );
        let source = frame["file"].as_str().unwrap_or_default();
        assert!(source.ends_with("regression.cc"), "{frame}");
        assert!(
            frame["line"].as_u64().is_some_and(|line| line > 5),
            "{frame}"
        );
        assert_eq!(frame["offset"], offset.as_str());
    };
    named(&["--symbols", &bundle]);
    let sysroot = folder.path("sysroot");
    let inside = format!("{sysroot}{here}");
    std::fs::create_dir_all(Path::new(&inside).parent().expect("a folder")).expect("created");
    std::fs::copy(&program, &inside).expect("copied");
    named(&["--sysroot", &sysroot]);
    // Only the debug file, by its build-id.
    let debug = folder.path("debug");
    let id = build_id(&program);
    let to = format!("{debug}/.build-id/{}/{}.debug", &id[..2], &id[2..]);
    std::fs::create_dir_all(Path::new(&to).parent().expect("a folder")).expect("created");
    let split = Command::new("objcopy")
        .args(["--only-keep-debug", program.to_str().expect("UTF-8"), &to])
        .status();
    assert!(split.expect("objcopy runs").success());
    named(&["--debug-dir", &debug]);
}

fn build_id(program: &Path) -> String {
    let notes = Command::new("readelf").arg("-n").arg(program).output();
    let notes = String::from_utf8(notes.expect("readelf runs").stdout).expect("text");
    let line = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "));
    line.expect("a build-id").to_owned()
}

#[test]
fn a_size_limit_ends_the_recording_not_the_trace() {
    let folder = Folder::new("recorded-limit");
    let file = folder.path("run.mhk");
    let program = build_target("oracle", &[]);
    let mut target = Target::start(&program, &["1500000", "2"]);
    let attacher = Attacher::start(&target, &["-o", &file, "--max-file-size", "1M"]);
    target.go();
    target.expect("live");
    attacher.signal(2);
    let (status, out, err) = attacher.outcome();
    assert!(status.success(), "{err}");
    assert!(err.contains("largest allowed size"), "{err}");
    let live: Value = serde_json::from_str(out.lines().last().expect("a report")).expect("JSON");
    assert!(target.finish().success());
    assert!(std::fs::metadata(&file).expect("there").len() <= 1 << 20);
    let (code, out, err) = run(&["report", &file, "--json"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("is not the whole run"), "{err}");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let (recorded, all) = (
        &report["totals"]["allocations"],
        &live["totals"]["allocations"],
    );
    assert!(
        number(recorded) > 0 && number(recorded) < number(all),
        "{recorded} of {all}"
    );
}

#[test]
fn bad_input() {
    let folder = Folder::new("recorded-bad");
    let program = build_target("regression", &[]);
    let good = folder.path("good.mhk");
    record(&program, &[], &good, &[]);
    let bytes = std::fs::read(&good).expect("readable");
    let written = |name: &str, bytes: &[u8]| {
        let path = folder.path(name);
        std::fs::write(&path, bytes).expect("written");
        path
    };
    let text = written("text.mhk", b"not a recording at all, only some words");
    let empty = written("empty.mhk", b"");
    let start = written("start.mhk", &bytes[..30]);
    let mut version = bytes.clone();
    version[8] = 200;
    let version = written("version.mhk", &version);
    let mut damaged = bytes.clone();
    let middle = bytes.len() / 3;
    for byte in &mut damaged[middle..middle + 40] {
        *byte ^= 0x5a;
    }
    let damaged = written("damaged.mhk", &damaged);
    let missing = folder.path("missing.mhk");
    let taken = written("taken", b"somebody's");
    for (args, word) in [
        (vec!["report", &text], "not a recording"),
        (vec!["report", &empty], "not a recording"),
        (vec!["report", &start], "empty"),
        (vec!["report", &version], "version"),
        (vec!["report", &damaged], "damaged"),
        (vec!["report", &missing], "No such file"),
        (vec!["report", "/tmp"], "not a recording"),
        (
            vec!["report", &good, "--from", "1h"],
            "the recording covers",
        ),
        (
            vec!["report", &good, "--from", "20ms", "--to", "10ms"],
            "nothing lies between",
        ),
        (
            vec!["report", &good, "--from", "soon"],
            "a time since the attach",
        ),
        (vec!["report", &good, "-f", "word"], "unknown format"),
        (
            vec!["report", &good, "--measure", "hope"],
            "unknown measure",
        ),
        (vec!["report", &good, "--by", "colour"], "invalid value"),
        (vec!["report", &good, "--who-frees"], "--stacks all"),
        (
            vec!["report", &good, "--symbols", &text],
            "not a symbol bundle",
        ),
        (vec!["report", &good, "--symbols", &missing], "cannot read"),
        (vec!["report", &good, "--sysroot", &missing], "cannot read"),
        (vec!["report", &good, "--sysroot", &text], "no folder"),
        (vec!["report", &good, "-o", &taken], "exists already"),
        (
            vec!["symbols", "pack", &good, "-o", &taken],
            "exists already",
        ),
        (
            vec!["symbols", "pack", &text, "-o", &missing],
            "not a recording",
        ),
        (vec!["diff", &good, &text], "not a recording"),
        (vec!["diff", &good], "required"),
    ] {
        let (code, out, err) = run(&args);
        assert_eq!(code, 2, "{args:?}: {out}{err}");
        assert!(err.contains(word), "{args:?}: {err}");
        assert_eq!(err.trim_end().lines().count(), 1, "{args:?}: {err}");
        assert!(out.is_empty(), "{args:?}: {out}");
    }
    assert_eq!(std::fs::read(&taken).expect("readable"), b"somebody's");
}

#[test]
fn what_cannot_be_recorded_is_said_before_the_attach() {
    let folder = Folder::new("recorded-refused");
    let taken = folder.path("taken.mhk");
    std::fs::write(&taken, b"somebody's").expect("written");
    let program = build_target("regression", &[]);
    let target = Target::start(&program, &[]);
    let (pid, maps) = (target.pid().to_string(), target.maps());
    let new = folder.path("new.mhk");
    let nowhere = folder.path("no/such/folder/run.mhk");
    for (options, word) in [
        (vec!["-o", &taken], "exists already"),
        (vec!["-o", &nowhere], "cannot create"),
        (vec!["-o", &new, "--max-file-size", "10"], "at least 1M"),
        (vec!["-o", &new, "--max-files", "3"], "--max-file-size"),
        (vec!["--record", "events"], "--output"),
        (
            vec!["-o", &new, "--record", "summary", "--sample", "1K"],
            "no estimates",
        ),
    ] {
        let (code, out, err) = run(&[&["attach", &pid], &options[..]].concat());
        assert_eq!(code, 2, "{options:?}: {out}{err}");
        assert!(err.contains(word), "{options:?}: {err}");
        assert_eq!(err.trim_end().lines().count(), 1, "{options:?}: {err}");
    }
    assert_eq!(target.maps(), maps, "the target was not touched");
    assert_eq!(std::fs::read(&taken).expect("readable"), b"somebody's");
    assert!(!Path::new(&new).exists());
}
