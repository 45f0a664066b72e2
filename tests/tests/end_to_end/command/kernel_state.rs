//! Changes that a command leaves in the kernel's state of a process. The test measures each row of
//! the table in `docs/safety.md`.

use memhook_tests::terminal::Terminal;
use memhook_tests::{Target, binary, build_target, not_run, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

/// Changes that a command may leave.
#[derive(Clone, Copy, PartialEq)]
enum Leaves {
    /// No change.
    Nothing,
    /// Access marks on the pages that the command read, and file pages that it loaded.
    Marks,
    /// The changes of `Marks`, plus the hook and its memory.
    Hook,
}
use Leaves::{Hook, Marks, Nothing};

const COMMANDS: [(&str, &[&str], Leaves); 14] = [
    ("doctor", &["doctor", "PID"], Nothing),
    ("scan", &["scan", "PID"], Marks),
    ("rss", &["rss", "PID"], Marks),
    (
        "advise",
        &["advise", "PID", "-d", "1s", "-o", "FILE", "--force"],
        Hook,
    ),
    ("trim --dry-run", &["trim", "PID", "--dry-run"], Marks),
    (
        "advise --read-only",
        &["advise", "PID", "--read-only"],
        Marks,
    ),
    (
        "stale --read-only",
        &["stale", "PID", "--read-only", "--older", "500ms", "-q"],
        Marks,
    ),
    (
        "stale",
        &["stale", "PID", "-d", "2s", "--older", "1s", "-q"],
        Hook,
    ),
    ("attach", &["attach", "PID", "-d", "300ms", "-q"], Hook),
    (
        "attach --leaks",
        &["attach", "PID", "--leaks", "-d", "300ms", "-q"],
        Hook,
    ),
    ("top", &["top"], Hook),
    (
        "watch",
        &[
            "watch",
            "PID",
            "-d",
            "500ms",
            "--when",
            "limit >= 100G",
            "-o",
            "DIRECTORY",
        ],
        Hook,
    ),
    (
        "probe",
        &["probe", "PID", "-d", "300ms", "--func", "usleep"],
        Marks,
    ),
    ("gate", &["gate", "-p", "PID", "-d", "500ms"], Hook),
];

/// Kernel state of a process, by the name of each item.
type State = BTreeMap<&'static str, String>;

fn number(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|line| line.split_whitespace().next());
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn state(pid: u32) -> State {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let rollup = read("smaps_rollup");
    let status = read("status");
    let of_threads = |each: &dyn Fn(u64) -> String| {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
        let ids = threads.map(|entry| {
            entry
                .unwrap()
                .file_name()
                .to_string_lossy()
                .parse()
                .unwrap()
        });
        let mut ids: Vec<u64> = ids.collect();
        ids.sort_unstable();
        ids.into_iter()
            .map(|id| format!("{id}: {}", each(id)))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let slack = of_threads(&|id| {
        fs::read_to_string(format!("/proc/{id}/timerslack_ns"))
            .unwrap_or_default()
            .trim()
            .to_owned()
    });
    let scheduling = of_threads(&|id| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or("")
            .split_whitespace()
            .collect();
        // nice, rt_priority and policy of proc_pid_stat(5), where the state is the third field.
        format!("{} {} {}", fields[16], fields[37], fields[38])
    });
    let of_status = |names: &[&str]| {
        let lines = status
            .lines()
            .filter(|line| names.iter().any(|name| line.starts_with(name)));
        lines.collect::<Vec<_>>().join(" ")
    };
    let mut descriptors: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("descriptors")
        .map(|entry| {
            fs::read_link(entry.unwrap().path())
                .unwrap()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    descriptors.sort();
    let policies = read("numa_maps");
    let policies = policies
        .lines()
        .filter(|line| !line.contains(" default"))
        .map(|line| {
            // Keeps only the memory policy and the pages on each node. Another row of the table
            // covers accessed pages.
            let words = line
                .split(' ')
                .filter(|word| !word.contains('=') || word.starts_with('N'));
            words.collect::<Vec<_>>().join(" ")
        });
    let masks = ["SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"];
    State::from([
        ("huge pages", number(&rollup, "AnonHugePages:").to_string()),
        ("resident", number(&rollup, "Rss:").to_string()),
        ("dirty", number(&rollup, "Private_Dirty:").to_string()),
        ("swapped", number(&rollup, "Swap:").to_string()),
        ("page tables", number(&status, "VmPTE:").to_string()),
        ("mappings", read("maps").lines().count().to_string()),
        ("descriptors", descriptors.join(" ")),
        ("signals", of_status(&masks)),
        ("timer slack", slack),
        ("scheduling", scheduling),
        (
            "processors and nodes",
            of_status(&["Cpus_allowed:", "Mems_allowed:"]),
        ),
        ("memory policy", policies.collect::<Vec<_>>().join(", ")),
        ("score", read("oom_score_adj")),
        ("filter", read("coredump_filter")),
        (
            "tracer",
            of_status(&["TracerPid", "Seccomp", "NoNewPrivs", "THP_enabled"]),
        ),
    ])
}

/// Returns the KiB that a command may add to the resident memory and to the page tables.
fn room(leaves: Leaves) -> (u64, u64) {
    match leaves {
        // The process itself keeps touching pages, and a fault in a file maps 64 KiB around it
        // (fault_around_bytes).
        Nothing => (160, 8),
        Marks => (1 << 10, 32),
        Hook => (4 << 10, 128),
    }
}

fn compare(name: &str, leaves: Leaves, before: &State, after: &State) -> Vec<String> {
    let (resident, tables) = room(leaves);
    let differs = |key: &&str| {
        let (then, now) = (&before[*key], &after[*key]);
        let grew = |most: u64| {
            let (then, now): (u64, u64) = (then.parse().unwrap(), now.parse().unwrap());
            now < then || now - then > most
        };
        match *key {
            "resident" | "dirty" => grew(resident),
            "page tables" => grew(tables),
            "mappings" if leaves == Hook => grew(64),
            _ => then != now,
        }
    };
    let keys = before.keys().copied().filter(|key| differs(key));
    keys.map(|key| format!("{name}: {key}: {} -> {}", before[key], after[key]))
        .collect()
}

/// Starts the process. Returns `None` if the kernel provides no huge pages.
fn start() -> Option<Target> {
    let program = build_target("kernel_state", &[]);
    let mut target = Target::silent(&mut std::process::Command::new(program));
    if target.expect("") == "missing\n" {
        not_run("this kernel gives no huge pages");
        return None;
    }
    Some(target)
}

/// Huge pages that would take longer to read than the longest hold are not split: they are read
/// while the process runs.
#[test]
fn huge_pages_beyond_the_longest_hold() {
    let Some(mut target) = start() else {
        return;
    };
    let pid = target.pid().to_string();
    let before = state(target.pid());
    let mut was_read = false;
    for hold in ["1ms", "3ms", "10ms"] {
        let precopy = ["scan", &pid, "--json", "--snapshot", "precopy"];
        let (code, out, err) = run(&[&precopy[..], &["--max-hold", hold]].concat());
        // Threads may take longer than the limit to stop.
        assert!(code < 2 || err.contains("--max-hold"), "{hold}: {out}{err}");
        if code < 2 {
            let report: Value = serde_json::from_str(&out).expect("JSON");
            let bytes = |what: &str| report["snapshot"][what].as_u64().expect("a number");
            was_read |= bytes("held_bytes") < bytes("copied_bytes") / 2;
        }
    }
    assert!(was_read, "every copy fit into a hold, or no copy was made");
    let after = state(target.pid());
    let wrong = compare("scan", Marks, &before, &after);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    target.send("c");
    assert_eq!(target.expect("done"), "done 0\n");
    assert!(target.finish().success());
}

#[test]
fn what_a_command_leaves_changed() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/safety.md");
    let documented = fs::read_to_string(path).expect("the page");
    let (_, table) = documented
        .split_once("## What a command leaves changed")
        .expect("the table");
    let folder = memhook_tests::programs::Folder::new("kernel-state");
    let mut wrong = Vec::new();
    for (name, words, leaves) in COMMANDS {
        assert!(
            table.contains(&format!("`{name}`")),
            "{name} is not in the table"
        );
        let Some(mut target) = start() else {
            return;
        };
        let pid = target.pid().to_string();
        let file = folder.path(name);
        let before = state(target.pid());
        if name == "top" {
            let command = format!(
                "'{}' top {pid} -i 100ms; echo exit=$?; sleep 1000",
                binary().display()
            );
            let terminal = Terminal::start("kernel-state", &command);
            terminal.wait_for(" resident: ");
            terminal.press("q", "exit=0");
        } else {
            let words: Vec<&str> = words
                .iter()
                .map(|&word| match word {
                    "PID" => pid.as_str(),
                    "FILE" | "DIRECTORY" => file.as_str(),
                    _ => word,
                })
                .collect();
            let (code, out, err) = run(&words);
            assert!(code == 0 || code == 1, "{name}: {code} {out} {err}");
        }
        let after = state(target.pid());
        wrong.extend(compare(name, leaves, &before, &after));
        target.send("c");
        assert_eq!(target.expect("done"), "done 0\n", "{name}");
        assert!(target.finish().success(), "{name}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
