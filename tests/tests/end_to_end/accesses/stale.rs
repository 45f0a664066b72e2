//! `stale` on programs with known use of their blocks.

use super::watching::{
    BYTES, COUNT, KINDS, Watching, has_watchpoints, has_write_protection, interval, is_stale,
    program, site,
};
use memhook_inject::Watchpoint;
use memhook_process::reclaim_scans;
use memhook_tests::mapping_stalls::MappingStalls;
use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, JsonSchema, Target, build_target, not_run, rounds, run, until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::Command;
use std::time::Duration;

#[test]
fn what_is_cold_is_named_and_intervals_hold() {
    let schema = JsonSchema::load("stale-1");
    // On a very busy machine the program cannot touch its blocks in time, so they become stale.
    for older_s in [3, 3, 6, 12] {
        let duration_s = older_s * 14 / 3;
        let [older, duration] = [older_s, duration_s].map(|s| format!("{s}s"));
        let mut target = Target::start(program(), &[]);
        let scans = reclaim_scans();
        if !has_watchpoints(&target) {
            return not_run("no hardware watchpoints");
        }
        let options = [
            "--older", &older, "-d", &duration, "-i", "5s", "--json", "--budget", "5%", "--leaks",
        ];
        let watching = Watching::begin(&target, &options);
        target.go();
        target.expect("done");
        let output = watching.output();
        target.go();
        let longest = target.expect("longest ");
        let longest: u64 = longest["longest ".len()..].trim().parse().expect("ms");
        assert!(target.finish().success(), "the target's self-check");
        let reports: Vec<Value> = output
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert!(reports.len() > 1, "{output}");
        reports.iter().for_each(|report| schema.check(report));
        let (report, earlier) = reports.split_last().expect("one");
        assert!(earlier.iter().all(|report| report["final"] == false));
        assert_eq!(
            (&report["final"], &report["budget"]),
            (&true.into(), &0.05.into())
        );

        // The live bytes are exact, for traced blocks and for blocks from before the attach.
        for kind in KINDS {
            let site = site(report, kind);
            assert_eq!(site["live_blocks"], COUNT, "{site}");
            assert_eq!(site["live_bytes"], COUNT * BYTES, "{site}");
        }
        let sites = report["sites"].as_array().expect("sites").iter();
        let earlier: Vec<&Value> = sites
            .filter(|site| site["before_attach"] == true && site["live_blocks"] == 4 * COUNT)
            .collect();
        assert_eq!(earlier.len(), 1, "{report}");
        assert_eq!(earlier[0]["live_bytes"], 4 * COUNT * BYTES);
        assert_eq!(earlier[0]["stack"], serde_json::json!([]));
        if longest > older_s * 1000 / 2 {
            println!("busy: {longest} ms without a touch");
            continue;
        }

        // Few of the cold blocks share a page with a written block.
        let all = COUNT * BYTES;
        let cold = site(report, "cold_block");
        let [low, estimate, high] = interval(cold);
        assert!(low <= estimate && estimate <= high && high <= all, "{cold}");
        assert!(estimate > all * 9 / 10, "{cold}");
        assert!(
            cold["unwritten_bytes"].as_u64() > Some(all * 9 / 10),
            "{cold}"
        );
        // The heap is watched in ranges. A range with a few cold blocks also contains other blocks.
        let unaccessed = |site: &Value| site["unaccessed_bytes"].as_u64().expect("a number");
        if report["evidence"]["clears"].as_u64() > Some(0) && reclaim_scans() == scans {
            assert!(unaccessed(cold) > all / 3, "{cold}");
        }
        assert!(unaccessed(cold) <= low, "{cold}");
        for kind in ["written_block", "read_block"] {
            let hot = site(report, kind);
            assert_eq!(unaccessed(hot), 0, "{hot}");
            let [low, estimate, high] = interval(hot);
            assert_eq!(low, 0, "{hot}");
            assert!(estimate < all / 2 && high < all, "{hot}");
            assert!(hot["touched"].as_u64() > Some(0), "{hot}");
        }
        let [low, _, high] = interval(site(report, "mixed_block"));
        assert!(low < all * 3 / 4 && high > all / 4, "{low} {high}");
        // The function that touches the blocks.
        let caught = &site(report, "read_block")["caught"];
        assert!(caught["stack"].to_string().contains("look"), "{caught}");
        assert!(caught["ago_s"].as_f64() < Some(duration_s as f64));
        let cost = report["cost"].as_f64().expect("a share");
        assert!(cost > 0.0 && cost <= 0.05 * 1.1, "{cost}");
        assert_eq!(schema.unseen(), [""; 0]);
        return;
    }
    panic!("the machine is too busy for a program to touch its blocks every few seconds");
}

/// If the program touches nothing, everything is stale, and no thread is disturbed.
#[test]
fn a_program_that_sleeps_in_many_threads() {
    let mut target = Target::start(program(), &["300", "nobody"]);
    let options = "--older 1s -d 2m -i 5s --json --budget 0.5%";
    let options: Vec<&str> = options.split(' ').collect();
    let watching = Watching::begin(&target, &options);
    target.go();
    target.expect("done");
    let has_watchpoints = has_watchpoints(&target);
    let report = watching.report_when(|report| KINDS.iter().all(|kind| is_stale(report, kind)));
    for kind in KINDS {
        let [low, estimate, high] = interval(site(&report, kind));
        assert!(estimate >= low && high <= COUNT * BYTES, "{report}");
        // The remaining blocks share pages with the allocator or the vectors.
        assert!(estimate > COUNT * BYTES * 9 / 10, "{kind}: {report}");
    }
    // Watchpoints get half of the budget of each 5 s window. Arming all of them, four per thread,
    // may use half of that.
    let most = 5e9 * 0.005 / 16.0 / report["evidence"]["trap_ns"].as_f64().expect("a time");
    if has_watchpoints && most < 300.0 {
        let notes = report["notes"].to_string();
        assert!(notes.contains("of 301 threads"), "{notes}");
    }
    assert!(!has_write_protection(&target));
    assert!(target.finish().success());
}

/// Checks that memhook-rs uses no debug register of another tracer.
#[test]
fn without_watchpoints_only_writes_are_seen_and_that_is_said() {
    let mut target = Target::start(program(), &[]);
    let tids = std::fs::read_dir(format!("/proc/{}/task", target.pid())).expect("it lives");
    let tids = tids.map(|tid| {
        tid.expect("a tid")
            .file_name()
            .into_string()
            .expect("digits")
    });
    let taken: Vec<Watchpoint> = tids
        .flat_map(|tid| (0..4).map(move |_| tid.parse().expect("a tid")))
        .filter_map(|tid| Watchpoint::reserve(tid, 0, true).ok())
        .collect();
    let options = ["--older", "2s", "-d", "2m", "-i", "5s", "--json"];
    let watching = Watching::begin(&target, &options);
    target.go();
    target.expect("done");
    let kinds = ["cold_block", "read_block"];
    let report = watching.report_when(|report| kinds.iter().all(|kind| is_stale(report, kind)));
    drop(taken);
    assert_eq!(report["evidence"]["words"], false, "{report}");
    assert_eq!(report["evidence"]["traps"], 0);
    assert!(
        report["notes"].to_string().contains("reads are not seen"),
        "{report}"
    );
    // Without watchpoints, memory that is read but not written counts as stale.
    for kind in kinds {
        let site = site(&report, kind);
        let [low, estimate, _] = interval(site);
        assert_eq!(
            (low, &site["unwritten_bytes"]),
            (estimate, &estimate.into())
        );
        assert!(estimate > COUNT * BYTES * 9 / 10, "{kind}: {report}");
        assert_eq!(site["state"], "stale", "{site}");
    }
    let text = run(&[
        "stale",
        &target.pid().to_string(),
        "--older",
        "500ms",
        "-d",
        "1s",
    ]);
    assert_eq!(text.0, 0, "{}", text.2);
    assert!(text.1.contains(" live in "), "{}", text.1);
    assert!(target.finish().success());
}

/// Checks that a kill removes all protection, and that the next watch works.
#[test]
fn nothing_is_left_of_a_watcher_that_was_killed() {
    let target = Target::start(program(), &[]);
    let pid = target.pid().to_string();
    let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let heaps = || maps().matches("[heap]").count();
    assert_eq!(heaps(), 1);
    for _ in 0..3 {
        let watching = Watching::begin(&target, &["--older", "1s", "-d", "1m"]);
        until("pages are watched", || has_write_protection(&target));
        // The heap is split into pieces, and the kernel sums up the accesses for each piece.
        until("the heap is in pieces", || heaps() > 4);
        drop(watching);
        until("the protection is gone", || !has_write_protection(&target));
        until("the heap is whole again", || heaps() == 1);
        assert!(target.is_alive());
    }
    // Another tracer uses half of the debug registers; the rest suffice.
    let has_words = has_watchpoints(&target);
    let tid = target.pid() as i32;
    let taken: Vec<Watchpoint> = (0..2)
        .filter_map(|_| Watchpoint::reserve(tid, 0, true).ok())
        .collect();
    let watching = Watching::begin(&target, &["--older", "1s", "-d", "1m", "--json"]);
    until("pages are watched", || has_write_protection(&target));
    watching.signal(libc::SIGINT);
    let report = watching.report();
    drop(taken);
    assert_eq!(report["final"], true);
    assert_eq!(report["evidence"]["words"], has_words, "{report}");
    assert!(!has_write_protection(&target));
    let (code, _, errors) = run(&["detach", &pid]);
    assert_eq!(code, 0, "{errors}");
    assert!(target.finish().success());
}

/// Checks that threads that map memory wait for only a small part of the time that it takes to read
/// and clear the marks of a large heap.
#[test]
fn marks_of_a_large_heap_make_nobody_wait_long() {
    /// Limit for a wait, which is much less than the time to clear all marks in one step.
    const MOST_US: u64 = 15_000;
    /// Interval within which marks are read and cleared at least once.
    const WINDOW: Duration = Duration::from_millis(3500);
    let mut stalls = MappingStalls::start("1500");
    let watching = Watching::begin(&stalls.0, &["--older", "1s", "-d", "5m", "--json"]);
    let waits = stalls.waits_during(MOST_US, || std::thread::sleep(WINDOW));
    watching.signal(libc::SIGINT);
    let report = watching.report();
    println!("{waits:?} us; {}", report["evidence"]);
    assert!(waits.last() < Some(&MOST_US), "{waits:?}: {report}");
    // memhook-rs clears the marks in parts. If this is not permitted, or if memory may be swapped
    // out, it does not clear them, and the report says so.
    let clears = report["evidence"]["clears"].as_u64().expect("a number");
    let is_said = report["notes"].to_string().contains("so large that");
    assert!(clears > 0 || is_said, "{report}");
    assert!(stalls.0.finish().success());
}

/// Checks the report on a program that exits during the watch.
#[test]
fn a_program_that_ends_is_reported_as_it_was() {
    let target = Target::start(program(), &[]);
    let options = ["--older", "1s", "-d", "5m", "--json", "-i", "1s"];
    let mut watching = Watching::begin(&target, &options);
    let mut reports = BufReader::new(watching.child.stdout.take().expect("piped"));
    reports.read_line(&mut String::new()).expect("a report");
    target.signal(libc::SIGKILL);
    drop(target);
    let mut rest = String::new();
    reports.read_to_string(&mut rest).expect("readable");
    let status = watching.child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    let report: Value = serde_json::from_str(rest.lines().last().expect("one")).expect("JSON");
    assert_eq!(report["final"], true);
    assert!(
        report["totals"]["live_bytes"].as_u64() >= Some(4 * COUNT * BYTES),
        "{report}"
    );
}

/// Between the attach and the first pass there is nothing to report, and the output must not claim
/// that nothing is stale.
#[test]
fn a_program_that_ends_at_the_beginning_is_reported_or_refused() {
    // Each round kills the program later than the previous round.
    let rounds = rounds(40) as u64;
    for round in 0..rounds {
        let mut program = Command::new("sleep").arg("1000").spawn().expect("it runs");
        let pid = program.id().to_string();
        let maps = format!("/proc/{pid}/maps");
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| run(&["stale", "-q", "--json", "--older", "5ms", &pid]));
            // memhook-rs may refuse the attach before the hook is visible, while the program's
            // loader still runs.
            let is_attached = || {
                std::fs::read_to_string(&maps)
                    .unwrap_or_default()
                    .contains("memhook")
            };
            until("it is attached to", || is_attached() || watch.is_finished());
            // The kill may come at any moment of a pass.
            std::thread::sleep(Duration::from_micros(16_000 * round / rounds));
            program.kill().expect("killed");
            let (code, out, err) = watch.join().expect("no panic");
            match code {
                0 => assert!(out.contains("\"final\":true"), "round {round}: {out}{err}"),
                2 => assert_eq!((out.as_str(), err.lines().count()), ("", 1), "{err}"),
                code => panic!("{code}: {err}"),
            }
        });
        program.wait().expect("reaped");
    }
}

/// Checks that a trace's final report has a section on stale blocks, with the references to the
/// blocks.
#[test]
fn a_section_of_a_trace() {
    const LOST: u64 = 100 * 6000;
    let traced = |ms: u64| {
        let mut target = Target::start(program(), &["1", "nobody", "lose"]);
        let attacher = Attacher::start(&target, &["--stale=1s", "--leaks"]);
        target.go();
        target.expect("done");
        // Ages are times, so the test cannot wait for a state.
        std::thread::sleep(Duration::from_millis(ms));
        (target, attacher.finish())
    };
    // A suspended attacher does not read the marks, so the test then tries a longer time.
    let mut tries = [2500, 8000, 20_000].into_iter().map(traced);
    let found = tries.find(|(_, report)| is_stale(&report["stale"], "cold_block"));
    let (target, report) = found.expect("what nobody touches is stale");
    let pid = target.pid().to_string();
    JsonSchema::load("report-1").check(&report);
    let stale = &report["stale"];
    JsonSchema::load("stale-1").check(stale);
    assert_eq!(
        (&stale["older_s"], &stale["final"]),
        (&1.0.into(), &true.into())
    );
    let cold = site(stale, "cold_block");
    let [low, estimate, high] = interval(cold);
    assert!(low <= estimate && estimate <= high, "{cold}");
    assert!(estimate > COUNT * BYTES * 9 / 10, "{cold}");
    let number = |site: &Value, name: &str| site[name].as_u64().expect("a number");
    assert_eq!(number(cold, "unreachable_bytes"), 0, "{cold}");
    assert_eq!(number(cold, "reachable_stale_bytes"), estimate, "{cold}");
    assert_eq!(number(cold, "in_use_bytes"), COUNT * BYTES - estimate);
    // A stale pointer may remain on a stack.
    let lost = site(stale, "lost_block");
    let unreachable = number(lost, "unreachable_bytes");
    assert!((LOST - 3 * 6000..=LOST).contains(&unreachable), "{lost}");
    assert!(number(lost, "reachable_stale_bytes") <= 3 * 6000, "{lost}");
    // `scan --why` names the holder of a stale block.
    let block = cold["stale_block"].as_str().expect("an address");
    let (code, why, errors) = run(&["scan", &pid, "--why", block]);
    assert_eq!(code, 0, "{errors}");
    assert!(why.contains(block), "{why}");
    assert!(!has_write_protection(&target));
    // The other command also shows blocks from before the attach.
    let (code, out, errors) = run(&[
        "stale", &pid, "--older", "500ms", "-d", "1s", "--leaks", "--json", "-q", "-T", "1000",
    ]);
    assert_eq!(code, 0, "{errors}");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    JsonSchema::load("stale-1").check(&report);
    let sites = report["sites"].as_array().expect("sites").iter();
    let unreachable: u64 = sites.map(|site| number(site, "unreachable_bytes")).sum();
    assert!(unreachable >= LOST - 3 * 6000, "{report}");
    assert!(target.finish().success());
}

/// Checks that a recording contains the section and the ages of the bytes, and that a report and
/// the page show both.
#[test]
fn a_recording_keeps_it() {
    let folder = Folder::new("stale-recording");
    let recording = folder.path("run.mhk");
    let traced = |ms: u64| {
        let mut target = Target::start(program(), &["1", "nobody"]);
        let options = ["--stale=500ms", "--force", "-o", &recording];
        let attacher = Attacher::start(&target, &options);
        target.go();
        target.expect("done");
        // Ages are times, so the test cannot wait for a state.
        std::thread::sleep(Duration::from_millis(ms));
        let live = attacher.finish();
        assert!(target.finish().success());
        live
    };
    // A suspended attacher does not read the marks, so the test then tries a longer time.
    let mut tries = [2500, 8000, 20_000].into_iter().map(traced);
    let live = tries.find(|live| KINDS.iter().all(|kind| is_stale(&live["stale"], kind)));
    let live = live.expect("what nobody touches is stale");
    let (code, out, errors) = run(&["report", &recording, "--json"]);
    assert_eq!(code, 0, "{errors}");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    JsonSchema::load("report-1").check(&report);
    assert_eq!(report["stale"], live["stale"]);
    let history = &report["stale"]["history"];
    let numbers = |list: &Value| -> Vec<u64> {
        let list = list.as_array().expect("a list").iter();
        list.map(|number| number.as_u64().expect("a number"))
            .collect()
    };
    let points = history["points"].as_array().expect("points");
    let last = points.last().expect("a moment");
    let untouched = numbers(&last["untouched_bytes"]);
    assert_eq!(untouched.len(), 7);
    let live_bytes = report["stale"]["totals"]["live_bytes"].as_u64();
    assert_eq!(Some(untouched.iter().sum::<u64>()), live_bytes);
    // The program touches nothing, and pages are watched from the first second on.
    let old: u64 = untouched[1..].iter().sum();
    assert!(old > 4 * COUNT * BYTES * 9 / 10, "{last}");
    assert_eq!(numbers(&last["pages"]).len(), 4);
    let (_, text, _) = run(&["report", &recording]);
    let (_, section) = text
        .split_once("Untouched for at least: ")
        .expect("a section");
    assert!(!section.contains("--depth"), "stacks are whole: {text}");
    // A report on part of the run has no section about stale blocks.
    let (code, out, _) = run(&["report", &recording, "--json", "--to", "1s"]);
    assert_eq!(code, 0);
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert!(report.get("stale").is_none(), "{out}");
    let page = folder.path("run.html");
    assert_eq!(run(&["view", &recording, "-o", &page]).0, 0);
}

/// Checks that memhook-rs makes no system calls in a program that forbids them, and that an execve
/// ends the watch.
#[test]
fn programs_that_forbid_or_execute() {
    let sandboxed = build_target("sandboxed", &["-Wl,-z,now", "-Wl,-z,relro"]);
    let target = Target::start(&sandboxed, &["kill"]);
    let pid = target.pid().to_string();
    let options = ["--older", "500ms", "-d", "1s", "--json", "-q"];
    let words = [&["stale", &pid], &options[..]].concat();
    let (code, out, errors) = run(&words);
    if !errors.contains("seccomp filter that does not apply to us") {
        let report: Value = serde_json::from_str(&out).expect(&errors);
        assert_eq!(code, 0);
        // The result differs if the filter can be suspended, which requires CAP_SYS_ADMIN.
        let notes = report["notes"].to_string();
        let is_let_be = notes.contains("a seccomp filter may kill");
        assert_ne!(report["evidence"]["pages"], is_let_be, "{notes}");
    }
    assert!(target.is_alive(), "{errors}");
    drop(target);

    for by in ["exec", "exec_by_thread"] {
        let mut target = Target::start(&build_target("endings", &[]), &[by]);
        let watching = Watching::begin(&target, &["--older", "1s", "-d", "5m", "--json"]);
        target.go();
        target.expect("ready");
        let report = watching.report();
        assert_eq!(report["final"], true);
        assert!(!has_write_protection(&target));
        assert!(target.is_alive());
        target.go();
        target.expect("done");
        assert!(target.finish().success());
    }
}

/// Checks that the budget includes the cost of context switches of threads with watchpoints.
#[test]
fn threads_that_take_turns_often_are_left_alone() {
    let mut target = Target::start(program(), &["1", "touched", "turns"]);
    if !has_watchpoints(&target) {
        return not_run("no hardware watchpoints here");
    }
    let options = "--older 2s -d 2m -i 11s --json --budget 0.2%";
    let options: Vec<&str> = options.split(' ').collect();
    let watching = Watching::begin(&target, &options);
    target.go();
    target.expect("done");
    let report = watching.report_when(|report| is_stale(report, "cold_block"));
    let notes = report["notes"].to_string();
    assert!(notes.contains("words are watched for"), "{report}");
    // The report contains this cost. There were two windows of five seconds, and a third had just
    // begun.
    let cost = report["cost"].as_f64().expect("a share");
    assert!(cost > 0.0 && cost <= 0.002 * 3.0 * 5.0 / 11.0, "{report}");
    // Page evidence shows that these blocks are not read.
    let [low, estimate, high] = interval(site(&report, "cold_block"));
    assert!(low <= estimate && estimate <= high, "{report}");
    assert!(estimate > COUNT * BYTES * 9 / 10, "{report}");
    target.go();
    assert!(target.finish().success());
}

/// Checks that memhook-rs does not touch the debug registers of other tracers, and works with the
/// remaining registers.
#[test]
fn some_watchpoints_are_taken() {
    let mut target = Target::start(program(), &[]);
    if !has_watchpoints(&target) {
        return not_run("no hardware watchpoints here");
    }
    let taken = [0, 1].map(|_| Watchpoint::reserve(target.pid() as i32, 0, true));
    let options = "--older 1s -d 2m -i 5s --json --budget 5%";
    let options: Vec<&str> = options.split(' ').collect();
    let watching = Watching::begin(&target, &options);
    target.go();
    target.expect("done");
    let report = watching
        .report_when(|report| is_stale(report, "cold_block") && report["evidence"]["traps"] != 0);
    assert_eq!(report["evidence"]["words"], true, "{report}");
    let [low, estimate, high] = interval(site(&report, "cold_block"));
    assert!(
        low <= estimate && estimate <= high && high <= COUNT * BYTES,
        "{report}"
    );
    assert_ne!(report["evidence"]["traps"], 0, "{report}");
    // No other tracer has lost a register.
    assert!(taken.iter().all(Result::is_ok));
    assert!(target.finish().success());
}

#[test]
fn bad_input() {
    let target = Target::start(program(), &["1", "nobody"]);
    let pid = target.pid().to_string();
    for budget in ["0", "0%", "50.5%", "-1%", "much"] {
        let (code, out, errors) = run(&["stale", &pid, &format!("--budget={budget}")]);
        assert_eq!((code, out.as_str()), (2, ""), "{budget}");
        assert!(errors.contains("up to 50%"), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    let (code, _, errors) = run(&["stale", "999999999"]);
    assert_eq!((code, errors.lines().count()), (2, 1), "{errors}");
    assert!(!has_write_protection(&target));
    assert!(target.finish().success());
}
