//! `trim` returns free heap memory to the system. The amount matches the prediction, and the
//! program continues.

use memhook_tests::releases::Release;
use memhook_tests::{Target, build_target, run};
use serde_json::Value;

fn trim(pid: u32, options: &[&str]) -> Value {
    let pid = pid.to_string();
    let (code, out, err) = run(&[&["trim", &pid, "--json"], options].concat());
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn what_was_predicted_comes_back() {
    let mut programs = vec![build_target("pinned_pages", &[])];
    programs.extend(
        Release::all()
            .iter()
            .map(|r| r.build_target("pinned_pages", &[])),
    );
    for program in programs {
        for threads in ["0", "4"] {
            let mut target = Target::start(&program, &[threads, "untrimmed"]);
            // The limit is sufficient on a slow machine.
            let slow = ["--max-hold", "20s"];
            let dry = trim(target.pid(), &[&slow[..], &["--dry-run"]].concat());
            let predicted = number(&dry["predicted_bytes"]);
            assert!(predicted > 30 << 20, "{dry:#}");
            assert_eq!(dry["rss_after_bytes"], Value::Null);
            let again = trim(target.pid(), &[&slow[..], &["--dry-run"]].concat());
            assert_eq!(
                again["predicted_bytes"], dry["predicted_bytes"],
                "a dry run does nothing"
            );
            let done = trim(target.pid(), &slow);
            let fell = number(&done["rss_before_bytes"]) - number(&done["rss_after_bytes"]);
            assert!(predicted.abs_diff(fell) <= predicted / 20, "{done:#}");
            assert!(
                done["held_ms"].as_f64() >= done["call_ms"].as_f64(),
                "{done:#}"
            );
            let rest = trim(target.pid(), &[&slow[..], &["--dry-run"]].concat());
            assert!(
                number(&rest["predicted_bytes"]) < predicted / 20,
                "{rest:#}"
            );
            // The heap is intact, and all of its blocks can be freed.
            target.go();
            target.expect("freed");
            assert!(target.finish().success());
        }
    }
}

/// Checks a trim while threads that allocate nonstop keep taking the arena locks.
#[test]
fn a_busy_program_goes_on() {
    let target = Target::start(&build_target("hammer", &[]), &[]);
    for _ in 0..5 {
        let done = trim(target.pid(), &["--max-hold", "20s"]);
        assert!(done["held_ms"].as_f64() > Some(0.0), "{done:#}");
    }
    assert!(target.finish().success(), "it has checked all its blocks");
}

#[test]
fn a_trim_that_takes_too_long_is_refused() {
    let target = Target::start(&build_target("pinned_pages", &[]), &["4", "untrimmed"]);
    let pid = target.pid().to_string();
    let before = trim(target.pid(), &["--dry-run", "--max-hold", "20s"]);
    let most = format!(
        "{}us",
        before["estimated_ms"].as_f64().expect("ms") as u64 / 10 + 20_000
    );
    // The snapshot takes some time too, so a lower limit would rule out even the snapshot of a
    // small heap.
    let (code, out, err) = run(&["trim", &pid, "--max-hold", &most]);
    let refused =
        code == 2 && out.is_empty() && err.contains("--max-hold") && err.lines().count() == 1;
    let was_quick = code == 0;
    assert!(refused || was_quick, "{code} {out}{err}");
    for options in [
        &["trim", "999999999"][..],
        &["trim"],
        &["trim", &pid, "--max-hold", "x"],
    ] {
        let (code, out, err) = run(options);
        assert_eq!((code, out.as_str()), (2, ""), "{options:?}: {err}");
    }
    assert!(target.finish().success());
}
