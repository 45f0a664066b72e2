//! `emit`: listeners receive exactly the allocations of a process, and find the probes in memory
//! and in a file. Listeners and `emit` may start and end in any order.

use memhook_tests::listening::{Emitter, Listener, Told, balance};
use memhook_tests::programs::{Folder, installed, unshare};
use memhook_tests::{Attacher, JsonSchema, Target, build_target, not_run, run, until};
use std::fs::Permissions;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// Number of blocks that the target `emitted` allocates in a round, and number that it releases.
const ALLOCATIONS: usize = 1000 + 200 + 10 + 10 + 50 + 100 + 100 + 1 + RETOLD;
const RELEASES: usize = ALLOCATIONS - KEPT;
const BYTES: u64 =
    1000 * 24 + 200 * 500 + 10 * 4096 + 10 * 1000 + 50 * 64 + 100 * 100 + 100 * 3000 + 2 * 100;
const KEPT: usize = 7;
/// The block of a failed realloc is reported again.
const RETOLD: usize = 1;

const NO_PROBES: &str = "the kernel permits no uprobes";

fn emitted() -> Target {
    let mut command = Command::new(build_target("emitted", &["-O1"]));
    Target::run(&mut command)
}

fn round(target: &mut Target) {
    target.go();
    target.expect("round");
}

/// Listeners for both probes.
struct Both {
    alloc: Listener,
    free: Listener,
}

impl Both {
    fn start(emitter: &Emitter) -> Option<Both> {
        Some(Both {
            alloc: Listener::start(emitter, "alloc")?,
            free: Listener::start(emitter, "free")?,
        })
    }

    fn take(&mut self) -> (Vec<Told>, Vec<Told>) {
        (self.alloc.take(), self.free.take())
    }

    /// Expects the events of one round: every block once, with its own size as its weight.
    fn expect_round(&mut self) {
        let (allocations, releases) = self.take();
        assert_eq!((allocations.len(), releases.len()), (ALLOCATIONS, RELEASES));
        assert_eq!(allocations.iter().map(|told| told.size).sum::<u64>(), BYTES);
        assert!(
            allocations
                .iter()
                .all(|told| told.weighted_bytes == told.size)
        );
        assert_eq!(balance(&allocations, &releases).len(), KEPT);
    }

    fn expect_nothing(&mut self) {
        let (allocations, releases) = self.take();
        assert_eq!((allocations, releases), (Vec::new(), Vec::new()));
    }
}

/// Checks a listener that is active when `emit` ends and restarts, and that ends before or after
/// `emit`: it gets all reports, and the program is not affected.
#[test]
fn every_block_is_told_once_whoever_comes_and_goes() {
    let mut target = emitted();
    let emitter = Emitter::start(&target, &["--sample", "1"]);
    JsonSchema::load("emit-1").check(&emitter.place);
    assert_eq!(emitter.place["is_file"], false);
    // Without a listener, the later release of these blocks is not reported.
    round(&mut target);
    let Some(mut both) = Both::start(&emitter) else {
        return not_run(NO_PROBES);
    };
    assert_eq!(emitter.listeners(&target, "alloc"), 1);
    assert_eq!(emitter.listeners(&target, "free"), 1);
    both.expect_nothing();
    round(&mut target);
    both.expect_round();
    // The listeners end first.
    drop(both);
    // A process that another test starts at this moment inherits the listeners' descriptors, and
    // keeps them until it executes its program.
    until("nobody listens", || {
        emitter.listeners(&target, "alloc") == 0
    });
    round(&mut target);
    let mut both = Both::start(&emitter).expect("as before");
    round(&mut target);
    both.expect_round();
    // `emit` ends first, and starts again while the listeners wait.
    emitter.finish();
    round(&mut target);
    both.expect_nothing();
    let emitter = Emitter::start(&target, &["--sample", "1"]);
    round(&mut target);
    both.expect_round();
    // A killed `emit` cannot clean up: the listeners receive reports until another command cleans
    // up.
    emitter.kill();
    round(&mut target);
    both.expect_round();
    let (code, _, errors) = run(&["detach", &target.pid().to_string()]);
    assert_eq!(code, 0, "{errors}");
    round(&mut target);
    both.expect_nothing();
    drop(both);
    round(&mut target);
    assert!(target.finish().success());
}

/// Checks a program whose own allocator the loader could call, which rules out the use of the
/// loader.
#[test]
fn a_mapped_hook_tells_the_same() {
    let mut command = Command::new(build_target("emitted", &["-O1"]));
    let mut target = Target::run(command.env("LD_PRELOAD", "libtcmalloc_minimal.so.4"));
    let emitter = Emitter::start(&target, &["--sample", "1"]);
    let Some(mut both) = Both::start(&emitter) else {
        return not_run(NO_PROBES);
    };
    for _ in 0..3 {
        round(&mut target);
        both.expect_round();
    }
    emitter.finish();
    round(&mut target);
    both.expect_nothing();
    let emitter = Emitter::start(&target, &["--sample", "1"]);
    round(&mut target);
    both.expect_round();
    emitter.finish();
    assert!(target.finish().success());
}

/// Checks that tracing and emitting, which use two objects, load each object once, and that each
/// cleans up after a killed user of the other.
#[test]
fn tracing_and_emitting_take_turns() {
    let mut target = emitted();
    let mut mappings = None;
    for is_killed in [false, true, false, true, false] {
        let emitter = Emitter::start(&target, &["--sample", "1"]);
        let Some(mut both) = Both::start(&emitter) else {
            return not_run(NO_PROBES);
        };
        round(&mut target);
        both.expect_round();
        if is_killed {
            emitter.kill();
        } else {
            emitter.finish();
        }
        let attacher = Attacher::start(&target, &[]);
        round(&mut target);
        both.expect_nothing();
        if is_killed {
            attacher.kill();
        } else {
            let report = attacher.finish();
            assert_eq!(
                report["totals"]["allocations"],
                ALLOCATIONS - RETOLD,
                "{report}"
            );
            assert_eq!(report["totals"]["live_blocks"], KEPT, "{report}");
            let now = target.our_mappings();
            assert_eq!(*mappings.get_or_insert(now), now);
        }
    }
    assert!(target.finish().success());
}

/// Checks that the file contains exactly these probes, and is removed afterwards or kept.
#[test]
fn a_file_has_the_probes_for_those_who_look_at_files() {
    let folder = Folder::new("emit");
    let place = folder.path("");
    let place = place.trim_end_matches('/');
    let files = || std::fs::read_dir(place).expect("a folder").count();
    let mut target = emitted();
    let options = ["--sample", "1", "--object-dir", place];
    // `emit` does not remove an existing file.
    let keep = ["--keep-object"];
    for (extra, left) in [(&keep[..0], 0), (&keep[..], 1), (&keep[..0], 1)] {
        let emitter = Emitter::start(&target, &[&options[..], extra].concat());
        assert_eq!(emitter.place["is_file"], true);
        assert_eq!(
            emitter.path(),
            format!("{place}/memhook-hook-{}.so", target.pid())
        );
        let Some(mut both) = Both::start(&emitter) else {
            return not_run(NO_PROBES);
        };
        round(&mut target);
        both.expect_round();
        emitter.finish();
        assert_eq!(files(), left);
        round(&mut target);
        both.expect_nothing();
    }
    // The process must not execute a file to which others can write.
    let kept = folder.path(&format!("memhook-hook-{}.so", target.pid()));
    std::fs::set_permissions(&kept, Permissions::from_mode(0o666)).expect("ours");
    let pid = target.pid().to_string();
    let (code, _, errors) = run(&["emit", &pid, "--object-dir", place]);
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("another user may write to it"), "{errors}");
    // The kept file was reused. After its removal, another copy is made.
    let hooks = target.maps();
    let copies = |path: &str| {
        hooks
            .lines()
            .filter(|l| l.contains("r-xp") && l.contains(path))
            .count()
    };
    assert_eq!(copies(place), 2, "{hooks}");
    // An attach and a detach work alongside all of these objects.
    memhook_tests::Attacher::start(&target, &[]).finish();
    let emitter = Emitter::start(&target, &["--sample", "1"]);
    let mut both = Both::start(&emitter).expect("as before");
    round(&mut target);
    both.expect_round();
    emitter.finish();
    let (code, _, errors) = run(&["detach", &target.pid().to_string()]);
    assert_eq!(code, 0, "{errors}");
    assert!(target.finish().success());
}

/// Checks threads that pass blocks to each other. No block may be reported as released more often
/// than allocated, and the live blocks must match the program's.
#[test]
fn threads_hand_blocks_around() {
    let mut command = Command::new(build_target("oracle", &[]));
    let mut target = Target::run(command.args(["6000", "3"]));
    let emitter = Emitter::start(&target, &["--sample", "1"]);
    let Some(mut both) = Both::start(&emitter) else {
        return not_run(NO_PROBES);
    };
    target.go();
    let said = target.expect("live");
    let live: Vec<u64> = said
        .split_ascii_whitespace()
        .filter_map(|w| w.parse().ok())
        .collect();
    target.expect("done");
    let (allocations, releases) = both.take();
    assert!(allocations.len() > 12_000);
    let found: Vec<u64> = balance(&allocations, &releases).into_values().collect();
    // The C library keeps blocks of exited threads.
    let slack = found.len() as u64 - live[0];
    assert!(slack < 16, "{} live, {said}", found.len());
    assert!(found.iter().all(|&count| count == 1));
    emitter.finish();
    assert!(target.finish().success());
}

/// Checks that the weights estimate the bytes of all allocations within six standard errors.
#[test]
fn weights_estimate_bytes() {
    const MEAN: f64 = 8192.0;
    // The target `sampled` allocates every block twice, and keeps one of each pair.
    const BLOCKS: [(f64, f64); 4] = [
        (200_000.0, 24.0),
        (16_000.0, 500.0),
        (1_800.0, 9_000.0),
        (10.0, 1_500_000.0),
    ];
    let mut target = Target::start(&build_target("sampled", &[]), &[]);
    let emitter = Emitter::start(&target, &["--sample", "8K"]);
    let Some(mut both) = Both::start(&emitter) else {
        return not_run(NO_PROBES);
    };
    target.go();
    target.expect("done");
    let (allocations, releases) = both.take();
    balance(&allocations, &releases);
    for (blocks, size) in BLOCKS {
        let probability = -(-size / MEAN).exp_m1();
        let told = allocations.iter().filter(|told| told.size == size as u64);
        let (mut count, mut sum) = (0.0, 0.0);
        for told in told {
            count += 1.0;
            sum += told.weighted_bytes as f64;
            // The weight is exact to the byte.
            let weight = size / probability;
            assert!(
                (told.weighted_bytes as f64 - weight).abs() < 1.0,
                "{told:?}: {weight}"
            );
        }
        let spread = (blocks * probability * (1.0 - probability)).sqrt();
        let off = (count - blocks * probability).abs();
        assert!(off <= 6.0 * spread + 0.5, "{size}: {count} of {blocks}");
        let off = (sum - blocks * size).abs();
        assert!(
            off <= 6.0 * spread * size / probability + blocks,
            "{size}: {sum} bytes"
        );
    }
    emitter.finish();
    assert!(target.finish().success());
}

/// Returns true if a tracer waits for data from its probes. The kernel increments a semaphore when
/// a probe is set, before the tracer attaches its program to the probe or enables the event
/// (perf_event_open(2)). The tracer misses events in between.
fn waits(tracer: u32) -> bool {
    let calls = [libc::SYS_poll, libc::SYS_epoll_wait, libc::SYS_epoll_pwait];
    let call = std::fs::read_to_string(format!("/proc/{tracer}/syscall")).unwrap_or_default();
    let call = call.split(' ').next().and_then(|call| call.parse().ok());
    call.is_some_and(|call| calls.contains(&call))
}

/// Checks that bpftrace, a widely used tracer, counts exactly the events, in memory and in a file.
#[test]
fn bpftrace_listens() {
    let folder = Folder::new("emit-bpftrace");
    let place = folder.path("");
    installed("bpftrace");
    let in_file = ["--object-dir", place.as_str()];
    for options in [&in_file[..0], &in_file[..]] {
        let mut target = emitted();
        let emitter = Emitter::start(&target, &[&["--sample", "1"][..], options].concat());
        let path = emitter.path();
        let script = format!(
            "usdt:{path}:otel_memory:alloc {{ @allocations = count(); @bytes = sum(arg1); @weights = sum(arg2); }} \
             usdt:{path}:otel_memory:free {{ @releases = count(); }}"
        );
        let mut bpftrace = Command::new("bpftrace")
            .args(["-e", &script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("bpftrace starts");
        let listens = || ["alloc", "free"].map(|name| emitter.listeners(&target, name)) == [1, 1];
        let mut has_ended = false;
        until("bpftrace listens", || {
            has_ended = bpftrace.try_wait().expect("a child").is_some();
            has_ended || (listens() && waits(bpftrace.id()))
        });
        if !has_ended {
            round(&mut target);
            // SAFETY: kill takes plain integers; the child has not been waited for.
            unsafe { libc::kill(bpftrace.id() as i32, libc::SIGINT) };
        }
        let (mut output, mut errors) = (String::new(), String::new());
        let (out, err) = (bpftrace.stdout.take(), bpftrace.stderr.take());
        out.expect("piped")
            .read_to_string(&mut output)
            .expect("text");
        err.expect("piped")
            .read_to_string(&mut errors)
            .expect("text");
        bpftrace.wait().expect("a child");
        if has_ended {
            return not_run(&format!("bpftrace does not run here: {errors}"));
        }
        for (name, value) in [
            ("allocations", ALLOCATIONS as u64),
            ("bytes", BYTES),
            ("weights", BYTES),
            ("releases", RELEASES as u64),
        ] {
            assert!(
                output.contains(&format!("@{name}: {value}\n")),
                "{output}{errors}"
            );
        }
        emitter.finish();
        round(&mut target);
        assert!(target.finish().success());
    }
}

/// Checks that perf finds the probes of a file by its notes.
#[test]
fn perf_listens() {
    let folder = Folder::new("emit-perf");
    let (place, cache) = (folder.path(""), folder.path("cache"));
    // Does not use the cache of the user who runs the tests.
    let program = installed("perf");
    let perf = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["--buildid-dir", &cache]).args(arguments);
        command
    };
    let mut target = emitted();
    let emitter = Emitter::start(&target, &["--sample", "1", "--object-dir", &place]);
    let path = emitter.path();
    let events = ["sdt_otel_memory:alloc", "sdt_otel_memory:free"];
    let said = |arguments: &[&str]| {
        let output = perf(arguments).output().expect("perf starts");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let mut errors = said(&["buildid-cache", "--add", path]);
    errors += &said(&["probe", "-q", "--add", events[0], "--add", events[1]]);
    let pid = target.pid().to_string();
    let counts = folder.path("counts");
    let stat = ["stat", "-x,", "-o", &counts, "-p", &pid];
    let mut counting = perf(&stat)
        .args(["-e", events[0], "-e", events[1]])
        .stderr(Stdio::null())
        .spawn()
        .expect("perf starts");
    let listens = || ["alloc", "free"].map(|name| emitter.listeners(&target, name)) == [1, 1];
    let mut has_ended = false;
    until("perf listens", || {
        has_ended = counting.try_wait().expect("a child").is_some();
        has_ended || (listens() && waits(counting.id()))
    });
    if !has_ended {
        round(&mut target);
        // SAFETY: kill takes plain integers; the child has not been waited for.
        unsafe { libc::kill(counting.id() as i32, libc::SIGINT) };
    }
    counting.wait().expect("a child");
    errors += &said(&["probe", "-q", "-d", "sdt_otel_memory:*"]);
    if has_ended {
        return not_run(&format!("perf cannot set probes here: {errors}"));
    }
    let counts = std::fs::read_to_string(counts).expect("counts");
    for (event, count) in [(events[0], ALLOCATIONS), (events[1], RELEASES)] {
        let line = counts.lines().find(|line| line.contains(event));
        let found = line.and_then(|line| line.split(',').next()?.parse().ok());
        assert_eq!(found, Some(count as u64), "{event}: {counts}{errors}");
    }
    emitter.finish();
    assert!(target.finish().success());
}

/// Checks that refusals take one line and leave the target untouched.
#[test]
fn what_cannot_be_is_refused() {
    let folder = Folder::new("emit-refused");
    let place = folder.path("");
    let target = emitted();
    let pid = target.pid().to_string();
    let refused = |options: &[&str], why: &str| {
        let (code, out, errors) = run(&[&["emit", &pid], options].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{options:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(why), "{errors}");
    };
    refused(&["--object-dir", "here"], "an absolute path");
    refused(&["--object-dir", "/nowhere"], "No such file");
    refused(
        &["--object-dir", "/proc/self/exe"],
        "(in the file system of process",
    );
    refused(&["--sample", "0"], "0");
    let in_the_way = folder.path(&format!("memhook-hook-{pid}.so"));
    std::fs::write(&in_the_way, "something else").expect("written");
    refused(&["--object-dir", &place], "not the hook of this version");
    assert_eq!(std::fs::read(&in_the_way).expect("kept"), b"something else");
    assert_eq!(target.our_mappings(), 0, "{}", target.maps());
    assert!(target.finish().success());

    let target = Target::start(&build_target("emitted", &["-static"]), &[]);
    let (code, _, errors) = run(&["emit", &target.pid().to_string()]);
    assert_eq!(code, 2, "{errors}");
    assert!(
        errors.contains("listeners find probes only in loaded objects"),
        "{errors}"
    );
    assert!(target.finish().success());
}

/// Checks that the directory is resolved in the process's mount namespace: the file is visible
/// there and not here.
#[test]
fn the_file_is_where_the_process_finds_it() {
    let folder = Folder::new("emit-elsewhere");
    let place = folder.path("");
    let other = Folder::new("emit-noexec");
    let noexec = other.path("");
    let script = format!(
        "mount -t tmpfs none {place} && mount -t tmpfs -o noexec none {noexec} && exec {}",
        build_target("emitted", &["-O1"]).display()
    );
    let mut command = Command::new(unshare());
    let mut target = Target::run(command.args(["--mount", "sh", "-c", &script]));
    let pid = target.pid().to_string();
    let refused = ["emit", &pid, "--object-dir", &noexec];
    let (code, _, errors) = run(&refused);
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("is mounted noexec"), "{errors}");
    let emitter = Emitter::start(&target, &["--sample", "1", "--object-dir", &place]);
    assert!(
        emitter
            .path()
            .starts_with(&format!("/proc/{}/root/", target.pid()))
    );
    assert_eq!(std::fs::read_dir(&place).expect("ours").count(), 0);
    let Some(mut both) = Both::start(&emitter) else {
        return not_run(NO_PROBES);
    };
    round(&mut target);
    both.expect_round();
    emitter.finish();
    let theirs = format!("/proc/{}/root{place}", target.pid());
    assert_eq!(std::fs::read_dir(theirs).expect("theirs").count(), 0);
    assert!(target.finish().success());
}
