//! `--drains`: several threads of the attacher empty the rings of a program that is too fast for
//! one thread.

use super::adapting::{check, trace_crowd_by};
use memhook_tests::{Target, build_target, run};

fn is_drain(name: impl AsRef<str>) -> bool {
    name.as_ref().starts_with("drain-")
}

/// Checks that every event of every thread is counted, and that each release is matched to its
/// block.
#[test]
fn several_drains_count_what_one_does() {
    memhook_tests::patiently(|| {
        let options = [
            "--on-full",
            "wait",
            "--set",
            "ring-size=64K",
            "--set",
            "drains=2",
        ];
        for (program, stacks) in [
            (&["16", "100000"][..], &[][..]),
            (&["16", "100000", "release"], &["--stacks", "all"]),
        ] {
            let options = [&options, stacks].concat();
            let (report, truth, threads) = trace_crowd_by(program, &options);
            assert!(threads.iter().any(is_drain), "{threads:?}");
            assert!(report["sampling"].is_null(), "{report}");
            assert!(check(&report, truth).is_empty());
            assert_eq!(report["totals"]["unhooked_releases"], 0, "{report}");
            let sites = report["sites"].as_array().expect("sites").iter();
            let live = sites.map(|site| site["bytes"].as_u64().expect("a number"));
            assert_eq!(report["totals"]["live_bytes"], live.sum::<u64>());
        }
    });
}

/// Checks that several drain threads get exactly the same samples as one.
#[test]
fn several_drains_add_samples_up() {
    memhook_tests::patiently(|| {
        let options = [
            "--on-full",
            "adapt",
            "--set",
            "ring-size=64K",
            "--set",
            "drains=2",
        ];
        let mut sampled = 0;
        for _ in 0..3 {
            let (report, truth, _) = trace_crowd_by(&["8", "100000"], &options);
            check(&report, truth);
            sampled += u32::from(!report["sampling"].is_null());
        }
        assert!(sampled > 0, "no ring was nearly full");
    });
}

/// Checks that only one thread writes the sequence of recorded events.
#[test]
fn a_recording_has_one_drain() {
    memhook_tests::patiently(|| {
        let folder = memhook_tests::programs::Folder::new("one-drain");
        let name = folder.path("run.mhk");
        let options = [
            "--on-full",
            "wait",
            "--set",
            "ring-size=64K",
            "--set",
            "drains=2",
        ];
        let options = [&options[..], &["-o", &name, "--force"]].concat();
        let (report, truth, threads) = trace_crowd_by(&["16", "50000"], &options);
        assert!(!threads.iter().any(is_drain), "{threads:?}");
        check(&report, truth);
    });
}

#[test]
fn a_number_of_drains_that_cannot_be() {
    let mut target = Target::start(&build_target("sampled", &[]), &[]);
    let pid = target.pid().to_string();
    for (count, why) in [
        ("0", "from 1 to"),
        ("5000", "processor"),
        ("two", "from 1 to"),
    ] {
        let (code, output, errors) = run(&["attach", &pid, "--set", &format!("drains={count}")]);
        assert_eq!((code, output.as_str()), (2, ""), "{errors}");
        assert!(
            errors.contains(why) && errors.contains("drains="),
            "{errors}"
        );
    }
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}
