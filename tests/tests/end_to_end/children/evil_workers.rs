//! Workers that have fewer rights than their parent, and write into whatever they share with it.

use memhook_tests::agents::wrapped_slots;
use memhook_tests::programs::Folder;
use std::process::ExitStatus;

use memhook_tests::{Attacher, Target, build_library, build_target, run};

/// What every word is overwritten with.
const WORDS: [&str; 4] = ["function", "zeros", "ones", "random"];

fn server(folder: &Folder) -> Target {
    let library = build_library("late_library", "liblate.so", &[]);
    let abi = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../hook-cxx");
    let program = build_target("evil_worker", &["-pthread", "-ldl", abi]);
    let library = library.to_str().expect("a path");
    Target::start(&program, &[library, &folder.path("marker")])
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

/// Has workers that mean well come and go, and then works itself.
fn work_beside_children(server: &mut Target) {
    for _ in 0..10 {
        server.send("child\n");
        server.expect("well");
    }
    work(server);
}

/// A worker can say of itself what it likes, and some of that is a complaint; but the attacher has no panic.
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

/// Forked before, during and after a trace, and after its attacher was killed: nothing of the parent's is there.
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
                // What is left of a trace is inert, and the next one begins with memory of its own.
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

/// Regions that wait for children are mapped in all of them until their first call. Nothing in there is called or says
/// where to write, so the server and the attacher go on, whatever a worker has made of its numbers.
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

/// From its first call on a worker has a region of its own, and none of anybody else.
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
            // What a worker that means well allocates, once its name is known by its site.
            report["totals"]["allocations"].as_u64() > Some(100)
                && report["totals"]["lost_events"] == 0
        });
        assert!(untouched.count() > 1, "{errors}");
        work(&mut server);
    }
    end(server);
}
