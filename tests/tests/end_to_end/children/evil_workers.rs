//! Workers with fewer privileges than their parent that write to all memory that they share with
//! it.

use memhook_tests::agents::wrapped_slots;
use memhook_tests::programs::{Folder, unshare};
use std::process::ExitStatus;

use memhook_tests::{Attacher, Target, build_library, build_target, run};

/// Values with which a worker overwrites every word.
const WORDS: [&str; 5] = ["function", "aimed", "zeros", "ones", "random"];

fn server(folder: &Folder) -> Target {
    server_with(folder, &[])
}

fn server_with(folder: &Folder, more: &[&str]) -> Target {
    let library = build_library("late_library", "liblate.so", &[]);
    let abi = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../hook-cxx");
    let program = build_target("evil_worker", &["-pthread", "-ldl", abi]);
    let library = library.to_str().expect("a path");
    let marker = folder.path("marker");
    Target::start(&program, &[&[library, &marker], more].concat())
}

/// Starts a worker by this method, which constantly writes to all memory that it can, while the
/// server works and opens libraries. Returns the number of regions to which the worker could write.
fn work_while_haunted(server: &mut Target, how: &str) -> u64 {
    let mut found = 0;
    for words in WORDS {
        server.send(&format!("haunt {how} {words}\n"));
        let line = server.expect("haunts ");
        let numbers: Vec<u64> = line["haunts ".len()..]
            .split_whitespace()
            .map(|number| number.parse().expect("a number"))
            .collect();
        assert_eq!(
            numbers[1], 0,
            "{how}: what the attacher tells can be written"
        );
        work(server);
        server.send("banish\n");
        server.expect("banished");
        found += numbers[0];
    }
    found
}

/// Runs an attacher through the command `through`, and tests a worker for each method of creation.
/// `keeps_region` is true if the worker keeps its parent's region.
fn haunted(more: &[&str], through: &[&str], options: &[&str], ways: &[(&str, bool)]) {
    let folder = Folder::new("evil");
    let mut server = server_with(&folder, more);
    let attacher = Attacher::start_by(through, &server, options);
    for (how, keeps_region) in ways {
        let found = work_while_haunted(&mut server, how);
        assert_eq!(found > 0, *keeps_region, "{how} {more:?} {through:?}");
    }
    let (status, errors, _) = attacher.last_reports();
    assert_ended_by_itself(status, &errors);
    work(&mut server);
    end(server);
}

/// Checks a child created without fork(2), which has its parent's region until its first hooked
/// call: it can only corrupt numbers.
#[test]
fn haunt_their_parent_by_numbers_only() {
    let ways = [
        ("clone", true),
        ("fork", false),
        ("_Fork", false),
        ("vfork", false),
    ];
    haunted(&[], &[], &["--stacks", "all"], &ways);
}

/// Checks a seccomp filter that would kill on the hook's own system calls, so that no child can
/// leave its parent's region.
#[test]
fn keep_the_region_of_a_parent_with_a_killing_filter() {
    haunted(&["filtered"], &[], &[], &[("fork", true), ("clone", true)]);
}

/// Checks strict overcommit, under which no child can leave its parent's region either. The
/// attacher sees a faked setting of the machine.
#[test]
fn keep_the_region_where_mappings_are_charged() {
    let folder = Folder::new("charged");
    let mode = folder.path("mode");
    std::fs::write(&mode, "2\n").expect("written");
    let mount = format!("mount --bind {mode} /proc/sys/vm/overcommit_memory && exec \"$@\"");
    let unshare = unshare();
    let unshare = unshare.to_str().expect("a plain path");
    let through = [unshare, "-m", "sh", "-c", &mount, "sh"];
    haunted(&[], &through, &[], &[("fork", true), ("clone", true)]);
}

/// Checks regions that wait for children, which also have a guide.
#[test]
fn haunt_what_waits_for_others_by_numbers_only() {
    haunted(
        &[],
        &[],
        &["--follow-fork"],
        &[("fork", true), ("clone", true)],
    );
}

/// Checks the guide before Linux 5.1: private memory of the process, which a child inherits as a
/// copy.
#[test]
fn haunt_a_parent_with_a_private_guide_by_numbers_only() {
    let through = ["env", "MEMHOOK_WITHOUT_SEALS=1"];
    let ways = [("clone", true), ("fork", false)];
    haunted(&[], &through, &["--stacks", "all"], &ways);
    haunted(&[], &through, &["--follow-fork"], &ways);
}

fn found(server: &mut Target, command: &str) -> u64 {
    server.send(&format!("{command}\n"));
    let line = server.expect("found ");
    line["found ".len()..].trim().parse().expect("a number")
}

fn work(server: &mut Target) {
    server.send("work\n");
    server.expect("worked");
}

/// Starts and stops well-behaved workers, and then makes the server itself work.
fn work_beside_children(server: &mut Target) {
    for _ in 0..10 {
        server.send("child\n");
        server.expect("well");
    }
    work(server);
}

/// Checks that the attacher did not panic. A worker can report arbitrary data about itself, and the
/// attacher may complain about that data.
fn assert_ended_by_itself(status: ExitStatus, errors: &str) {
    assert!(
        status.code().is_some_and(|code| code <= 3),
        "{status}: {errors}"
    );
    assert!(!errors.contains("panicked"), "{errors}");
}

fn end(mut server: Target) {
    assert_eq!(wrapped_slots(server.pid()), 0);
    server.send("end\n");
    server.expect("done");
    assert!(server.finish().success());
}

/// Checks that workers forked before, during and after a trace, or after its attacher was killed,
/// have no memory of the parent's trace.
#[test]
fn have_no_region_of_their_parent() {
    let folder = Folder::new("evil");
    let mut server = server(&folder);
    for killed in [false, true] {
        for words in WORDS {
            let attacher = Attacher::start(&server, &["--stacks", "all"]);
            assert_eq!(found(&mut server, &format!("fork {words}")), 0);
            assert_eq!(found(&mut server, &format!("clone {words}")), 0);
            work(&mut server);
            if killed {
                attacher.kill();
                assert_eq!(found(&mut server, &format!("fork {words}")), 0);
            } else {
                let report = attacher.finish();
                assert!(
                    report["totals"]["allocations"].as_u64() > Some(9000),
                    "{report}"
                );
                assert_eq!(report["totals"]["lost_events"], 0, "{report}");
                // The leftovers of a trace are inert, and the next trace starts with new memory.
                found(&mut server, &format!("fork {words}"));
            }
            work(&mut server);
        }
    }
    let (code, output, errors) = run(&["detach", &server.pid().to_string()]);
    assert_eq!(code, 0, "{output}{errors}");
    work(&mut server);
    end(server);
}

/// Checks regions that wait for children, which are mapped in all children until their first call.
/// No address in them is called or written to, so the server and the attacher continue even if a
/// worker changes all numbers.
#[test]
fn write_into_what_waits_for_others_in_vain() {
    let folder = Folder::new("evil");
    let mut server = server(&folder);
    for words in WORDS {
        let attacher = Attacher::start(&server, &["--follow-fork"]);
        assert!(found(&mut server, &format!("fork {words}")) > 0);
        work_beside_children(&mut server);
        let (status, errors, _) = attacher.last_reports();
        assert_ended_by_itself(status, &errors);
        work(&mut server);
    }
    end(server);
}

/// Checks that a worker has only its own region after its first call.
#[test]
fn have_only_their_own_region_when_they_are_born() {
    let folder = Folder::new("evil");
    let mut server = server(&folder);
    let pid = u64::from(server.pid());
    for words in ["function", "random"] {
        let attacher = Attacher::start(&server, &["--follow-fork"]);
        for how in ["call", "clone"] {
            assert!(found(&mut server, &format!("{how} {words}")) <= 1);
        }
        work_beside_children(&mut server);
        let (status, errors, reports) = attacher.last_reports();
        assert_ended_by_itself(status, &errors);
        let totals = &reports[&pid]["totals"];
        assert!(totals["allocations"].as_u64() > Some(9000), "{totals}");
        assert_eq!(totals["lost_events"], 0, "{totals}");
        let untouched = reports.values().filter(|report| {
            // Waits until a well-behaved worker has allocations at a site that has a name.
            report["totals"]["allocations"].as_u64() > Some(100)
                && report["totals"]["lost_events"] == 0
        });
        assert!(untouched.count() > 1, "{errors}");
        work(&mut server);
    }
    end(server);
}
