//! Programs that run out of memory in a real control group, and the reports on them.

use memhook_tests::patience::TRIES;
use memhook_tests::programs::Folder;
use memhook_tests::{JsonSchema, MemoryBox, Target, binary, build_target, not_run, run};
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const LIMIT: u64 = 96 << 20;

/// A running watch of a process.
struct Watch {
    child: Child,
}

impl Watch {
    /// Starts the watch, and returns when the process is traced.
    fn start(args: &[&str]) -> Watch {
        Watch::start_with(args, &[])
    }

    /// Starts a watch of a group, and returns when this number of its processes is traced.
    fn of_group(group: &MemoryBox, count: usize, directory: &str) -> Watch {
        let path = group.path().to_str().expect("text");
        let mut watch =
            Watch::start(&["--cgroup", path, "--when", "limit >= 80%", "-o", directory]);
        watch.await_lines("Watching", count - 1);
        watch
    }

    /// Waits for this number of lines with this prefix.
    fn await_lines(&mut self, beginning: &str, count: usize) {
        let mut left = count;
        while left > 0 {
            let mut line = Vec::new();
            let mut byte = [0];
            let errors = self.child.stderr.as_mut().expect("piped");
            while errors.read(&mut byte).expect("readable") == 1 && byte != *b"\n" {
                line.push(byte[0]);
            }
            assert!(!line.is_empty(), "the watch has ended");
            left -= usize::from(line.starts_with(beginning.as_bytes()));
        }
    }

    fn start_with(args: &[&str], variables: &[(&str, &str)]) -> Watch {
        let mut child = Command::new(binary())
            .arg("watch")
            .args(args)
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut line = Vec::new();
        let errors = child.stderr.as_mut().expect("piped");
        let mut byte = [0];
        while errors.read(&mut byte).expect("readable") == 1 && byte != *b"\n" {
            line.push(byte[0]);
        }
        let line = String::from_utf8_lossy(&line).into_owned();
        assert!(line.starts_with("Watching"), "{line}");
        Watch { child }
    }

    /// Returns the exit code and the output of the watch.
    fn end(mut self) -> (Option<i32>, String) {
        let mut errors = String::new();
        let mut from = self.child.stderr.take().expect("piped");
        from.read_to_string(&mut errors).expect("text");
        (self.child.wait().expect("it ended").code(), errors)
    }
}

/// Returns the reports in a directory, sorted by name.
fn reports(directory: &Path) -> Vec<(String, Value)> {
    let files = std::fs::read_dir(directory).expect("a directory").flatten();
    let mut found: Vec<(String, Value)> = files
        .filter(|file| file.path().extension().is_some_and(|end| end == "json"))
        .map(|file| {
            let text = std::fs::read_to_string(file.path()).expect("readable");
            let name = file.file_name().to_string_lossy().into_owned();
            (name, serde_json::from_str(&text).expect("JSON"))
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Returns the live bytes of a function's site, and of the whole report.
fn share(report: &Value, function: &str) -> (f64, f64) {
    let report = &report["report"];
    let all = report["totals"]["live_bytes"].as_f64().expect("live bytes");
    let sites = report["sites"].as_array().expect("sites");
    let is_of = |site: &&Value| {
        let frames = site["stack"].as_array().expect("a stack");
        let name = |frame: &Value| frame["function"].as_str().unwrap_or("").contains(function);
        frames.iter().any(name)
    };
    let bytes = |site: &Value| site["bytes"].as_f64().expect("bytes");
    (sites.iter().filter(is_of).map(bytes).sum(), all)
}

/// A watch report embeds two other documents, which have their own schemas.
fn check_schemas(reports: &[(String, Value)]) {
    let [watch, report, rss] = ["watch-1", "report-1", "rss-1"].map(JsonSchema::load);
    for (_, found) in reports {
        report.check(&found["report"]);
        let mut outer = found.clone();
        outer["report"] = serde_json::json!({});
        if !found["account"].is_null() {
            rss.check(&found["account"]);
            outer["account"] = serde_json::json!({});
        }
        watch.check(&outer);
    }
}

#[test]
fn a_process_that_is_killed_leaves_its_site() {
    let program = build_target("leaks_until_killed", &[]);
    let mut told_before = 0;
    for round in 0..3 {
        let Some(group) = MemoryBox::new(&format!("watch-{round}"), LIMIT) else {
            return not_run("no memory cgroup can be made here");
        };
        let mut target = Target::run(&mut group.command(&program));
        let folder = Folder::new(&format!("watch-{round}"));
        let directory = folder.path("evidence");
        let said = folder.path("said");
        let exec = format!("echo $MEMHOOK_REASON $MEMHOOK_PID >> {said}; test -s $MEMHOOK_REPORT");
        let pid = target.pid().to_string();
        let args = [
            &pid,
            "--when",
            "limit >= 80%",
            "-o",
            &directory,
            "--exec",
            &exec,
        ];
        // Half of the rounds select the process by its group.
        let of_group = ["--cgroup", group.path().to_str().expect("text")];
        let watch = match round {
            0 => Watch::start(&args),
            _ => Watch::start(&[&of_group[..], &args[1..]].concat()),
        };
        target.go();
        let status = target.finish();
        assert!(!status.success(), "the kernel kills it: {status}");
        let (code, errors) = watch.end();
        assert_eq!(code, Some(0), "{errors}");
        let reports = reports(directory.as_ref());
        check_schemas(&reports);
        let (_, last) = reports
            .last()
            .unwrap_or_else(|| panic!("no report: {errors}"));
        assert_eq!(last["schema"], "memhook-rs/watch/1");
        assert_eq!(last["reason"], "end", "{errors}");
        assert_eq!(last["death"]["out_of_memory"], true, "{last:#}");
        let (of_site, all) = share(last, "planted_leak");
        assert!(of_site >= 0.9 * all, "{of_site} of {all}: {last:#}");
        // The report shows the live memory at the time of the kill, within the sampling error.
        assert!(
            all > 0.75 * LIMIT as f64 && all < 1.1 * LIMIT as f64,
            "{all}"
        );
        let early: Vec<&Value> = reports
            .iter()
            .map(|r| &r.1)
            .filter(|r| r["reason"] == "limit")
            .collect();
        // There is no early report if the watch did not get to run in time.
        told_before += usize::from(!early.is_empty());
        let early_count = early.len();
        for report in early {
            let (of_site, all) = share(report, "planted_leak");
            assert!(of_site >= 0.9 * all, "{of_site} of {all}: {report:#}");
            let account = &report["account"];
            if account.is_null() {
                // The process was killed while the watch was writing the report.
                continue;
            }
            let parts = account["parts"].as_array().expect("parts").iter();
            let sum: u64 = parts
                .map(|part| part["bytes"].as_u64().expect("bytes"))
                .sum();
            assert_eq!(account["rss_bytes"], sum);
        }
        let said = std::fs::read_to_string(said).expect("the command ran");
        assert_eq!(said.lines().count(), reports.len(), "{said}{errors}");
        assert_eq!(said.contains("limit "), early_count > 0, "{said}");
        assert!(said.contains("end "), "{said}");
    }
    assert!(told_before > 0, "no report before an end");
}

/// The leaking process is small at first, or starts last. Checks that the report on it names the
/// leaking site, and that the reports of all other processes show which process leaked.
fn the_leaker_of_a_group_is_found(count: usize, is_late: bool) {
    // There is no report before the kill if the watch did not get to run in time.
    let is_early = (0..TRIES).any(|_| is_reported_before_its_end(count, is_late));
    assert!(is_early, "no report of it before its end");
}

fn is_reported_before_its_end(count: usize, is_late: bool) -> bool {
    const IDLE_BYTES: u64 = 3 << 20;
    let name = format!("watch-{count}-{is_late}");
    let limit = LIMIT + count as u64 * 3 * IDLE_BYTES;
    let Some(group) = MemoryBox::new(&name, limit) else {
        not_run("no memory cgroup can be made here");
        return true;
    };
    let program = build_target("leaks_until_killed", &[]);
    let idle = || {
        let size = IDLE_BYTES.to_string();
        let mut idle = Target::run(group.command(&program).args([&size, "0"]));
        idle.go();
        idle.expect("done");
        idle
    };
    let others: Vec<Target> = (1..count).map(|_| idle()).collect();
    let leaker = || Target::run(group.command(&program).args(["1000000000", "5000"]));
    let early = (!is_late).then(leaker);
    let folder = Folder::new(&name);
    let directory = folder.path("evidence");
    let present = others.len() + usize::from(!is_late);
    let mut watch = Watch::of_group(&group, present, &directory);
    let mut leaker = early.unwrap_or_else(|| {
        let late = leaker();
        watch.await_lines("Watching", 1);
        late
    });
    let pid = leaker.pid();
    leaker.go();
    let status = leaker.finish();
    assert!(!status.success(), "the kernel kills it: {status}");
    // The watch writes the final report of this process before the other processes exit.
    watch.await_lines(&format!("memhook-rs: process {pid} "), 1);
    if count > 1 {
        // SAFETY: kill takes plain integers; the child has not been waited for.
        unsafe { libc::kill(watch.child.id() as i32, libc::SIGTERM) };
    }
    let (code, errors) = watch.end();
    assert_eq!(code, Some(0), "{errors}");
    for other in others {
        assert!(other.is_alive());
        assert!(other.finish().success());
    }
    let reports = reports(directory.as_ref());
    check_schemas(&reports);
    let ends: Vec<&Value> = reports
        .iter()
        .map(|report| &report.1)
        .filter(|report| report["reason"] == "end")
        .collect();
    assert_eq!(ends.len(), count, "{errors}");
    for report in ends {
        let explanation = report["explanation"].as_str().expect("a sentence");
        assert_eq!(report["killed"][0]["pid"], pid, "{explanation}");
        if report["pid"] != pid {
            let killed = format!("continues; the kernel has killed process {pid} (");
            assert!(explanation.contains(&killed), "{explanation}");
            assert_eq!(report["death"], Value::Null);
            continue;
        }
        assert_eq!(explanation, "killed by the kernel because memory ran out");
        assert_eq!(report["death"]["out_of_memory"], true);
        let (of_site, all) = share(report, "planted_leak");
        assert!(of_site >= 0.9 * all, "{of_site} of {all}");
        assert!(all > 0.7 * LIMIT as f64, "{all}");
    }
    // The process is now among the largest.
    let is_early = |report: &&(String, Value)| report.1["reason"] != "end";
    let mut early = reports.iter().filter(is_early);
    early.any(|report| report.1["pid"] == pid)
}

#[test]
fn the_leaker_is_found_where_it_is_alone() {
    the_leaker_of_a_group_is_found(1, false);
}

#[test]
fn the_leaker_is_found_among_four() {
    the_leaker_of_a_group_is_found(4, false);
    the_leaker_of_a_group_is_found(4, true);
}

#[test]
fn the_leaker_is_found_among_twenty() {
    the_leaker_of_a_group_is_found(20, false);
}

#[test]
fn the_last_reports_are_kept_and_a_normal_end_is_told() {
    // A watch that is suspended writes fewer reports.
    let has_several = (0..TRIES).any(|_| the_last_reports_are_kept_of_one_run());
    assert!(has_several, "there are no several reports of one run");
}

fn the_last_reports_are_kept_of_one_run() -> bool {
    let program = build_target("leaks_until_killed", &[]);
    let mut target = Target::start(&program, &["64000000", "20000"]);
    let folder = Folder::new("watch-kept");
    let directory = folder.path("evidence");
    let pid = target.pid().to_string();
    let watch = Watch::start(&[
        &pid,
        "--when",
        "limit >= 99.99%",
        "--when",
        "rss > 16M",
        "--keep",
        "1",
        "-o",
        &directory,
        "--exact",
    ]);
    target.go();
    target.expect("done");
    assert!(target.finish().success());
    let (code, errors) = watch.end();
    assert_eq!(code, Some(0), "{errors}");
    let reports = reports(directory.as_ref());
    let written = errors.lines().filter(|line| line.contains("wrote"));
    if written.count() <= 2 {
        return false;
    }
    let reasons: Vec<&str> = reports
        .iter()
        .filter_map(|r| r.1["reason"].as_str())
        .collect();
    assert_eq!(reasons, ["rss", "end"], "{errors}");
    let (of_site, all) = share(&reports[1].1, "planted_leak");
    // The numbers are exact: 16,000 blocks of 4,000 bytes, and the last 512 blocks of 1,000 bytes.
    assert!(
        (64_000_000.0..66_000_000.0).contains(&of_site),
        "{of_site} of {all}"
    );
    assert_ne!(reports[1].1["death"]["out_of_memory"], true);
    // A text file accompanies each report.
    let text =
        std::fs::read_to_string(Path::new(&directory).join(reports[1].0.replace("json", "txt")));
    assert!(text.expect("a text").contains("planted_leak"));
    true
}

/// Checks that names that arrive only after several urgent reports are added to each of those
/// reports.
#[test]
fn all_reports_get_their_names() {
    // A watch that is suspended writes fewer reports.
    let has_several = (0..TRIES).any(|_| all_reports_get_their_names_of_one_run());
    assert!(has_several, "there are no several reports of one run");
}

fn all_reports_get_their_names_of_one_run() -> bool {
    let types = concat!(env!("CARGO_MANIFEST_DIR"), "/targets/many_types.hpp");
    let flags = ["-g", "-include", types];
    let mut target = Target::start(
        &build_target("leaks_until_killed", &flags),
        &["64000000", "2000"],
    );
    let folder = Folder::new("watch-names");
    let directory = folder.path("evidence");
    let pid = target.pid().to_string();
    let args = [&*pid, "--when", "rss > 5M", "--keep", "50", "--exact"];
    let cache = [("XDG_CACHE_HOME", "/dev/null")];
    let watch = Watch::start_with(&[&args[..], &["-o", &directory]].concat(), &cache);
    target.go();
    target.expect("done");
    assert!(target.finish().success());
    let (code, errors) = watch.end();
    assert_eq!(code, Some(0), "{errors}");
    let reports = reports(directory.as_ref());
    if reports.len() < 3 {
        return false;
    }
    for (name, report) in &reports {
        let (of_site, all) = share(report, "planted_leak");
        assert!(of_site >= 0.8 * all, "{name}: {of_site} of {all}: {errors}");
    }
    true
}

#[test]
fn bad_input_is_refused_in_one_line() {
    let target = Target::start(&build_target("leaks_until_killed", &[]), &["1"]);
    let pid = target.pid().to_string();
    let folder = Folder::new("watch-refused");
    let file = folder.path("file");
    std::fs::write(&file, "").expect("written");
    let directory = folder.path("evidence");
    for (options, word) in [
        (&["-o", &file][..], "file"),
        (&["--when", "limit >= 190%", "-o", &directory], "share"),
        (
            &["--when", "limit >= 90% and live > 1G", "-o", &directory],
            "watch compares limit, rss or psi",
        ),
        (&["--when", "rss > 2%", "-o", &directory], "1.5G"),
        (&["--when", "limit >= 90%"], "--output"),
        (
            &["--when", "some nonsense", "-o", &directory],
            "some 150000 1000000",
        ),
        (&["--cgroup", "/no/such/group", "-o", &directory], "cgroup"),
    ] {
        let (code, out, err) = run(&[&["watch", &pid], options].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{options:?}: {err}");
        assert!(err.contains(word), "{options:?}: {err}");
    }
    assert!(target.is_alive());
}
