//! A recording of redis, read without any other file of the run. All views and formats must have
//! the same sums.

use super::{json, number, output, sites, sum};
use memhook_tests::programs::{Client, Folder, loaded_redis};
use memhook_tests::{Attacher, run};
use serde_json::Value;

#[test]
fn redis_recorded_under_load_and_carried_away() {
    memhook_tests::patiently(|| {
        let folder = Folder::new("recorded-redis");
        let (redis, load, socket) = loaded_redis(&folder);
        let file = folder.path("run.mhk");
        let attacher = Attacher::start(&redis, &["-o", &file, "--stacks", "all"]);
        let mut client = Client::connect(&socket);
        for key in 0..100 {
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
    });
}

/// Checks that every view has the sums of the report.
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
