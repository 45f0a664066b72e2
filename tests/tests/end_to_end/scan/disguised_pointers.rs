//! Ways to hide a pointer from a reclaim: one program for each kind, with the expected outcome.

use memhook_tests::scans::scan;
use memhook_tests::{Target, build_target, run};
use std::process::Command;

/// Outcome for a block that is reachable only through a pointer of this kind.
enum Fate {
    /// The block is kept, and leaked blocks are released.
    Kept,
    /// Nothing is released, for this reason.
    Refused(&'static str),
    /// The pointer is undetectable, and the guide says so in these words.
    Unknown(&'static str),
}
use Fate::{Kept, Refused, Unknown};

const KINDS: [(&str, Fate); 28] = [
    ("low bits", Kept),
    ("high bits", Kept),
    ("shifted", Kept),
    ("past the end", Kept),
    ("six bytes", Kept),
    ("four bytes", Kept),
    ("packed", Kept),
    ("over the end of a file", Kept),
    ("over mappings", Kept),
    ("registers", Kept),
    ("vector registers", Kept),
    ("thread data", Kept),
    ("epoll", Kept),
    ("timers", Kept),
    ("queued signals", Kept),
    ("pipe", Kept),
    ("socket", Kept),
    ("by another process", Kept),
    ("in flight", Refused("data in a local socket")),
    ("aio", Refused("/[aio]")),
    ("io_uring", Refused("an io_uring")),
    ("complemented", Unknown("complemented")),
    ("combined", Unknown("XOR")),
    ("swapped", Unknown("byte order")),
    ("halves", Unknown("two halves")),
    ("offsets", Unknown("offsets")),
    ("before the start", Unknown("before the start")),
    ("file", Unknown("files")),
];

/// Returns the section of the guide about undetectable pointers.
fn unknown() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/scan.md");
    let text = std::fs::read_to_string(path).expect("the guide");
    let (_, text) = text
        .split_once("It cannot find pointers that a")
        .expect("what it says");
    let (text, _) = text.split_once("\n\n#").unwrap_or((text, ""));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn each_is_kept_or_refused_or_said_not_to_be_known() {
    let unknown = unknown();
    for (kind, fate) in KINDS {
        // Four-byte addresses require a program that is loaded at a fixed address.
        let place = if kind == "four bytes" {
            "-no-pie"
        } else {
            "-pie"
        };
        let program = build_target("disguised_pointers", &[place]);
        let mut target = Target::silent(Command::new(&program).arg(kind));
        if target.expect("") == "missing\n" {
            eprintln!("this machine has no {kind}");
            continue;
        }
        let options = ["--reclaim", "--yes", "--json", "--twice", "50ms"];
        if let Refused(why) = fate {
            let pid = target.pid().to_string();
            let (code, out, err) = run(&[&["scan", &pid], &options[..]].concat());
            assert_eq!((code, out.as_str()), (2, ""), "{kind}: {err}");
            assert!(
                err.contains(why) && err.lines().count() == 1,
                "{kind}: {err}"
            );
        } else {
            let report: serde_json::Value =
                serde_json::from_str(&scan(target.pid(), &options)).unwrap();
            let released = report["released_blocks"].as_u64();
            assert!(released >= Some(290), "{kind}: {report}");
        }
        target.send("c");
        let answer = target.expect("done");
        match fate {
            Kept | Refused(_) => assert_eq!(answer, "done 0\n", "{kind}"),
            Unknown(words) => {
                assert_ne!(
                    answer, "done 0\n",
                    "{kind} is found, but the guide says that it is not"
                );
                assert!(unknown.contains(words), "{kind}: {unknown}");
            }
        }
        assert!(target.finish().success(), "{kind}");
    }
}
