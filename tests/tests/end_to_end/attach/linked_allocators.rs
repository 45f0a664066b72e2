//! Allocators that are linked into the program and export their own functions.

use memhook_tests::{Attacher, Target, build_service, run};

/// Returns blocks and bytes of all sites below a function.
fn below(report: &serde_json::Value, function: &str) -> (u64, u64) {
    let is_below = |site: &&serde_json::Value| {
        let frames = site["stack"].as_array().expect("a stack");
        let mut names = frames.iter().filter_map(|f| f["function"].as_str());
        names.any(|name| name.contains(function))
    };
    let sites = report["sites"].as_array().expect("sites");
    let number = |site: &serde_json::Value, what: &str| site[what].as_u64().expect("a number");
    sites.iter().filter(is_below).fold((0, 0), |sum, site| {
        (
            sum.0 + number(site, "blocks"),
            sum.1 + number(site, "bytes"),
        )
    })
}

/// Checks the Rust crate, which calls mi_malloc_aligned, mi_zalloc_aligned and mi_realloc_aligned.
#[test]
fn each_block_of_a_rust_service_on_mimalloc() {
    let Some(program) = build_service("mimalloc", "service_counted_on_mimalloc") else {
        return;
    };
    for options in [&[][..], &["--size", "500.."]] {
        let mut target = Target::start(&program, &[]);
        let attacher = Attacher::start(&target, options);
        target.go();
        target.expect("done");
        let report = attacher.finish();
        assert!(target.finish().success());
        for (function, blocks, size) in [
            ("leak_vectors", 200, 1000),
            ("leak_zeros", 50, 2000),
            ("leak_grown", 20, 5000),
            ("leak_aligned", 10, 640),
        ] {
            let found = below(&report, function);
            assert_eq!(found, (blocks, blocks * size), "{function}: {report:#}");
        }
        assert_eq!(below(&report, "release_all"), (0, 0), "{report:#}");
        assert_eq!(report["totals"]["unhooked_releases"], 0);
    }
}

#[test]
fn what_is_said_of_rust_and_mimalloc() {
    let Some(program) = build_service("mimalloc", "service_counted_on_mimalloc") else {
        return;
    };
    let mut target = Target::start(&program, &[]);
    let pid = target.pid().to_string();
    let (_, doctor, _) = run(&["doctor", &pid]);
    let of = |name: &str| {
        let line = doctor.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name}: {doctor}"))
    };
    for name in ["mi_malloc_aligned", "mi_zalloc_aligned", "mi_free"] {
        assert!(of(name).contains("a pad at its entry"), "{doctor}");
    }
    let (code, text, errors) = run(&["attach", &pid, "-d", "100ms"]);
    assert_eq!(code, 0, "{errors}");
    assert!(text.contains("These blocks come from mimalloc"), "{text}");
    assert!(!text.contains("does not know its heap"), "{text}");
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}
