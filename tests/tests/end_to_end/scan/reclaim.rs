//! Reclaims leaked blocks of running programs, which check all of their blocks in use.

use memhook_tests::scans::scan;
use memhook_tests::{
    Attacher, Target, binary, build_library, build_target, can_pass_by_filters, rounds, run, stop,
};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// Starts a scan in the background.
fn spawn(pid: u32, options: &[&str]) -> Child {
    Command::new(binary())
        .args(["scan", &pid.to_string()])
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("memhook-rs starts")
}

/// Returns for each address whether the block is leaked.
fn blocks(text: &str) -> BTreeMap<u64, bool> {
    let lines = text.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let leaked = match fields.next()? {
            "leak" => true,
            "live" => false,
            _ => return None,
        };
        let address = fields.next()?.trim_start_matches("0x");
        Some((u64::from_str_radix(address, 16).ok()?, leaked))
    });
    lines.collect()
}

fn graph() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build_target("random_graph", &[]))
}

fn leaktest() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build_target("leaktest", &[]))
}

/// Returns the target's own list of reachable blocks.
fn planted(target: &mut Target) -> BTreeMap<u64, bool> {
    target.send("l");
    let mut text = String::new();
    loop {
        let line = target.expect("");
        if line.starts_with("done") {
            return blocks(&text);
        }
        text += &line;
    }
}

/// Scans random graphs, reclaims, and makes the target check itself.
fn check_graphs(seeds: std::ops::Range<u32>, unaligned: bool, options: &[&str]) {
    let (mut leaked, mut missed) = (0, 0);
    for seed in seeds {
        let seed = seed.to_string();
        let mut args = vec![seed.as_str(), "300"];
        let mut options = options.to_vec();
        if unaligned {
            args.push("u");
            options.push("--unaligned");
        }
        let mut target = Target::start(graph(), &args);
        let mut list = vec!["--list"];
        list.extend(&options);
        let found = blocks(&scan(target.pid(), &list));
        let want = planted(&mut target);
        for (address, &is_leaked) in &want {
            let found = found.get(address).copied();
            assert!(
                is_leaked || found == Some(false),
                "seed {seed}: {address:#x} is reachable, and found {found:?}"
            );
            leaked += u32::from(is_leaked);
            missed += u32::from(is_leaked && found == Some(false));
        }
        let extra = found.iter().filter(|(a, l)| **l && !want.contains_key(a));
        assert_eq!(extra.count(), 0, "seed {seed}: nothing else is leaked");
        let mut reclaim = vec!["--reclaim", "--yes", "--json", "--twice", "20ms"];
        reclaim.extend(&options);
        let report = scan(target.pid(), &reclaim);
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["schema"], "memhook-rs/reclaim/1");
        assert_eq!(report["dry_run"], false, "{report}");
        let after = blocks(&scan(target.pid(), &list));
        let gone = want.keys().filter(|a| !after.contains_key(a)).count() as u64;
        assert_eq!(report["released_blocks"], gone, "seed {seed}: {report}");
        let left = after.values().filter(|&&is_leaked| is_leaked).count() as u32;
        // At an odd offset, the upper bytes of a pointer may have been overwritten by the next
        // pointer; a reclaim ignores these bytes.
        assert!(unaligned || left == 0, "seed {seed}: leaks are left");
        missed += left;
        target.send("c");
        assert_eq!(target.expect("done"), "done 0\n", "seed {seed}");
        assert!(target.finish().success());
    }
    // A stale word may keep one block alive, and all blocks that it reaches.
    assert!(missed * 5 <= leaked, "{missed} of {leaked} were missed");
}

#[test]
fn random_graphs() {
    check_graphs(0..8, false, &[]);
}

#[test]
fn random_graphs_with_all_threads_held() {
    check_graphs(12..16, false, &["--snapshot", "stop"]);
}

#[test]
fn random_graphs_in_a_forked_copy() {
    check_graphs(30..34, false, &["--snapshot", "fork"]);
}

#[test]
fn random_graphs_with_pointers_at_odd_offsets() {
    check_graphs(18..22, true, &[]);
}

#[test]
fn without_yes_nothing_is_released() {
    let mut target = Target::start(graph(), &["77"]);
    let before = scan(target.pid(), &["--list"]);
    let report = scan(target.pid(), &["--reclaim", "--twice", "20ms"]);
    assert!(report.contains("would be released"), "{report}");
    assert_eq!(scan(target.pid(), &["--list"]), before);
    target.send("c");
    assert_eq!(target.expect("done"), "done 0\n");
}

/// Returns the memory that malloc has obtained from the system.
fn heap(target: &mut Target) -> u64 {
    target.go();
    let line = target.expect("done");
    line.split(' ').nth(3).unwrap().parse().unwrap()
}

#[test]
fn a_busy_program_again_and_again() {
    let mut target = Target::start(leaktest(), &["4", "10", "2000", "20", "4000000"]);
    let mut reclaimer = spawn(
        target.pid(),
        &["--reclaim", "--yes", "--every", "300ms", "--json"],
    );
    let mut output = BufReader::new(reclaimer.stdout.take().unwrap());
    let (mut done, mut released) = (0, 0);
    while done < 4 || released < 1000 {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let round: serde_json::Value = serde_json::from_str(&line).unwrap();
        done += 1;
        assert_eq!(round["round"], done, "{line}");
        released += round["released_blocks"].as_u64().unwrap();
    }
    // SAFETY: kill takes plain integers; the child has not been waited for.
    unsafe { libc::kill(reclaimer.id() as i32, libc::SIGINT) };
    assert!(reclaimer.wait().unwrap().success());
    assert!(heap(&mut target) > 0);
    assert!(target.finish().success(), "its checks");
}

#[test]
fn a_reclaimer_that_is_killed_leaves_a_healthy_target() {
    // However slow the reclaimers are, the target leaks no more than this for each of them.
    let mut target = Target::start(leaktest(), &["3", "30", "2000", "10", "200000"]);
    let mut state = 1u64;
    for _ in 0..rounds(25) {
        heap(&mut target);
        let mut reclaimer = spawn(target.pid(), &["--reclaim", "--yes", "--every", "20ms"]);
        // Kills reclaimers at arbitrary moments after the end of the first round.
        let mut line = String::new();
        let mut output = BufReader::new(reclaimer.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        // The kill may come at any moment.
        std::thread::sleep(Duration::from_micros((state >> 33) % 100_000));
        reclaimer.kill().unwrap();
        reclaimer.wait().unwrap();
    }
    assert!(heap(&mut target) > 0);
    let pid = target.pid().to_string();
    let args = ["scan", &pid, "--reclaim", "--yes", "--twice", "50ms"];
    // On a busy machine, a thread without a processor cannot report its signal stack in time.
    // Then it may also stay inside malloc for longer than a scan waits.
    const STARVED: [&str; 2] = ["(not asked: ", "stayed inside malloc"];
    let mut ends = (0..10).map(|_| run(&args));
    let end =
        ends.find(|(code, _, err)| *code == 0 || !STARVED.iter().any(|words| err.contains(words)));
    let (code, report, err) = end.expect("its threads can be asked");
    assert_eq!(code, 0, "{err}");
    assert!(report.contains("released"), "{report}");
    assert_eq!(target.status("TracerPid"), "0");
    assert!(target.finish().success(), "its checks");
}

/// Checks that the refusal of a stopped process says how to continue it, wherever its threads were
/// stopped.
#[test]
fn a_stopped_process_is_named_as_such() {
    // Threads that constantly allocate are often stopped inside malloc.
    let target = Target::start(leaktest(), &["3", "30", "2000", "10", "200000"]);
    let pid = target.pid().to_string();
    stop(target.pid());
    let (code, _, err) = run(&["scan", &pid, "--reclaim", "--yes", "--twice", "20ms"]);
    assert_eq!(code, 2, "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    let reason = format!("process {pid} is stopped");
    let remedy = format!("kill -CONT {pid}");
    assert!(err.contains(&reason) && err.contains(&remedy), "{err}");
}

/// Checks that no leak is reported, as released or as kept, if the process exits between the two
/// scans.
#[test]
fn a_process_that_ends_in_between() {
    let target = Target::start(leaktest(), &[]);
    let pid = target.pid().to_string();
    // The log shows the end of the first scan.
    let mut scan = Command::new(binary())
        .args(["scan", "-vv", &pid, "--reclaim", "--yes", "--json"])
        .args(["--twice", "1s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("memhook-rs starts");
    let mut lines = BufReader::new(scan.stderr.take().expect("piped")).lines();
    lines
        .by_ref()
        .map(|line| line.expect("text"))
        .find(|line| line.contains("is dissected"))
        .expect("the heap is searched");
    drop(target);
    let last = lines.map(|line| line.expect("text")).last();
    let output = scan.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(2), "{last:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let last = last.expect("a reason");
    assert!(last.contains("has ended"), "{last}");
}

fn is_refused(pid: u32, options: &[&str], word: &str) {
    let pid = pid.to_string();
    let mut args = vec!["scan", &pid, "--reclaim", "--yes", "--twice", "10ms"];
    args.extend(options);
    let (code, out, err) = loop {
        let end = run(&args);
        // On a busy machine, every attempt may find the target inside malloc.
        if !end.2.contains("stayed inside malloc") {
            break end;
        }
    };
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains(word) && err.lines().count() == 1, "{err}");
}

#[test]
fn what_is_never_done() {
    let target = Target::start(leaktest(), &["1", "50", "100", "1000", "1000000"]);
    is_refused(
        target.pid(),
        &["--pointers", "start"],
        "--pointers interior",
    );
    let mut other = spawn(target.pid(), &["--reclaim", "--yes", "--every", "50ms"]);
    let mut line = String::new();
    let mut output = BufReader::new(other.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert!(line.contains("released"), "{line}");
    is_refused(target.pid(), &[], "another memhook-rs is working on");
    other.kill().unwrap();
    other.wait().unwrap();
    let attacher = Attacher::start(&target, &[]);
    is_refused(target.pid(), &[], "already traced");
    attacher.finish();
    assert!(target.finish().success());
}

#[test]
fn another_allocator_is_left_alone() {
    let library = build_library("wrapping_allocator", "libwrapping_allocator.so", &[]);
    let target = Target::run(
        Command::new(leaktest())
            .args(["1", "50", "100", "1000", "1000000"])
            .env("LD_PRELOAD", &library),
    );
    is_refused(
        target.pid(),
        &[],
        "another allocator is loaded (the malloc of libwrapping_allocator.so)",
    );
    assert!(target.finish().success());
}

#[test]
fn a_damaged_heap_is_left_alone() {
    let program = build_target("damaged_heap", &[]);
    let target = Target::start(&program, &[]);
    let found = scan(target.pid(), &["--list"]);
    assert!(found.contains("finding"), "{found}");
    is_refused(target.pid(), &[], "could not be parsed");
    target.finish();
}

fn hidden_references() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build_target("hidden_references", &[]))
}

/// Checks that a reclaim keeps blocks whose references are on signal stacks that only the kernel
/// knows, at odd offsets, on the former stack of a thread, in read-only shared memory, in a socket,
/// or in a pending signal.
#[test]
fn what_is_referred_to_from_odd_places_is_kept() {
    let mut target = Target::start(hidden_references(), &[]);
    let report = scan(
        target.pid(),
        &["--reclaim", "--yes", "--json", "--twice", "50ms"],
    );
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report["released_blocks"].as_u64() >= Some(290), "{report}");
    target.send("c");
    assert_eq!(target.expect("done"), "done 0\n");
    assert!(target.finish().success());
}

/// The initial thread and another thread have one signal stack each.
#[test]
fn signal_stacks_are_no_leaks() {
    let target = Target::start(hidden_references(), &[]);
    let report = scan(target.pid(), &["--json", "--top", "1000"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let groups = report["leaks"].as_array().expect("what is leaked");
    assert!(!groups.is_empty(), "{report}");
    for group in groups {
        let bytes =
            group["bytes"].as_u64().expect("bytes") / group["blocks"].as_u64().expect("blocks");
        assert!(bytes < 1000, "{group}");
    }
    assert!(target.finish().success());
}

#[test]
fn another_process_in_the_same_memory() {
    let target = Target::start(hidden_references(), &["v"]);
    let report = scan(target.pid(), &[]);
    assert!(report.contains("runs in the same memory"), "{report}");
    is_refused(target.pid(), &[], "runs in the same memory");
    let folder = format!("/proc/{0}/task/{0}/children", target.pid());
    let other = std::fs::read_to_string(folder).unwrap();
    // SAFETY: kill takes plain integers; the target has not reaped its child.
    let killed = unsafe { libc::kill(other.trim().parse().unwrap(), libc::SIGKILL) };
    assert_eq!(killed, 0);
    assert!(target.finish().success());
}

/// Checks a seccomp filter that kills on userfaultfd(2) and clone(2): a scan makes neither call if
/// it cannot suspend the filter.
#[test]
fn a_seccomp_filter_that_kills() {
    let mut target = Target::start(hidden_references(), &["s"]);
    let report = scan(target.pid(), &[]);
    if can_pass_by_filters() {
        assert!(!report.contains("seccomp filter"), "{report}");
        scan(target.pid(), &["--reclaim", "--yes", "--twice", "10ms"]);
        scan(target.pid(), &["--snapshot", "fork"]);
    } else {
        assert!(report.contains("seccomp filter"), "{report}");
        is_refused(target.pid(), &[], "a seccomp filter");
    }
    target.send("c");
    assert_eq!(target.expect("done"), "done 0\n");
    assert!(target.finish().success());
}
