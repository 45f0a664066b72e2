//! Children of a running process that are traced from their first call of an allocator.

use memhook_tests::agents::wrapped_slots;
use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, build_target, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// Number of allocations of one child of `tests/targets/births.cc`.
const ALLOCATIONS: u64 = 10;
const LEAKED: u64 = 7;

fn server() -> Target {
    Target::start(&build_target("births", &[]), &[])
}

/// Sends a command, and returns the children that the server prints.
fn children(server: &mut Target, command: &str, count: usize) -> Vec<u64> {
    server.send(&format!("{command}\n"));
    let beginning = format!("{} ", command.split(' ').next().expect("a word"));
    let said = (0..count).map(|_| server.expect(&beginning));
    let pid = |line: String| line.trim()[beginning.len()..].parse().expect("a pid");
    said.map(pid).collect()
}

fn await_attach(attacher: &mut Attacher, children: &[u64]) {
    let of_child = |child| format!("Attached to {child} ");
    let mut awaited: Vec<String> = children.iter().map(of_child).collect();
    while !awaited.is_empty() {
        let line = attacher.says("Attached to ");
        awaited.retain(|beginning| !line.starts_with(beginning));
    }
}

fn assert_whole(reports: &BTreeMap<u64, Value>, child: u64, allocations: u64, live: u64) {
    let report = reports.get(&child);
    let report = report.unwrap_or_else(|| panic!("no report of {child}"));
    let total = |name: &str| report["totals"][name].as_u64();
    assert_eq!(total("allocations"), Some(allocations), "{report:#}");
    assert_eq!(total("live_blocks"), Some(live), "{report:#}");
    assert_eq!(total("live_bytes"), Some(LEAKED * 1000), "{report:#}");
    assert_eq!(total("lost_events"), Some(0), "{report:#}");
}

fn assert_named(reports: &BTreeMap<u64, Value>, child: u64) {
    let report = &reports[&child];
    let sites = report["sites"].as_array().expect("sites");
    let leaks = |site: &&Value| site.to_string().contains("leak_at_birth");
    let site = sites.iter().find(leaks).expect("the site that leaks");
    assert_eq!(site["blocks"].as_u64(), Some(LEAKED), "{site:#}");
}

fn end(mut server: Target) {
    server.send("end\n");
    server.expect("done");
    assert!(server.finish().success());
}

#[test]
fn every_block_from_the_first_one_on() {
    let folder = Folder::new("births");
    let recordings = folder.path("x.%p.mhk");
    let mut server = server();
    let recorded = ["--follow-fork", "-o", &recordings];
    let mut attacher = Attacher::start(&server, &recorded);
    // The maximum number of children that can start at the same time. Each lives for only a few
    // milliseconds.
    let mut short = children(&mut server, "short 6", 6);
    await_attach(&mut attacher, &short);
    let nested = children(&mut server, "nested", 2);
    // The other process is a child of this child, and nothing waits for it.
    let middle = *nested.iter().min().expect("two");
    await_attach(&mut attacher, &[middle]);
    let staying = children(&mut server, "stay", 1);
    await_attach(&mut attacher, &staying);
    // The child is not traced until it executes its program, which exits immediately.
    children(&mut server, "execute", 1);
    children(&mut server, "handler", 1);
    // The attacher creates new regions in its next round. A child born before that is not traced
    // from birth.
    let later = Mutex::new(Vec::new());
    let at_birth = |said: &str, child: &u64| {
        said.contains(&format!("Attached to {child} (births-) at its birth"))
    };
    let said = std::thread::scope(|scope| {
        let listener = scope.spawn(|| {
            let mut said = String::new();
            let is_one = |said: &str| {
                let later = later.lock().expect("no panic");
                later.iter().any(|child| at_birth(said, child))
            };
            while !is_one(&said) {
                said += &attacher.says("Attached to ");
            }
            said
        });
        while !listener.is_finished() {
            let born = children(&mut server, "short 2", 2);
            later.lock().expect("no panic").extend(born);
            // Pause between two births.
            std::thread::sleep(Duration::from_millis(50));
        }
        listener.join().expect("one is traced from its birth")
    });
    let (status, errors, reports) = attacher.last_reports();
    assert!(status.success(), "{status}: {errors}");
    let mut later = later.into_inner().expect("no panic");
    later.retain(|child| at_birth(&said, child) || at_birth(&errors, child));
    short.extend(later);
    for &child in short.iter().chain([&middle]) {
        let allocations = if child == middle { LEAKED } else { ALLOCATIONS };
        assert_whole(&reports, child, allocations, LEAKED);
        // Names are available for a child that exited shortly before the signal that ended the
        // trace.
        assert_named(&reports, child);
    }
    let stays = &reports[&staying[0]]["totals"];
    assert_eq!(stays["allocations"], ALLOCATIONS + 1, "{stays:#}");
    assert_eq!(stays["live_blocks"], LEAKED + 1, "{stays:#}");
    // Allocations of the child inside its parent's wrapper do not count for the parent.
    let parent = &reports[&u64::from(server.pid())]["totals"];
    assert_eq!(parent["lost_events"], 0, "{parent:#}");
    // The parent may have a stdio buffer, but not the child's leaks.
    let live = parent["live_bytes"].as_u64();
    assert!(live < Some(LEAKED * 1000), "{parent:#}");
    for pid in staying.iter().chain([&u64::from(server.pid())]) {
        assert_eq!(wrapped_slots(*pid as u32), 0, "slots of {pid}");
    }
    let file = folder.path(&format!("x.{}.mhk", short[0]));
    let (code, output, errors) = run(&["report", "--json", &file]);
    assert_eq!(code, 0, "{errors}");
    let recorded: Value = serde_json::from_str(output.trim()).expect("JSON");
    assert_eq!(recorded["totals"]["live_blocks"], LEAKED, "{recorded:#}");
    // The parent has its own region and the hook, and no regions for children.
    let after = server.our_mappings();
    let attacher = Attacher::start(&server, &["--follow-fork"]);
    drop(attacher.finish());
    assert_eq!(server.our_mappings(), after, "{}", server.maps());
    end(server);
}

/// Checks that children that take a region of a killed attacher continue normally.
#[test]
fn nobody_waits_for_an_attacher_that_was_killed() {
    let mut server = server();
    let mut attacher = Attacher::start(&server, &["--follow-fork"]);
    let mut staying = children(&mut server, "stay", 1);
    await_attach(&mut attacher, &staying);
    attacher.kill();
    let offered = server.our_mappings();
    // This child takes a region that no attacher serves.
    staying.extend(children(&mut server, "stay", 1));
    children(&mut server, "short 4", 4);
    // `detach` cleans up in a child that was traced, in a child with an unserved region, and in the
    // parent.
    for pid in staying.iter().chain([&u64::from(server.pid())]) {
        let (code, output, errors) = run(&["detach", &pid.to_string()]);
        assert_eq!(code, 0, "{output}{errors}");
        assert_eq!(wrapped_slots(*pid as u32), 0, "slots of {pid}");
    }
    assert!(server.our_mappings() < offered, "{}", server.maps());
    children(&mut server, "short 2", 2);
    // The next attacher traces children from birth again once it has attached to the parent, which
    // may be the last process.
    let mut attacher = Attacher::start(&server, &["--follow-fork"]);
    for _ in &staying {
        attacher.says("Attached to ");
    }
    let short = children(&mut server, "short 2", 2);
    await_attach(&mut attacher, &short);
    let (status, errors, reports) = attacher.last_reports();
    assert!(status.success(), "{status}: {errors}");
    for child in short {
        assert_whole(&reports, child, ALLOCATIONS, LEAKED);
    }
    end(server);
}

/// Forks more children at the same time than there are regions. Checks that children traced from
/// birth are traced completely, and that all other children are counted.
#[test]
fn more_children_than_there_is_room_for() {
    let mut server = server();
    let attacher = Attacher::start(&server, &["--follow-fork"]);
    server.send("many 100\n");
    server.expect("many");
    let (status, errors, reports) = attacher.last_reports();
    assert!(status.success(), "{status}: {errors}");
    let of_children = reports.iter();
    let of_children = of_children.filter(|(pid, _)| **pid != u64::from(server.pid()));
    let whole = of_children.filter(|(_, report)| report["totals"]["allocations"] == ALLOCATIONS);
    let born = whole.count() as u64;
    let words =
        "not traced from their birth, because too many processes started at the same time: ";
    let late = errors.lines().find_map(|line| line.split(words).nth(1));
    let late: u64 = late.map_or(0, |late| late.trim().parse().expect("a number"));
    assert_eq!(born + late, 100, "{errors}");
    end(server);
}

/// Returns the number of regions of memhook-rs that a process has mapped.
fn regions(pid: u64) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    maps.matches("/memfd:memhook-region").count()
}

fn detach(pid: u64) {
    let (code, out, errors) = run(&["detach", &pid.to_string()]);
    assert_eq!(code, 0, "{errors}");
    assert!(out.contains("every slot holds its original"), "{out}");
}

#[test]
fn what_a_killed_attacher_has_mapped_for_children_goes() {
    let mut server = server();
    let pid = u64::from(server.pid());
    for by_detach in [true, false, true] {
        let mut attacher = Attacher::start(&server, &["--follow-fork"]);
        let stays = children(&mut server, "stay", 1);
        await_attach(&mut attacher, &stays);
        let ended = children(&mut server, "short 4", 4);
        await_attach(&mut attacher, &ended);
        attacher.kill();
        assert!(regions(pid) > 8, "{}", regions(pid));
        if by_detach {
            detach(pid);
        } else {
            let (code, _, errors) = run(&["attach", &pid.to_string(), "-d", "100ms"]);
            assert_eq!(code, 0, "{errors}");
        }
        assert_eq!(regions(pid), 1);
        // A child has at most its parent's region and the region that it has taken.
        detach(stays[0]);
        assert!(regions(stays[0]) <= 2, "{}", regions(stays[0]));
    }
    // All processes still work, and can be traced.
    let attacher = Attacher::start(&server, &["--follow-fork"]);
    children(&mut server, "short 2", 2);
    attacher.last_reports();
    assert_eq!(regions(pid), 1);
    end(server);
}
