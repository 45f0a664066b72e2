//! Usage and useful lifetime estimated from watched blocks of a program that does not report
//! accesses. The tests compare the estimates with the known behaviour of the program, and with its
//! complete accesses.

use memhook_inject::Watchpoint;
use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, JsonSchema, Target, build_target, build_telling, not_run, run};
use serde_json::Value;

/// Returns the scores of the site in a function of the program.
fn scores(report: &Value, function: &str) -> Value {
    let sites = report["sites"].as_array().expect("sites").iter();
    let is_of = |site: &&Value| {
        let mut frames = site["stack"].as_array().expect("frames").iter();
        frames.any(|frame| {
            let name = frame["function"].as_str().unwrap_or_default();
            name.split('(').next() == Some(function)
        })
    };
    let found: Vec<&Value> = sites.filter(is_of).collect();
    let [site] = found[..] else {
        panic!("{} sites of {function}: {report}", found.len());
    };
    site["scores"].clone()
}

fn report(file: &str) -> Value {
    let (code, out, err) = run(&["report", file, "--scores", "--json", "-T", "100"]);
    assert_eq!(code, 0, "{err}");
    let report = serde_json::from_str(&out).expect("JSON");
    JsonSchema::load("report-1").check(&report);
    report
}

/// Runs the program for this number of steps while a sample of its blocks is watched. The budget is
/// large enough to watch enough blocks in a few seconds. Returns `None` if there are no
/// watchpoints.
fn watched(folder: &Folder, steps: &str) -> Option<Value> {
    let program = build_target("looked_at", &["-O1", "-g"]);
    let mut target = Target::start(&program, &[steps]);
    Watchpoint::reserve(target.pid() as i32, 0, true).ok()?;
    let file = folder.path("sampled.mhk");
    let sampled = ["--access", "sampled=40%"];
    let options = [&["-o", &file, "--force", "--scores"][..], &sampled].concat();
    let attacher = Attacher::start(&target, &options);
    target.go();
    target.expect("done");
    let last = attacher.finish();
    assert!(target.finish().success());
    assert_eq!(last["scores"]["access_source"], "sampled", "{last}");
    let sampled = report(&file);
    assert_eq!(sampled["scores"]["looks"], last["scores"]["looks"]);
    Some(sampled)
}

#[test]
fn watched_blocks_show_what_the_program_does() {
    let folder = Folder::new("looks");
    // On a busy machine a step watches fewer blocks, and a suspension of the program prolongs a
    // step.
    let mut why = String::new();
    for (steps, least) in [("9000", 6), ("30000", 3), ("60000", 3)] {
        let Some(sampled) = watched(&folder, steps) else {
            return not_run("no hardware watchpoints");
        };
        match known_scores(&complete(&folder), &sampled) {
            Ok(known) if known >= least => return,
            Ok(known) => why = format!("{known} of 16 known: {sampled}"),
            Err(other) => why = other,
        }
    }
    panic!("{why}");
}

/// Returns the report on a program that reports all its accesses.
fn complete(folder: &Folder) -> Value {
    let telling = build_telling("g++", "looked_at", &[]);
    let file = folder.path("complete.mhk");
    let mut target = Target::start(&telling, &["500"]);
    let attacher = Attacher::start(&target, &["-o", &file, "--force", "--scores"]);
    target.go();
    target.expect("done");
    attacher.finish();
    assert!(target.finish().success());
    let complete = report(&file);
    assert_eq!(complete["scores"]["access_source"], "complete");
    complete
}

/// Returns the number of scores that could be estimated. Fails if a score disagrees with the
/// program, or if a function was not watched.
fn known_scores(complete: &Value, sampled: &Value) -> Result<u32, String> {
    let mut known = 0;
    for (function, usage, useful) in [
        ("half", 0.5, 0.25..0.35),
        ("beginning", 0.25, 0.9..1.0),
        ("early", 1.0, 0.0..0.1),
        ("throughout", 1.0, 0.9..1.0),
        ("untouched", 0.0, 0.0..0.01),
        ("tail", 30.0 / 31.0, 0.0..0.1),
        ("odd", 17.0 / 24.0, 0.0..0.1),
        ("quarters", 31.0 / 61.0, 0.0..0.1),
    ] {
        let (of_all, estimate) = (scores(complete, function), scores(sampled, function));
        let near = |is: f64, expected: f64, error: f64| (is - expected).abs() <= error;
        assert!(
            near(of_all["usage"].as_f64().expect("complete"), usage, 1e-9),
            "{function}: {of_all}"
        );
        assert_eq!(of_all.get("usage_error"), None, "{of_all}");
        for score in ["usage", "useful_lifetime"] {
            let error = estimate[format!("{score}_error")].as_f64();
            let error = error.ok_or_else(|| format!("{function} was not watched: {sampled}"))?;
            // Reports omit estimates with wide intervals.
            let Some(value) = estimate[score].as_f64() else {
                assert!(error > 0.2 / 2.0 / 1.96, "{function}: {estimate}");
                continue;
            };
            known += 1;
            assert!(error <= 0.2 / 2.0 / 1.96 + 1e-9, "{function}: {estimate}");
            // Known behaviour of the program. Its times vary from run to run, especially if an
            // access to a watched word takes long, so the useful share of a lifetime is known only
            // within bounds.
            let truth = if score == "usage" {
                usage..usage
            } else {
                useful.clone()
            };
            // Sixteen scores are compared, so a limit of two standard errors would fail
            // occasionally.
            if value < truth.start - 4.0 * error || truth.end + 4.0 * error < value {
                return Err(format!("{function} {score}: {estimate} for {of_all}"));
            }
        }
        let value = of_all["useful_lifetime"].as_f64().expect("complete");
        if value < useful.start - 0.05 || useful.end + 0.05 < value {
            return Err(format!("{function}: {value}"));
        }
    }
    Ok(known)
}

#[test]
fn what_cannot_be_drawn_is_refused_in_one_line() {
    let program = build_target("looked_at", &["-O1", "-g"]);
    let target = Target::start(&program, &["10"]);
    let pid = target.pid().to_string();
    let refused = |arguments: &[&str], words: &str| {
        let all = [&["attach", &pid, "--access", "sampled"][..], arguments].concat();
        let (code, _, err) = run(&all);
        assert_eq!((code, err.lines().count()), (2, 1), "{arguments:?}: {err}");
        assert!(err.contains(words), "{err}");
    };
    refused(&[], "add --scores");
    refused(
        &["--scores", "--size", "100.."],
        "with --access sampled, leave --sample",
    );
    refused(&["--scores", "--on-full", "adapt"], "--on-full adapt");
    // These commands cannot use sampled accesses.
    for arguments in [
        &["gate", "--access", "sampled", "--", "true"][..],
        &["watch", &pid, "--access", "sampled", "-o", "."],
    ] {
        let (code, output, errors) = run(arguments);
        assert_eq!((code, output.as_str()), (2, ""), "{errors}");
        assert!(
            errors.contains("--access sampled") && errors.lines().count() == 1,
            "{errors}"
        );
    }
}
