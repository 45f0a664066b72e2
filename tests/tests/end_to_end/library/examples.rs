//! Examples of the library, each with a program that exhibits exactly the behaviour that the
//! example detects.

#[path = "../../../../crates/memhook/examples/census.rs"]
mod census;
#[path = "../../../../crates/memhook/examples/false_sharing.rs"]
mod false_sharing;
#[path = "../../../../crates/memhook/examples/staleness.rs"]
mod staleness;

use super::{looked, traced};
use memhook::Options;
use memhook_tests::{Target, build_target};
use std::time::Duration;

#[test]
fn a_census_counts_objects_by_class() {
    let (target, attached) = traced("typed", &[], census::Census);
    let text = looked(|out| census::count(&attached, out)).expect("it watches nothing");
    attached.detach().expect("in order");
    assert!(target.finish().success());
    let mut lines: Vec<&str> = text.lines().collect();
    // Three containers are also blocks. Their classes are unknown, and separate functions allocate
    // them.
    lines.retain(|line| !line.starts_with("1 objects, ") || line.ends_with("Point"));
    assert_eq!(
        lines,
        [
            "5 objects, 5000 bytes: malloc in raw",
            "50 objects, 2800 bytes: std::_List_node<shapes::Point>",
            "1 objects, 2560 bytes: shapes::Point",
            "100 objects, 2400 bytes: shapes::Circle",
            "10 objects, 800 bytes: std::_Rb_tree_node<std::pair<int const, shapes::Point>>",
        ],
        "{text}"
    );
}

#[test]
fn staleness_finds_what_nobody_touches() {
    let look = |seconds: u64| {
        let (target, attached) = traced("idle_blocks", &[], staleness::Staleness);
        let idle = Duration::from_secs(seconds);
        let text = looked(|out| staleness::look(&attached, idle, out));
        attached.detach().expect("in order");
        assert!(target.finish().success());
        text
    };
    const FOUND: &str = "6000 of 10000 bytes are stale: 60 %";
    // The program touches the other blocks a thousand times even in the shortest of these periods,
    // unless it is suspended.
    let mut text = String::new();
    for seconds in [2, 8, 20] {
        let Some(found) = look(seconds) else { return };
        text = found;
        if text.starts_with(FOUND) {
            break;
        }
    }
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], FOUND, "{text}");
    assert!(lines[1].starts_with("6 blocks, 6000 bytes: "), "{text}");
    assert!(lines[1].contains(": idle_block < main"), "{text}");
    assert_eq!(lines.len(), 2, "{text}");
}

#[test]
fn false_sharing_is_found_and_nothing_else() {
    let program = build_target("falsely_shared", &["-O1", "-g"]);
    let look = |seconds: u64| {
        let mut target = Target::start(&program, &[]);
        let options = Options::new();
        let attached = memhook::attach(target.pid() as i32, &options, false_sharing::FalseSharing)
            .expect("traced");
        target.go();
        let shared = target.expect("shared ");
        target.expect("done");
        let time = Duration::from_secs(seconds);
        let text = looked(|out| false_sharing::look(&attached, time, out));
        attached.detach().expect("in order");
        assert!(target.finish().success());
        text.map(|text| (text, shared))
    };
    // Examines for longer if the program was suspended.
    let (mut text, mut shared) = (String::new(), String::new());
    for seconds in [4, 10, 20] {
        let Some(found) = look(seconds) else { return };
        (text, shared) = found;
        if text.lines().count() == 4 {
            break;
        }
    }
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(
        lines[3],
        "1 lines are shared by writers of different blocks"
    );
    for (line, (address, function)) in lines[1..3].iter().zip(
        shared
            .split_whitespace()
            .skip(1)
            .zip([" < first", " < second"]),
    ) {
        assert!(
            line.contains(&format!(" writes {address} (16 bytes)")),
            "{text}"
        );
        assert!(line.contains(function), "{text}");
    }
}
