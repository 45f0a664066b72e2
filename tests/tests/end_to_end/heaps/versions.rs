//! The table of allocators, their versions and commands in `docs/guide/heaps.md`: the result of
//! each command on a program that leaks 200 blocks.

use memhook_tests::programs::installed_library;
use memhook_tests::releases::Release;
use memhook_tests::scans::{List, scan};
use memhook_tests::{Target, binary, build_target, run};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/heaps.md");
const LOST: usize = 200;
/// Options that allow a hold long enough for a busy machine.
const SLOW: [&str; 2] = ["--max-hold", "20s"];
/// Maximum number of attempts to examine a program whose threads may be inside their allocator.
const LOOKS: usize = 10;

/// A version of an allocator.
struct Kind {
    name: &'static str,
    /// Name of a Debian release; `None` for this system.
    release: Option<&'static str>,
    /// Library to preload, or flags to link it in.
    from: From,
}

enum From {
    Library(&'static str),
    Flags(&'static [&'static str]),
}

const KINDS: [Kind; 8] = [
    Kind {
        name: "jemalloc 5.3.0",
        release: None,
        from: From::Library("libjemalloc.so.2"),
    },
    Kind {
        name: "jemalloc 5.3.0, linked in, stripped",
        release: None,
        from: From::Flags(&["-l:libjemalloc.a", "-ldl", "-lm", "-s"]),
    },
    Kind {
        name: "jemalloc 5.3.0",
        release: Some("trixie"),
        from: From::Library("libjemalloc.so.2"),
    },
    Kind {
        name: "jemalloc 5.3.1",
        release: Some("sid"),
        from: From::Library("libjemalloc.so.2"),
    },
    Kind {
        name: "gperftools 2.16",
        release: Some("trixie"),
        from: From::Library("libtcmalloc_minimal.so.4"),
    },
    Kind {
        name: "gperftools 2.18",
        release: Some("sid"),
        from: From::Library("libtcmalloc_minimal.so.4"),
    },
    Kind {
        name: "mimalloc 3.0.1",
        release: Some("trixie"),
        from: From::Library("libmimalloc.so.3"),
    },
    Kind {
        name: "mimalloc 3.6",
        release: Some("sid"),
        from: From::Library("libmimalloc.so.3"),
    },
];

impl Kind {
    /// Returns the command that runs the program on this allocator, or `None` if the allocator is
    /// not installed.
    fn command(&self) -> Option<Command> {
        let release = match self.release {
            Some(name) => Some(Release::named(name)?),
            None => None,
        };
        let flags = match self.from {
            From::Library(_) => &[][..],
            From::Flags(flags) => flags,
        };
        let program = match &release {
            Some(release) => release.build_target("sized_heap", flags),
            None => build_target("sized_heap", flags),
        };
        let mut command = Command::new(program);
        if let From::Library(library) = self.from {
            let library = match &release {
                Some(release) => release.library(library)?,
                None => installed_library(library),
            };
            command.env("LD_PRELOAD", library);
        }
        Some(command)
    }

    /// Returns the row of this allocator in the table.
    fn row(&self) -> Option<String> {
        let mut target = Target::run(&mut self.command()?);
        target.go();
        let mut planted = String::new();
        loop {
            let line = target.expect("");
            if line.starts_with("done") {
                break;
            }
            planted += &line;
        }
        let lost = leaked(&List::parse(&planted));
        assert_eq!(lost.len(), LOST);
        let pid = target.pid();
        let scanned = scanned(pid, &lost);
        let split = split(pid);
        assert!(target.finish().success(), "{}", self.name);
        let judged = judged(self.command()?);
        let place = self.release.unwrap_or("bookworm");
        Some(format!(
            "| {} | {place} | {scanned} | {split} | {judged} |",
            self.name
        ))
    }
}

fn leaked(list: &List) -> BTreeSet<u64> {
    let blocks = list.blocks.iter();
    blocks.filter(|b| b.1.0).map(|b| *b.0).collect()
}

/// Returns how `scan` finds the leaked blocks.
fn scanned(pid: u32, lost: &BTreeSet<u64>) -> &'static str {
    let mut said = String::new();
    for _ in 0..LOOKS {
        said = scan(pid, &[&["--list"], &SLOW[..]].concat());
        let found = List::parse(&said);
        let is_whole = !found
            .rest
            .iter()
            .any(|line| line.starts_with("note") || line.starts_with("finding"));
        if is_whole && leaked(&found) == *lost {
            return "exact";
        }
    }
    let text = scan(pid, &SLOW);
    assert!(text.starts_with("NOT SEARCHED"), "{text}{said}");
    assert!(!text.contains("damaged"), "{text}");
    "lists the memory that it does not search"
}

/// Returns how `rss` separates live blocks from the rest of the heap.
fn split(pid: u32) -> &'static str {
    let (code, text, errors) = run(&[&["rss", &pid.to_string()], &SLOW[..]].concat());
    assert_eq!(code, 0, "{errors}");
    if text.contains("live heap") && !text.contains("did not parse whole") {
        return "split";
    }
    assert!(text.contains("is not split"), "{text}");
    "lists the memory that it does not split"
}

/// Runs the program from start to end under `gate`, and returns the verdict.
fn judged(command: Command) -> &'static str {
    let mut gate = Command::new(binary());
    gate.args(["gate", "--"]).arg(command.get_program());
    for (name, value) in command.get_envs() {
        gate.env(name, value.expect("a value"));
    }
    let output = gate.stdin(Stdio::null()).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    if text.contains(&format!("in {LOST} blocks")) {
        return "exact";
    }
    assert!(text.contains("not seen:"), "{text}");
    "fails, and says what it may miss"
}

#[test]
fn the_guide_has_what_was_found() {
    let guide = std::fs::read_to_string(GUIDE).expect("the guide");
    for kind in &KINDS {
        if let Some(row) = kind.row() {
            println!("{row}");
            assert!(guide.contains(&row), "docs/guide/heaps.md has no {row}");
        }
    }
}
