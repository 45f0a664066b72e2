//! Profiles that the agent sends without names. `symbolize` adds the names from the files.

use super::served::{ask, rule};
use memhook_tests::agents::{Agent, Pprof};
use memhook_tests::programs::{Folder, copy_program, installed};
use memhook_tests::{Target, build_id, build_target, patience, run, until};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const STORE: &str = "[symbols]\nnames = \"store\"\n";
/// Produces one profile while the target is working, and one when the agent exits.
const EXACT: &str = "mode = \"exact\"\nsend = [\"files\"]\ninterval = \"500ms\"";

/// Detects every opening of a file, even if brief.
struct Openings(std::fs::File);

impl Openings {
    fn of(path: &str) -> Openings {
        let path = CString::new(path).expect("no zero");
        // SAFETY: the call accesses none of our memory, and the returned descriptor has no other
        // owner.
        let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: `path` ends with a zero and outlives the call.
        let watch = unsafe { libc::inotify_add_watch(fd, path.as_ptr(), libc::IN_OPEN) };
        assert!(watch >= 0);
        // SAFETY: as above.
        Openings(unsafe { std::fs::File::from_raw_fd(fd) })
    }

    fn have_been(&mut self) -> bool {
        self.0.read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 0)
    }
}

/// Starts a target without debug information; a separate file contains the debug information.
fn stripped_service(folder: &Folder) -> (Target, PathBuf, String) {
    let built = build_target("served", &["-Wl,--build-id"]);
    let program = folder.path("served");
    copy_program(&built, &program);
    std::fs::create_dir(folder.path(".debug")).expect("made");
    let debug = folder.path(".debug/served.debug");
    let link = format!("--add-gnu-debuglink={debug}");
    for words in [
        &["--only-keep-debug", &program, &debug][..],
        &["--strip-all", &link, &program],
    ] {
        let status = Command::new("objcopy").args(words).status();
        assert!(status.expect("objcopy runs").success());
    }
    let target = Target::start(Path::new(&program), &[]);
    (target, PathBuf::from(program), debug)
}

/// Returns the files in a directory, the oldest first.
fn files(directory: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory").flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    let number = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?.strip_suffix(".pb.gz")?;
        name.rsplit('-').next()?.parse::<u32>().ok()
    };
    // A file that is still being written has a temporary name.
    files.retain(|path| number(path).is_some());
    files.sort_by_key(number);
    files
}

fn read(path: &Path) -> Pprof {
    Pprof::read(&std::fs::read(path).expect("readable"))
}

/// Returns the allocated bytes of all profiles together.
fn allocated(directory: &str) -> i64 {
    let files = files(directory);
    files.iter().map(|path| read(path).sum("alloc_space")).sum()
}

/// Returns true for the C library functions that call `main`, which have names only if libc6-dbg is
/// installed.
fn is_of_c_library(place: &memhook_tests::pprof::Place) -> bool {
    let begins = |(name, ..): &(String, String, String, i64)| {
        name.starts_with("__libc_start") || name.starts_with("libc.so.6+0x")
    };
    place.iter().any(begins)
}

/// Returns the blocks and bytes allocated by each call stack in all profiles. Stacks are reduced to
/// the program's own functions.
fn rows(directory: &str) -> BTreeMap<Vec<memhook_tests::pprof::Place>, [i64; 2]> {
    let mut rows = BTreeMap::new();
    for path in files(directory) {
        for (mut stack, values) in read(&path).stacks {
            stack.retain(|place| !is_of_c_library(place));
            let sums: &mut [i64; 2] = rows.entry(stack).or_default();
            sums[0] += values[0];
            sums[1] += values[1];
        }
    }
    rows.retain(|_, sums| sums[0] != 0);
    rows
}

/// Traces a working target with an agent, and returns the directory of its profiles.
fn profiled(name: &str, symbols: &str) -> (Arc<Folder>, String, bool) {
    let folder = Arc::new(Folder::new(name));
    let (mut target, program, debug) = stripped_service(&folder);
    let mut openings = Openings::of(&debug);
    let profiles = folder.path("profiles");
    let rule = rule(&program, EXACT);
    let configuration = format!("[files]\ndirectory = \"{profiles}\"\n{symbols}{rule}");
    let agent = Agent::start(&folder, &configuration);
    agent.await_phase(target.pid(), "traced");
    ask(&mut target, "l");
    until("all is in profiles", || allocated(&profiles) >= 103_200);
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    let was_opened = openings.have_been();
    assert!(target.finish().success());
    (folder, profiles, was_opened)
}

#[test]
fn names_that_are_added_later_are_the_same() {
    // On a busy machine, the agent omits names that it does not find in time.
    let has_names = |directory: &str| {
        let rows = rows(directory);
        let mut places = rows.keys().flatten().flatten();
        places.all(|(name, ..)| !name.contains("+0x"))
    };
    let mut tries = (1..=patience::TRIES).map(|number| {
        let (kept, here, was_opened) = profiled(&format!("agent-names-here-{number}"), "");
        assert!(was_opened, "or nothing is proved below");
        (kept, here)
    });
    let named = tries.find(|(_, here)| has_names(here));
    let (_kept, here) = named.expect("names of all that has them");
    let (folder, elsewhere, was_opened) = profiled("agent-names-elsewhere", STORE);
    assert!(!was_opened, "the agent has opened a debug file");
    let wanted = rows(&here);
    let leaks = |(stack, _): &(&Vec<memhook_tests::pprof::Place>, &[i64; 2])| {
        let innermost = stack[0].first();
        innermost.is_some_and(|(name, _, file, line)| {
            name.starts_with("planted_leak") && file.ends_with("served.cc") && *line > 0
        })
    };
    assert_eq!(wanted.iter().find(leaks).expect("a row").1, &[100, 100_000]);
    let id = build_id(Path::new(&folder.path("served")));
    let mut has_program = false;
    for path in files(&elsewhere) {
        let profile = read(&path);
        assert_eq!(profile.functions, 0, "{path:?}: {profile:?}");
        let of_program = |(path, of, address): &&(String, String, u64)| {
            path.ends_with("/served") && *of == id && *address < 1 << 24
        };
        has_program |= profile.nameless.iter().any(|of| of_program(&of));
    }
    assert!(has_program, "addresses begin where the file does");
    let named = folder.path("named");
    std::fs::create_dir(&named).expect("made");
    let count = files(&elsewhere).len();
    let (code, _, said) = run(&["symbolize", &elsewhere, "-o", &named]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(said.lines().count(), count, "a line for each: {said}");
    assert!(said.contains("have names now, in "), "{said}");
    for (before, after) in files(&elsewhere).iter().zip(files(&named)) {
        let (before, after) = (read(before), read(&after));
        assert_eq!(after.sum("inuse_space"), before.sum("inuse_space"));
        assert_eq!(after.nameless, []);
        assert_eq!(after.labelled_samples, before.labelled_samples);
    }
    assert_eq!(rows(&named), wanted);
    // If the program and its debug file are missing, its locations stay unchanged, and the message
    // names the program.
    std::fs::remove_file(folder.path(".debug/served.debug")).expect("removed");
    std::fs::remove_file(folder.path("served")).expect("removed");
    let with_leak = files(&elsewhere).into_iter().rev().find(|path| {
        let nameless = read(path).nameless;
        nameless.iter().any(|(path, ..)| path.ends_with("/served"))
    });
    let with_leak = with_leak.expect("one").display().to_string();
    let other = folder.path("other.pb.gz");
    let (code, _, said) = run(&["symbolize", &with_leak, "-o", &other]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(&format!("/served (build-id {id})")), "{said}");
    let left = read(Path::new(&other)).nameless;
    assert!(left.iter().all(|(_, of, _)| *of == id) && !left.is_empty());
    // The files are back, and names that were added earlier remain.
    copy_program(
        build_target("served", &["-Wl,--build-id"]),
        folder.path("served"),
    );
    let (code, _, said) = run(&["symbolize", &other]);
    assert_eq!(code, 0, "{said}");
    let both = read(Path::new(&folder.path("other.named.pb.gz")));
    let live = both.values["inuse_space"].iter();
    let leaked: i64 = live
        .filter(|(name, _)| name.starts_with("planted_leak"))
        .map(|(_, bytes)| bytes)
        .sum();
    assert_eq!((both.nameless.len(), leaked), (0, 100_000));
    // The output file now exists.
    let (code, _, said) = run(&["symbolize", &other]);
    assert!(code == 2 && said.contains("exists"), "{said}");
}

/// No file contains the functions of an interpreter, so their names could not be added later.
#[test]
fn what_only_the_process_knows_keeps_its_name() {
    let folder = Arc::new(Folder::new("agent-names-python"));
    let script = folder.path("work.py");
    let text = "import sys\nkept = []\ndef hoard(n):\n    kept.append(bytearray(n))\n\
        def work():\n    for _ in range(100):\n        hoard(50_001)\n\
        print('ready', flush=True)\nfor line in sys.stdin:\n    work()\n    print('done', flush=True)\n";
    std::fs::write(&script, text).expect("written");
    let python = std::fs::canonicalize(installed("python3")).expect("a program");
    let program = folder.path("python-of-test");
    copy_program(&python, &program);
    let mut target = Target::run(Command::new(&program).arg(&script));
    let profiles = folder.path("profiles");
    let rule = rule(Path::new(&program), EXACT);
    let configuration = format!("[files]\ndirectory = \"{profiles}\"\n{STORE}{rule}");
    let agent = Agent::start(&folder, &configuration);
    agent.await_phase(target.pid(), "traced");
    target.send("go\n");
    target.expect("done");
    until("all is in profiles", || allocated(&profiles) >= 5_000_100);
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());
    let mut hoarded = 0;
    for path in files(&profiles) {
        let profile = read(&path);
        assert!(!profile.nameless.is_empty());
        for (stack, values) in &profile.stacks {
            let is_hoard = |(name, _, file, line): &(String, String, String, i64)| {
                name == "hoard" && file.ends_with("work.py") && *line == 4
            };
            // All names are from the script.
            let names: Vec<_> = stack.iter().flatten().collect();
            assert!(
                names
                    .iter()
                    .all(|(_, _, file, _)| file.ends_with(".py") || file.starts_with('<')),
                "{names:?}"
            );
            if names.into_iter().any(is_hoard) {
                hoarded += values[1];
            }
        }
    }
    assert!(hoarded >= 5_000_100, "{hoarded}");
}

/// `symbolize` refuses each of these inputs with one line.
#[test]
fn what_is_no_profile_is_refused() {
    let folder = Folder::new("symbolize-refused");
    let file = folder.path("profile.pb.gz");
    let (empty, missing) = (folder.path("empty"), folder.path("missing.pb.gz"));
    std::fs::create_dir(&empty).expect("made");
    std::fs::write(&file, "no profile").expect("written");
    for (words, says) in [
        (&[&file][..], "it is not a profile in pprof's format"),
        (&[&missing], "cannot read"),
        (&[&empty], "has no files that end in .pb.gz"),
        (
            &[&file, &missing, &"-o".to_owned(), &folder.path("one")],
            "is not a directory",
        ),
    ] {
        let words: Vec<&str> = words.iter().map(|word| word.as_str()).collect();
        let (code, out, said) = run(&[&["symbolize"], &words[..]].concat());
        assert_eq!(
            (code, out.as_str(), said.lines().count()),
            (2, "", 1),
            "{said}"
        );
        assert!(said.contains(says), "{words:?}: {said}");
    }
    // One profile in the directory is damaged.
    let (code, _, said) = run(&["symbolize", &folder.path(".")]);
    assert!(code == 2 && said.contains("profile.pb.gz"), "{said}");
}
