//! Heaps of allocators other than glibc's, dissected block by block while threads continue to
//! allocate.

use memhook_tests::programs::{Client, Folder, installed, installed_library, server};
use memhook_tests::releases::Release;
use memhook_tests::scans::{List, scan};
use memhook_tests::{Target, build_library, build_target, rounds, run};
use std::collections::BTreeSet;
use std::process::Command;

/// Planted blocks of `sized_heap`.
const LEAKED: usize = 200;
const LIVE: usize = 200;

/// Returns the planted blocks according to the target.
fn planted(target: &mut Target) -> List {
    target.go();
    let mut text = String::new();
    loop {
        let line = target.expect("");
        if line.starts_with("done") {
            return List::parse(&text);
        }
        text += &line;
    }
}

/// Scans a program this number of times, and compares each of its planted blocks. The scan must
/// report exactly the leaked blocks.
fn check_exactly(command: &mut Command, allocator: &str, times: usize) {
    let mut target = Target::run(command);
    let want = planted(&mut target);
    let lost: BTreeSet<u64> = want.blocks.iter().filter(|b| b.1.0).map(|b| *b.0).collect();
    assert_eq!((lost.len(), want.blocks.len()), (LEAKED, LEAKED + LIVE));
    let mut time = 0;
    for attempt in 0.. {
        let method = ["precopy", "fork", "stop"][attempt % 3];
        // Long enough for huge pages on a busy machine.
        let options = ["--list", "--snapshot", method, "--max-hold", "20s"];
        let found = List::parse(&scan(target.pid(), &options));
        // On a busy machine a thread may not get out of the allocator in the few milliseconds that it is given. The report
        // says so, and is not exact.
        if found.rest.iter().any(|l| l.starts_with("note")) {
            assert!(attempt < 10 * times, "the machine is too busy");
            continue;
        }
        time += 1;
        let rest = &found.rest;
        assert!(
            rest.iter()
                .any(|l| l.starts_with(&format!("heap of {allocator}"))),
            "{rest:?}"
        );
        assert!(
            !rest.iter().any(|l| l.starts_with("finding")),
            "{time}: {rest:?}"
        );
        let leaks: BTreeSet<u64> = found
            .blocks
            .iter()
            .filter(|b| b.1.0)
            .map(|b| *b.0)
            .collect();
        let missed: Vec<_> = lost.difference(&leaks).collect();
        let extra: Vec<_> = leaks.difference(&lost).collect();
        assert!(
            missed.is_empty() && extra.is_empty(),
            "{time}, {method}: {missed:x?}, {extra:x?}"
        );
        for (address, block) in &want.blocks {
            assert_eq!(
                found.blocks.get(address),
                Some(block),
                "{time}: {address:#x}"
            );
        }
        if time == times {
            break;
        }
    }
    assert!(target.finish().success(), "the target's own check");
}

#[test]
fn jemalloc_again_and_again() {
    let mut command = Command::new(build_target("sized_heap", &[]));
    check_exactly(
        command.env("LD_PRELOAD", installed_library("libjemalloc.so.2")),
        "jemalloc 5.3",
        rounds(50),
    );
}

#[test]
fn jemalloc_by_many_threads_and_arenas() {
    let program = build_target("sized_heap", &[]);
    for settings in [
        "narenas:1",
        "percpu_arena:percpu",
        "background_thread:true,dirty_decay_ms:0",
    ] {
        let mut command = Command::new(&program);
        command
            .env("LD_PRELOAD", installed_library("libjemalloc.so.2"))
            .env("MALLOC_CONF", settings);
        check_exactly(command.args(["12", "20"]), "jemalloc 5.3", rounds(6));
    }
}

#[test]
fn jemalloc_as_part_of_the_program() {
    installed_library("libjemalloc.a");
    let program = build_target("sized_heap", &["-l:libjemalloc.a", "-ldl", "-lm"]);
    check_exactly(&mut Command::new(program), "jemalloc 5.3", rounds(6));
}

/// Checks a stripped program, for which only pointers in registers and on stacks show whether its
/// threads are inside the allocator.
#[test]
fn jemalloc_as_part_of_a_stripped_program() {
    installed_library("libjemalloc.a");
    let program = build_target("sized_heap", &["-l:libjemalloc.a", "-ldl", "-lm", "-s"]);
    check_exactly(&mut Command::new(program), "jemalloc 5.3", rounds(6));
}

/// Checks several releases, between which the structures of these allocators have changed.
#[test]
fn allocators_of_other_debian_releases() {
    for (name, mimalloc) in [("trixie", "mimalloc 3.0"), ("sid", "mimalloc 3.6")] {
        let Some(release) = Release::named(name) else {
            continue;
        };
        let program = release.build_target("sized_heap", &[]);
        for (library, allocator) in [
            ("libmimalloc.so.3", mimalloc),
            ("libjemalloc.so.2", "jemalloc 5.3"),
            (
                "libtcmalloc_minimal.so.4",
                "tcmalloc gperftools 2.8 or later",
            ),
        ] {
            if let Some(library) = release.library(library) {
                let mut command = Command::new(&program);
                check_exactly(command.env("LD_PRELOAD", library), allocator, rounds(6));
            }
        }
    }
}

/// mimalloc 3 asks for huge pages. A hold this short has no time for them, so they are read while
/// the threads of the program move their blocks.
#[test]
fn no_block_in_memory_that_changes_is_leaked() {
    for name in ["trixie", "sid"] {
        let Some(release) = Release::named(name) else {
            continue;
        };
        let Some(library) = release.library("libmimalloc.so.3") else {
            continue;
        };
        let mut command = Command::new(release.build_target("sized_heap", &[]));
        let mut target = Target::run(command.env("LD_PRELOAD", library));
        let planted = planted(&mut target);
        let lost: BTreeSet<u64> = planted
            .blocks
            .iter()
            .filter(|b| b.1.0)
            .map(|b| *b.0)
            .collect();
        let pid = target.pid().to_string();
        let options = [
            "scan",
            &pid,
            "--list",
            "--snapshot",
            "precopy",
            "--max-hold",
            "4ms",
        ];
        for _ in 0..rounds(6) {
            let (code, text, errors) = run(&options);
            if code == 2 {
                assert!(errors.contains("--max-hold"), "{errors}");
                continue;
            }
            let found = List::parse(&text);
            let leaks = found.blocks.iter().filter(|b| b.1.0).map(|b| *b.0);
            let wrong: Vec<u64> = leaks.filter(|block| !lost.contains(block)).collect();
            assert!(wrong.is_empty(), "{name}: {wrong:x?}: {:?}", found.rest);
        }
        let (_, text, _) = run(&["scan", &pid, "--snapshot", "precopy", "--max-hold", "4ms"]);
        assert!(!text.contains(", damaged"), "{name}: {text}");
        assert!(target.finish().success(), "the target's own check");
    }
}

/// Debian's redis is linked to jemalloc. One of its modules loses blocks, and nothing was prepared.
#[test]
fn a_block_that_a_module_of_redis_lost() {
    let module = build_library("redis_losing_module", "redis_losing_module.so", &[]);
    let folder = Folder::new("scan-redis");
    let socket = folder.path("socket");
    let mut redis = Command::new(installed("redis-server"));
    redis.args([
        "--port",
        "0",
        "--save",
        "",
        "--loglevel",
        "warning",
        "--unixsocket",
        &socket,
    ]);
    redis.args(["--loadmodule", &module.display().to_string()]);
    let redis = server(&mut redis, &socket);
    let mut client = Client::connect(&socket);
    for i in 0..2000 {
        client.redis(&format!("SET key:{i} value-of-some-length-{i}"));
        client.redis(&format!("RPUSH list:{} element-{i}", i % 50));
    }
    let found = List::parse(&scan(redis.pid(), &["--list"]));
    let leaked = found.blocks.values().filter(|b| b.0);
    // The size class of 3000 bytes.
    let bytes: Vec<u64> = leaked.map(|b| b.1).collect();
    assert_eq!(bytes, [3072; 7], "{:?}", found.rest);
    assert!(found.blocks.len() > 4000, "{}", found.blocks.len());
    let text = scan(redis.pid(), &[]);
    assert!(text.contains("7 blocks"), "{text}");
    client.send("SHUTDOWN NOSAVE\r\n");
    assert!(redis.finish().success());
}

/// Checks that only leaked blocks are released: the program continues to allocate, and on exit
/// checks its blocks in use.
#[test]
fn jemalloc_takes_back_what_was_lost() {
    let mut command = Command::new(build_target("sized_heap", &[]));
    let mut target = Target::run(command.env("LD_PRELOAD", installed_library("libjemalloc.so.2")));
    let want = planted(&mut target);
    let list = |target: &Target| List::parse(&scan(target.pid(), &["--list"]));
    let lost = |list: &List| list.blocks.iter().filter(|b| b.1.0).map(|b| *b.0).collect();
    let before: BTreeSet<u64> = lost(&list(&target));
    assert_eq!(before.len(), LEAKED);
    let report = scan(target.pid(), &["--reclaim", "--yes", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let released = report["released_blocks"].as_u64().expect("a number") as usize;
    let after: BTreeSet<u64> = lost(&list(&target));
    // A pointer to a region may also be a pointer just past the end of the previous region, which
    // is then kept.
    assert!(released > LEAKED / 4, "{report:#}");
    assert_eq!(after.len(), LEAKED - released, "{report:#}");
    assert!(after.is_subset(&before));
    let kept = list(&target).blocks;
    for (address, block) in want.blocks.iter().filter(|b| !b.1.0) {
        assert_eq!(kept.get(address), Some(block), "{address:#x}");
    }
    assert!(target.finish().success(), "the target's own check");
}

/// Checks an allocator that is part of the program, so that threads cannot be kept out of its code.
#[test]
fn nothing_is_taken_back_where_jemalloc_is_part_of_the_program() {
    installed_library("libjemalloc.a");
    let program = build_target("sized_heap", &["-l:libjemalloc.a", "-ldl", "-lm"]);
    let target = Target::start(&program, &[]);
    let (code, _, errors) = run(&["scan", &target.pid().to_string(), "--reclaim", "--yes"]);
    assert_eq!(code, 2, "{errors}");
    assert!(
        errors.contains("jemalloc is part of the program"),
        "{errors}"
    );
    assert!(target.finish().success());
}
