//! Programs that open and close libraries during attach, tracing and detach.

use memhook_tests::{Attacher, Target, build_target, has_library, run};

/// Libraries of Debian, each of which loads others; most have constructors.
const LIBRARIES: [&str; 6] = [
    "libxml2.so.2",
    "libcurl.so.4",
    "libsqlite3.so.0",
    "liblzma.so.5",
    "libzstd.so.1",
    "libpq.so.5",
];

/// Attaches `times` times. Every third attacher is killed; the others detach.
fn attach_to_one(openers: &str, times: usize) {
    let program = build_target("plugin_host", &["-pthread", "-ldl"]);
    let mut arguments = vec![openers];
    let libraries = LIBRARIES.into_iter().filter(|library| has_library(library));
    arguments.extend(libraries);
    if arguments.len() == 1 {
        return;
    }
    let target = Target::start(&program, &arguments);
    let pid = target.pid().to_string();
    let (mut mappings, mut seen) = (0, 0);
    for i in 0.. {
        // The target may be suspended during any of the traces.
        if i >= times && (seen > 0 || i >= 10 * times) {
            break;
        }
        let attacher = Attacher::start(&target, &[]);
        // The program opens and closes plugins during this time.
        std::thread::sleep(std::time::Duration::from_millis(100));
        if i % 3 == 2 {
            attacher.kill();
            if i % 2 == 0 {
                let (code, output, errors) = run(&["detach", &pid]);
                assert_eq!(code, 0, "{output}{errors}");
            }
            continue;
        }
        attacher.signal(libc::SIGINT);
        let (status, output, errors) = attacher.outcome();
        // On an overloaded machine, the target may continue untraced. The attacher then reports it.
        if status.code() == Some(1) && errors.contains("waited too long for memhook-rs") {
            continue;
        }
        assert!(status.success(), "{status}: {errors}");
        let report = output.lines().last().expect("a report");
        let report: serde_json::Value = serde_json::from_str(report).expect("JSON");
        assert_eq!(report["totals"]["lost_events"], 0);
        seen += report["totals"]["allocations"].as_u64().expect("a count");
        mappings = target.our_mappings().max(mappings);
    }
    assert!(seen > 0, "nothing is seen of it");
    assert!(mappings < 10, "{}", target.maps());
    assert!(target.finish().success());
}

#[test]
fn by_its_main_thread() {
    attach_to_one("0", 10);
}

#[test]
fn by_several_threads() {
    attach_to_one("3", 10);
}
