//! Exact counts of planted calls by probes, which leave the process unchanged.

use memhook_tests::{Prober, Target, build_target, calls, changed_code, rounds, run, until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

const FUNCTIONS: &str =
    "relative,begins_with_call,branches,padded,throws,jumps,recurses,keeps_all,calls_keeps_all";

fn program(flags: &[&str]) -> PathBuf {
    build_target("probed", &[&["-O2"], flags].concat())
}

fn start(threads: u64, rounds: u64, more: &[&str]) -> Target {
    start_with(&[], threads, rounds, more)
}

fn start_with(flags: &[&str], threads: u64, rounds: u64, more: &[&str]) -> Target {
    let (threads, rounds) = (threads.to_string(), rounds.to_string());
    Target::start(
        &program(flags),
        &[&[threads.as_str(), &rounds], more].concat(),
    )
}

/// Returns the calls planted in `turns` turns, given the number of rounds in all threads.
fn planted(turns: u64) -> BTreeMap<String, u64> {
    let by_round = [
        ("relative", 2),
        ("begins_with_call", 1),
        ("branches", 1),
        ("padded", 1),
        ("throws", 1),
        ("jumps", 1),
        ("recurses", 10),
        ("keeps_all", 1),
        ("calls_keeps_all", 1),
    ];
    by_round
        .into_iter()
        .map(|(name, calls)| (name.to_owned(), calls * turns))
        .collect()
}

/// Checks that flags, registers, exceptions, longjmp and recursion work as they do without probes,
/// and that every call counts once.
#[test]
fn planted_calls_are_counted_exactly() {
    for flags in [&[][..], &["-fcf-protection=full"], &["-no-pie"], &["-Os"]] {
        let mut target = start_with(flags, 4, 2000, &[]);
        let prober = Prober::start(&target, FUNCTIONS, &[]);
        target.go();
        target.expect("done");
        let report = prober.finish();
        assert_eq!(calls(&report), planted(4 * 2000), "{flags:?}");
        assert_eq!(report["schema"], "memhook-rs/probe/1");
        assert_eq!(report["final"], true);
        assert_eq!(report["refused"].as_array().map(Vec::len), Some(0));
        for row in report["probes"].as_array().expect("rows") {
            let threads = row["threads"].as_array().expect("threads");
            assert_eq!(threads.len(), 4, "{row}");
            let of_each = row["calls"].as_u64().expect("a number") / 4;
            assert!(
                threads.iter().all(|thread| thread["calls"] == of_each),
                "{row}"
            );
        }
        assert_eq!(changed_code(target.pid()), Vec::<String>::new());
        target.go();
        target.expect("done");
        assert!(target.finish().success());
    }
}

/// Checks that the counters outlive the process.
#[test]
fn calls_of_a_process_that_ends_are_counted_to_the_last() {
    let mut target = start(3, 500, &[]);
    let prober = Prober::start(&target, FUNCTIONS, &[]);
    target.send("q");
    assert_eq!(calls(&prober.report()), planted(3 * 500));
    let mut target = start(3, 500, &[]);
    let prober = Prober::start(&target, FUNCTIONS, &[]);
    target.go();
    target.expect("done");
    // Another program with this pid.
    target.send("x");
    target.expect("ready");
    assert_eq!(calls(&prober.report()), planted(3 * 500));
    target.go();
    target.expect("done");
    assert_eq!(changed_code(target.pid()), Vec::<String>::new());
    assert!(target.finish().success());
}

/// Checks that a forked process, which inherits the pads, counts nothing and is restored with its
/// parent.
#[test]
fn forked_processes_count_nothing_and_are_put_right() {
    let mut target = start(2, 300, &[]);
    let prober = Prober::start(&target, FUNCTIONS, &[]);
    target.go();
    target.expect("done");
    target.send("f");
    let child: u32 = target.expect("child ")[6..].trim().parse().expect("a pid");
    assert_eq!(calls(&prober.finish()), planted(2 * 300));
    assert_eq!(changed_code(child), Vec::<String>::new());
    assert_eq!(changed_code(target.pid()), Vec::<String>::new());
    target.go();
    target.expect("child done");
    target.expect("done");
    assert!(target.finish().success());
}

/// Checks that the process continues after its attacher was killed, and that `detach` restores
/// every byte, even in a forked process.
#[test]
fn detach_puts_right_what_a_killed_attacher_left() {
    let mut target = start(2, 300, &[]);
    let prober = Prober::start(&target, FUNCTIONS, &[]);
    prober.kill();
    target.go();
    target.expect("done");
    target.send("f");
    let child = target.expect("child ")[6..].trim().to_owned();
    let changed = changed_code(target.pid());
    assert!(!changed.is_empty());
    for pid in [child, target.pid().to_string()] {
        let (code, output, errors) = run(&["detach", &pid]);
        assert_eq!(code, 0, "{output}{errors}");
        assert_eq!(
            changed_code(pid.parse().expect("a pid")),
            Vec::<String>::new()
        );
    }
    target.go();
    target.expect("child done");
    target.expect("done");
    // Probes the functions again.
    let prober = Prober::start(&target, FUNCTIONS, &[]);
    target.go();
    target.expect("done");
    assert_eq!(calls(&prober.finish()), planted(2 * 300));
    assert!(target.finish().success());
}

/// Places and removes probes while eight threads call, throw, jump and handle signals.
#[test]
fn busy_threads_never_notice_probes_that_come_and_go() {
    let mut target = start(8, 200, &["signals"]);
    target.send("b");
    for n in 0..rounds(25) {
        let functions = format!("{FUNCTIONS},in_handler");
        let options = match n % 4 {
            0 => &["-d", "50ms"][..],
            1 => &["-d", "50ms", "--latency"],
            2 => &["-d", "50ms", "--args", "1,2,3", "--stack"],
            _ => &["-d", "50ms", "--latency", "--stack"],
        };
        // The program may be suspended throughout.
        until("a probed function is called", || {
            let prober = Prober::start(&target, &functions, options);
            let report = prober.report();
            let refused = report["refused"].as_array().expect("refused");
            let is_exit = |row: &serde_json::Value| {
                row["why"]
                    .as_str()
                    .is_some_and(|why| why.contains("latency cannot be measured"))
            };
            assert!(refused.iter().all(is_exit), "{report}");
            assert!(n % 2 == 1 || refused.is_empty(), "{report}");
            assert_eq!(changed_code(target.pid()), Vec::<String>::new());
            calls(&report).values().any(|&calls| calls > 0)
        });
    }
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}

/// Checks that the program continues if attachers are killed at any moment, and that the next
/// attacher restores everything.
#[test]
fn attachers_that_are_killed_at_any_moment_leave_a_process_that_works() {
    let mut target = start(8, 200, &["signals"]);
    target.send("b");
    // Any number of rounds covers the whole range of delays.
    let rounds = rounds(40) as u64;
    for n in 0..rounds {
        let options = if n % 2 == 0 {
            &[][..]
        } else {
            &["--args", "1", "--stack"]
        };
        let prober = Prober::spawn(target.pid(), FUNCTIONS, options);
        // The delays cover the time that placing takes on this machine.
        std::thread::sleep(std::time::Duration::from_micros(
            n * n * 150 * 40 * 40 / (rounds * rounds),
        ));
        prober.kill();
        if n % 3 == 0 {
            let (code, output, errors) = run(&["detach", &target.pid().to_string()]);
            assert_eq!(code, 0, "{output}{errors}");
            assert_eq!(changed_code(target.pid()), Vec::<String>::new());
        }
    }
    until("a probed function is called", || {
        let prober = Prober::start(&target, FUNCTIONS, &["-d", "100ms"]);
        let calls = calls(&prober.report());
        calls.values().any(|&calls| calls > 0)
    });
    assert_eq!(changed_code(target.pid()), Vec::<String>::new());
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}

/// Checks that a refusal is one line with exit code 2, and leaves the process unchanged.
#[test]
fn what_cannot_be_probed_is_refused_in_one_line() {
    let target = start(1, 1, &[]);
    let pid = target.pid().to_string();
    for (functions, reason) in [
        ("relativ", "did you mean relative"),
        ("nowhere!relative", "no module 'nowhere'"),
        ("libk!relative", "no module 'libk': did you mean libc"),
        ("libc!no_such_function_at_all", "no function is called"),
        ("too_short", "too short"),
        ("entered_in_the_middle", "jumps into its first bytes"),
        (
            "loops_to_entry",
            "a loop jumps back to its first instruction",
        ),
        ("melts", "inlined at probed.cc:"),
        ("libc!strlen", "ifunc"),
        ("a,,b", "names no function"),
        ("relative,too_long_a_name_for_any", "no function is called"),
    ] {
        let (code, output, errors) = run(&["probe", &pid, "--func", functions]);
        assert_eq!((code, output.as_str()), (2, ""), "{functions}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{functions}: {errors}");
        assert!(errors.contains(reason), "{functions}: {errors}");
    }
    assert_eq!(changed_code(target.pid()), Vec::<String>::new());
    // Given many functions, memhook-rs probes the functions that it can, and lists the rest.
    let prober = Prober::start(&target, "relative,too_short,probed*!loops_to_entr?", &[]);
    let report = prober.finish();
    assert_eq!(calls(&report).len(), 1);
    let refused = report["refused"].as_array().expect("refused");
    assert_eq!(refused.len(), 2, "{report}");
    assert!(
        refused
            .iter()
            .all(|row| row["function"].is_string() && row["why"].is_string())
    );
    assert!(target.finish().success());
}

/// Checks that a dry run shows what would be written and touches nothing.
#[test]
fn a_dry_run_touches_nothing() {
    let target = start(1, 1, &[]);
    let pid = target.pid().to_string();
    let words = ["probe", &pid, "--func", "relative,too_short", "--dry-run"];
    let (code, output, errors) = run(&words);
    assert_eq!((code, errors.as_str()), (0, ""));
    for part in [
        "relative",
        "displaced: mov rax",
        "lock inc",
        "too_short",
        "too short",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    let (_, json, _) = run(&[&words[..], &["--json"]].concat());
    let plan: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(plan["schema"], "memhook-rs/probe-plan/1");
    assert_eq!(plan["probes"][0]["function"], "relative");
    assert_eq!(plan["refused"][0]["function"], "too_short");
    assert_eq!(changed_code(target.pid()), Vec::<String>::new());
    assert!(target.finish().success());
}

/// Checks that only calls whose arguments meet the conditions count.
#[test]
fn conditions_choose_the_calls_that_count() {
    for (condition, expected) in [
        ("arg1 > 90", 9 * 2),
        ("arg1 >= 10 && arg1 < 0x14", 10 * 2),
        ("arg1 == 7", 2),
        ("arg1 != 7", 99 * 2),
        ("arg1 <= -1", 0),
    ] {
        let mut target = start(2, 100, &[]);
        let functions = "begins_with_call,branches,keeps_all";
        let prober = Prober::start(&target, functions, &["--if", condition]);
        target.go();
        target.expect("done");
        let report = prober.finish();
        assert_eq!(calls(&report)["begins_with_call"], expected, "{condition}");
        assert!(target.finish().success());
    }
    let target = start(1, 1, &[]);
    let pid = target.pid().to_string();
    for (condition, reason) in [
        ("arg7 > 1", "arg1 to arg6"),
        ("size > 1", "is not a condition"),
    ] {
        let (code, _, errors) = run(&["probe", &pid, "--func", "relative", "--if", condition]);
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains(reason), "{errors}");
    }
    assert_eq!(changed_code(target.pid()), Vec::<String>::new());
}

/// Checks that calls and returns are matched by thread and stack, through recursion, exceptions and
/// longjmp. Only calls that return have a latency.
#[test]
fn latencies_are_those_of_calls() {
    for flags in [&[][..], &["-fcf-protection=full"]] {
        let mut target = start_with(flags, 4, 500, &[]);
        let prober = Prober::start(&target, "sleeps,hands_on", &["--latency"]);
        target.send("s");
        target.expect("done");
        let report = prober.finish();
        assert_eq!(calls(&report)["sleeps"], 1 + 100 + 21, "{report}");
        assert_eq!(calls(&report)["hands_on"], 21, "{report}");
        let rows = report["probes"].as_array().expect("rows");
        let of = |name: &str, field: &str| {
            let row = rows.iter().find(|row| row["function"] == name).expect(name);
            row["latency_ns"][field].as_u64().expect(field)
        };
        // The very first call of the thread is not measured.
        assert_eq!(of("sleeps", "calls"), 121, "{report}");
        assert_eq!(of("hands_on", "calls"), 21, "{report}");
        // No call can be shorter than its sleep. The excess depends on the machine.
        assert!(of("sleeps", "p50") >= 990_000, "{report}");
        assert!(of("sleeps", "max") >= 49_000_000, "{report}");
        assert!(of("sleeps", "p50") <= of("sleeps", "p99"), "{report}");
        assert!(of("sleeps", "p99") <= of("sleeps", "max"), "{report}");
        // The function ends with a tail call.
        assert!(of("hands_on", "p50") < 990_000, "{report}");
        // Probes all planted calls, including those whose latency cannot be measured.
        let functions = "relative,begins_with_call,padded,recurses,throws,jumps";
        let prober = Prober::start(&target, functions, &["--latency"]);
        target.go();
        target.expect("done");
        let report = prober.finish();
        let planted = planted(4 * 500);
        for row in report["probes"].as_array().expect("rows") {
            let name = row["function"].as_str().expect("a name");
            assert_eq!(row["calls"], planted[name], "{row}");
            let measured = row["latency_ns"]["calls"].as_u64().expect("calls");
            // A thread that shares its entry in the table with another thread measures nothing.
            assert!(measured <= planted[name], "{row}");
        }
        assert_eq!(changed_code(target.pid()), Vec::<String>::new());
        target.go();
        target.expect("done");
        assert!(target.finish().success());
    }
}

/// Checks that --args and --stack find every planted argument and caller of several threads and the
/// main thread.
#[test]
fn arguments_and_callers_are_counted_exactly() {
    for (flags, more) in [
        (&[][..], &[][..]),
        (
            &["-fcf-protection=full", "-fomit-frame-pointer"],
            &["--latency"],
        ),
        (
            &["-no-pie", "-fno-omit-frame-pointer"],
            &["--if", "arg1 >= 0"],
        ),
    ] {
        let (threads, rounds) = (3, 200);
        let mut target = start_with(flags, threads, rounds, &[]);
        let options = [&["--args", "2,1", "--stack"], more].concat();
        let prober = Prober::start(&target, "takes,from_left,throws", &options);
        for _ in 0..2 {
            target.send("a");
            target.expect("done");
        }
        // Exceptions pass through the probe.
        target.go();
        target.expect("done");
        let report = prober.finish();
        let turns = 2 * threads * rounds;
        let row = |name: &str| {
            let rows = report["probes"].as_array().expect("rows");
            let row = rows.iter().find(|row| row["function"] == name);
            row.unwrap_or_else(|| panic!("{name} in {report}")).clone()
        };
        let takes = row("takes");
        assert_eq!(takes["calls"], 3 * turns, "{flags:?}");
        // The arguments are in the requested order; the second argument is -1 or the number of the
        // round.
        let second = &takes["args"][0];
        assert_eq!(
            (&second["arg"], &second["calls"]),
            (&2.into(), &(3 * turns).into())
        );
        assert_eq!(
            (&second["min"], &second["max"]),
            (&(-1).into(), &(rounds - 1).into())
        );
        assert_eq!(second["top"][0], json!({"value": -1, "calls": turns}));
        let class =
            |from: i64, to: i64, calls: u64| json!({"from": from, "to": to, "calls": calls});
        let each = 2 * 2 * threads;
        let classes = second["histogram"].as_array().expect("classes");
        assert_eq!(
            classes[..4],
            [
                class(-1, -1, turns),
                class(0, 0, each),
                class(1, 1, each),
                class(2, 3, 2 * each),
            ]
        );
        assert_eq!(
            classes.last(),
            Some(&class(128, 255, (rounds - 128) * each))
        );
        let first = &takes["args"][1];
        assert_eq!(first["arg"], 1);
        for value in 0..4 {
            assert_eq!(
                first["top"][value],
                json!({"value": value, "calls": turns / 4})
            );
        }
        assert_eq!(first["top"][4], json!({"value": 4096, "calls": each}));
        // Of 204 values, the report contains the hundred most frequent values.
        assert_eq!(first["top"].as_array().map(Vec::len), Some(100));
        assert_eq!(first["others"], 2 * turns - 96 * each);
        assert_eq!(
            callers(&takes),
            [
                ("from_left < ask".to_owned(), turns),
                ("from_right < ask".to_owned(), 2 * turns),
            ]
        );
        assert_eq!(takes["calls_without_stack"], 0);
        assert_eq!(
            callers(&row("from_left")),
            [("ask < start_thread".to_owned(), turns)]
        );
        let throws = row("throws");
        assert_eq!(throws["calls"], threads * rounds);
        assert_eq!(
            callers(&throws),
            [("work < start_thread".to_owned(), threads * rounds)]
        );
        assert_eq!(changed_code(target.pid()), Vec::<String>::new());
        target.go();
        target.expect("done");
        assert!(target.finish().success());
    }
}

/// Returns the number of calls by the two innermost callers.
fn callers(row: &Value) -> Vec<(String, u64)> {
    let mut sums = BTreeMap::new();
    for stack in row["stacks"].as_array().expect("stacks") {
        assert_eq!(stack["truncated"], false, "{stack}");
        let frames = stack["stack"].as_array().expect("frames");
        let names = frames
            .iter()
            .take(2)
            .map(|frame| match frame["function"].as_str() {
                // The C library does not export this function, so it has a name only if libc6-dbg
                // is installed.
                None if frame["module"] == "libc.so.6" => "start_thread",
                name => name.expect("a name"),
            });
        let names: Vec<&str> = names.collect();
        *sums.entry(names.join(" < ")).or_default() += stack["calls"].as_u64().expect("calls");
    }
    sums.into_iter().collect()
}

/// Checks that third-party formats contain these numbers, with the probed function innermost.
#[test]
fn callers_become_flame_graphs() {
    let mut target = start(2, 50, &[]);
    let prober = Prober::start(&target, "takes,from_left", &["--stack", "-f", "folded"]);
    target.send("a");
    target.expect("done");
    let folded = prober.finish_text();
    let ends = |line: &str, end: &str| line.contains("ask;") && line.ends_with(end);
    for end in [
        ";ask;from_left 100",
        ";ask;from_left;takes 100",
        ";ask;from_right;takes 200",
    ] {
        assert!(
            folded.lines().any(|line| ends(line, end)),
            "{end}: {folded}"
        );
    }
    assert_eq!(folded.lines().count(), 3, "{folded}");
    let prober = Prober::start(&target, "takes", &["--stack", "--format", "flamegraph"]);
    target.send("a");
    target.expect("done");
    let picture = prober.finish_text();
    for part in [
        "<svg",
        "callers of probed functions",
        "300 calls",
        "from_right (200 calls",
    ] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
    let pid = target.pid().to_string();
    for (options, reason) in [
        (&["--args", "7"][..], "only 1 to 6"),
        (&["--args", "0"], "only 1 to 6"),
        (&["--args", "size"], "is not an argument"),
        (&["-f", "folded"], "add --stack"),
        (
            &["--stack", "-f", "heaptrack"],
            "text, json, folded or flamegraph",
        ),
        (&["--stack", "-f", "picture"], "unknown format picture"),
    ] {
        let (code, output, errors) = run(&[&["probe", &pid, "--func", "takes"], options].concat());
        assert_eq!((code, output.as_str()), (2, ""), "{options:?}: {errors}");
        assert!(errors.contains(reason), "{options:?}: {errors}");
    }
    assert_eq!(changed_code(target.pid()), Vec::<String>::new());
    assert!(target.finish().success());
}

/// Checks coroutines, which leave a function in the middle and return to it. C++ coroutines return
/// to their caller; ucontext coroutines switch to another stack.
#[test]
fn coroutines_are_counted_and_go_on() {
    let rounds = 300;
    let mut target = start(1, rounds, &[]);
    for options in [
        &["--latency"][..],
        &["--stack", "--args", "1"],
        &["--latency", "--stack"],
    ] {
        let functions = "_Z*count_up*.actor,relative,yields";
        let prober = Prober::start(&target, functions, options);
        target.send("c");
        target.expect("done");
        let report = prober.finish();
        let calls = calls(&report);
        assert_eq!(calls["relative"], 2 * rounds);
        assert_eq!(calls["yields"], 2 * rounds);
        let actor = calls.iter().find(|(name, _)| name.contains("count_up"));
        // Each resumption, and the destruction.
        assert_eq!(
            actor.map(|(_, calls)| *calls),
            Some(2 * (rounds + 1)),
            "{report}"
        );
        for row in report["probes"].as_array().expect("rows") {
            if let Some(measured) = row["latency_ns"]["calls"].as_u64() {
                assert!(measured <= row["calls"].as_u64().expect("calls"), "{row}");
            }
            if row["function"] == "yields" && row["stacks"].is_array() {
                assert_eq!(row["calls_without_stack"], 0);
                let stacks = row["stacks"].as_array().expect("stacks");
                assert!(
                    stacks
                        .iter()
                        .all(|stack| stack["stack"][0]["function"] == "body(int)"
                            || stack["stack"][0]["function"] == "body"),
                    "{row}"
                );
            }
        }
        assert_eq!(changed_code(target.pid()), Vec::<String>::new());
    }
    target.send("c");
    target.expect("done");
    assert!(target.finish().success());
}

/// Checks that only one attacher can be active, whether it traces or probes.
#[test]
fn a_second_prober_is_refused() {
    let target = start(1, 1, &[]);
    let prober = Prober::start(&target, "relative", &[]);
    let pid = target.pid().to_string();
    for words in [&["probe", &pid, "--func", "padded"][..], &["detach", &pid]] {
        let (code, _, errors) = run(words);
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains("traced by memhook-rs"), "{errors}");
    }
    prober.finish();
    until("the pads are gone", || {
        changed_code(target.pid()).is_empty()
    });
    assert!(target.finish().success());
}
