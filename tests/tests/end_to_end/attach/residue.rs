//! Leftovers of attachers in a target: at most one of each kind, however often and in whatever way
//! attachers end.

use memhook_tests::programs::{Folder, installed};
use memhook_tests::{
    Attacher, Target, binary, build_library, build_target, expect_sites, not_run, rounds, run,
};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::Command;

/// Returns the start of the first region in the target's mappings.
fn region(target: &Target) -> u64 {
    let maps = target.maps();
    let line = maps
        .lines()
        .find(|line| line.contains("/memfd:memhook-region"));
    let (start, _) = line.expect("a region").split_once('-').expect("a range");
    u64::from_str_radix(start, 16).expect("an address")
}

fn open_files(target: &Target) -> usize {
    let files = std::fs::read_dir(format!("/proc/{}/fd", target.pid()));
    files.expect("the target lives").count()
}

#[test]
fn a_region_without_control_block_is_used_again() {
    memhook_tests::patiently(|| {
        let target = Target::start(&build_target("hammer", &[]), &[]);
        Attacher::start(&target, &[]).finish();
        let mappings = target.our_mappings();
        for _ in 0..3 {
            // Simulates an attacher that was killed before it wrote the magic number.
            let memory = OpenOptions::new()
                .write(true)
                .open(format!("/proc/{}/mem", target.pid()))
                .expect("memory of a child");
            memory
                .write_all_at(&[0; 8], region(&target))
                .expect("written");
            let report = Attacher::start(&target, &[]).finish();
            assert_eq!(report["totals"]["lost_events"], 0);
            assert_eq!(target.our_mappings(), mappings);
        }
        assert!(target.finish().success());
    });
}

#[test]
fn each_ring_size_has_one_region() {
    memhook_tests::patiently(|| {
        let target = Target::start(&build_target("hammer", &[]), &[]);
        Attacher::start(&target, &["--set", "ring-size=1M"]).finish();
        Attacher::start(&target, &["--set", "ring-size=64K"]).finish();
        let mappings = target.our_mappings();
        for size in ["1M", "64K", "64K", "1M", "64K"] {
            Attacher::start(&target, &["--set", &format!("ring-size={size}")]).finish();
            assert_eq!(target.our_mappings(), mappings, "{size}");
        }
        // The attacher that uses the later region is also known.
        let attacher = Attacher::start(&target, &["--set", "ring-size=64K"]);
        let (code, _, errors) = run(&["detach", &target.pid().to_string()]);
        assert_eq!(code, 2);
        assert!(errors.contains("already traced by memhook-rs "), "{errors}");
        attacher.finish();
        assert!(target.finish().success());
    });
}

#[test]
fn a_descriptor_is_closed_by_whoever_comes_next() {
    for command in [["detach", "-q"], ["attach", "-d100ms"]] {
        let mut target = Target::start(&build_target("stray_descriptor", &[]), &[]);
        let files = open_files(&target);
        let pid = target.pid().to_string();
        let arguments = match command[0] {
            "detach" => vec!["detach", &pid],
            _ => vec!["attach", command[1], &pid],
        };
        let (code, _, errors) = run(&arguments);
        assert_eq!(code, 0, "{errors}");
        assert_eq!(open_files(&target), files - 1);
        target.go();
        target.expect("done");
        assert!(target.finish().success());
    }
}

/// Checks that only one of several attachers traces, and that all others report this.
#[test]
fn several_at_once() {
    memhook_tests::patiently(|| {
        let target = Target::start(&build_target("hammer", &[]), &[]);
        let pid = target.pid().to_string();
        for _ in 0..3 {
            let attachers: Vec<_> = (0..4)
                .map(|_| {
                    let mut command = Command::new(binary());
                    command.args(["attach", "-q", "-d", "300ms", &pid]);
                    command.stdout(std::process::Stdio::null());
                    command.stderr(std::process::Stdio::piped());
                    command.spawn().expect("it starts")
                })
                .collect();
            let mut traced = 0;
            for attacher in attachers {
                let output = attacher.wait_with_output().expect("it ends");
                let errors = String::from_utf8_lossy(&output.stderr);
                match output.status.code() {
                    Some(0) => traced += 1,
                    Some(2) => assert!(
                        errors.contains("memhook-rs") && errors.lines().count() == 1,
                        "{errors}"
                    ),
                    _ => panic!("{}: {errors}", output.status),
                }
            }
            assert!(traced >= 1);
        }
        let mappings = target.our_mappings();
        Attacher::start(&target, &[]).finish();
        assert_eq!(target.our_mappings(), mappings);
        assert!(target.finish().success());
    });
}

/// Checks that an attacher without permission to open the target's region maps a new region.
#[test]
fn an_attacher_without_privileges() {
    memhook_tests::patiently(|| {
        // SAFETY: no arguments.
        if unsafe { libc::geteuid() } != 0 {
            return not_run(
                "only root can drop privileges; without root, all tests here run unprivileged",
            );
        }
        let folder = Folder::new("unprivileged");
        let (attacher, program) = (folder.path("memhook-rs"), folder.path("hammer"));
        memhook_tests::programs::copy_program(binary(), &attacher);
        memhook_tests::programs::copy_program(build_target("hammer", &[]), &program);
        let nobody = |program: &str| {
            let mut command = Command::new(installed("setpriv"));
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
            command
        };
        let target = Target::run(&mut nobody(&program));
        let mut mappings = None;
        let mut traced = |duration: &str| {
            let mut command = nobody(&attacher);
            command.args([
                "attach",
                "--json",
                "-d",
                duration,
                &target.pid().to_string(),
            ]);
            let output = command.output().expect("it runs");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{errors}");
            let text = String::from_utf8_lossy(&output.stdout);
            let last = text.lines().last().expect("a report");
            let report: serde_json::Value = serde_json::from_str(last).expect("JSON");
            assert_eq!(report["totals"]["lost_events"], 0);
            let now = target.our_mappings();
            assert_eq!(*mappings.get_or_insert(now), now);
            report["totals"]["allocations"].as_u64()
        };
        for _ in 0..4 {
            // Traces for longer if the machine stalls.
            let mut seen = ["200ms", "2s", "8s", "20s"].into_iter().map(&mut traced);
            assert!(seen.any(|seen| seen > Some(0)), "nothing is seen of it");
        }
        assert!(target.finish().success());
    });
}

/// Checks that the next attach unmaps the report, and works as usual.
#[test]
fn a_report_without_its_guide() {
    let mut target = Target::start(&build_target("torn_region", &[]), &[]);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    expect_sites(&report, "torn_region.cc", &[("main", "malloc", 1, 10)]);
    assert!(target.finish().success());
}

/// Checks that memhook-rs does not read memory that has the name of a region but can lose its
/// pages, because reading it could kill the reader.
#[test]
fn memory_that_is_not_sealed_is_not_mapped() {
    memhook_tests::patiently(|| {
        let target = Target::start(&build_target("false_region", &[]), &[]);
        for _ in 0..3 {
            let report = Attacher::start(&target, &["-d", "300ms"]).last_report();
            assert_eq!(report["totals"]["lost_events"], 0);
            let (code, _, errors) = run(&["detach", &target.pid().to_string()]);
            assert_eq!(code, 0, "{errors}");
        }
        // The target's own memory and the region of memhook-rs.
        assert_eq!(target.maps().matches("memhook-region").count(), 2);
        assert!(target.finish().success());
    });
}

/// Checks an attach in which the hook faults at an unwritable slot after it has patched earlier
/// slots: the attach fails, and the earlier slots are restored.
#[test]
fn an_attach_that_fails_half_way_puts_the_slots_back() {
    let library = build_library("late_library", "liblate.so", &[]);
    // userfaultfd(2) guards private file mappings only if the files are in memory.
    let copy = format!("/dev/shm/memhook-{}-guarded.so", std::process::id());
    std::fs::copy(&library, &copy).expect("copied");
    let program = build_target("write_guarded", &["-ldl", "-Wl,-z,now"]);
    let mut target = Target::start(&program, &[&copy]);
    std::fs::remove_file(&copy).expect("removed");
    let pid = target.pid().to_string();
    for _ in 0..2 {
        let (code, out, err) = run(&["attach", "-q", "-d", "100ms", &pid]);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains("raised signal 7"), "{err}");
        assert_eq!(err.trim_end().lines().count(), 1, "{err}");
        assert_eq!(target.status("TracerPid"), "0");
    }
    target.go();
    target.expect("done");
    let report = Attacher::start(&target, &[]).finish();
    assert_eq!(report["totals"]["lost_events"], 0);
    let status = target.finish();
    assert!(status.success(), "the target's self-check: {status}");
}

/// Checks a target whose threads are all on unknown stacks, so that none can be made to call a
/// function: memhook-rs writes its words from outside.
#[test]
fn a_program_that_is_on_stacks_of_its_own_is_left_clean() {
    let program = build_target("own_stack", &[]);
    for is_killed in [false, true] {
        let mut target = Target::start(&program, &[]);
        let attacher = Attacher::start(&target, &[]);
        target.go();
        target.expect("there");
        let pid = target.pid().to_string();
        if is_killed {
            attacher.kill();
            let (code, out, err) = run(&["detach", &pid]);
            assert_eq!(code, 0, "{out}{err}");
            assert!(out.contains("every slot holds its original"), "{out}{err}");
        } else {
            target.go();
            target.expect("done");
            let report = attacher.finish();
            let found = memhook_tests::sites(&report, "own_stack.cc");
            let kept = found.get(&("hold_some".to_owned(), "malloc".to_owned()));
            assert_eq!(kept, Some(&(20, 20 * 765)), "{report:#}");
        }
        let (code, out, err) = run(&["detach", &pid]);
        assert_eq!(code, 0, "{out}{err}");
        assert!(target.finish().success());
    }
}

/// Checks children that are forked while a thread is stopped, which inherit the files that are open
/// at that moment.
#[test]
fn no_child_keeps_a_descriptor_of_ours() {
    let program = build_target("forks_always", &[]);
    for _ in 0..rounds(10) {
        // The first attach to a process loads everything.
        let target = Target::start(&program, &[]);
        let pid = target.pid() as i32;
        let attacher = Attacher::start(&target, &[]);
        // A child that is forked later inherits no such file.
        for child in memhook_process::children(pid) {
            let open = std::fs::read_dir(format!("/proc/{child}/fd"));
            let links = open.into_iter().flatten().flatten();
            let links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
            let ours: Vec<_> = links
                .filter(|to| to.to_string_lossy().contains("memhook"))
                .collect();
            assert!(ours.is_empty(), "child {child}: {ours:?}");
        }
        attacher.finish();
        assert!(target.finish().success());
    }
}
