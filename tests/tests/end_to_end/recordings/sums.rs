//! Recordings of sums instead of events.

use super::{json, record, sites};
use memhook_tests::programs::Folder;
use memhook_tests::{build_target, run};

#[test]
fn sums_of_intervals_are_the_live_reports_too() {
    let folder = Folder::new("recorded-sums");
    let program = build_target("regression", &[]);
    let file = folder.path("sums.mhk");
    let options = ["--record", "summary=20ms"];
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
