//! Blocks with hidden addresses, which the program frees itself after a search has reported them as
//! leaked. None of them is freed twice, even if the allocator leaves freed blocks unchanged.

use memhook_heap::{Reclaimer, Request};
use memhook_inject::{HoldOptions, hold};
use memhook_tests::programs::installed_library;
use memhook_tests::releases::Release;
use memhook_tests::{Target, build_on_musl, build_target, has_library};
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

/// Number of blocks that each program plants.
const BLOCKS: usize = 300;
/// Number of programs.
const ROUNDS: usize = 6;
/// The freeing thread: the thread that must call `free` for memhook-rs, another thread, a new
/// thread, or a thread that exits.
const WAYS: [&str; 4] = ["m", "w", "n", "e"];

/// Sends a command to the program, and returns the lines of its answer.
fn tell(target: &mut Target, command: &str) -> Vec<String> {
    target.send(command);
    let lines = std::iter::from_fn(|| Some(target.expect("")));
    lines.take_while(|line| line != "done\n").collect()
}

fn check(command: &mut Command) {
    for round in 1..=ROUNDS {
        let mut target = Target::run(command);
        let pid = target.pid() as i32;
        tell(&mut target, "p");
        let mut reclaimer = Reclaimer::new(pid, Request::to_search()).expect("it lives");
        reclaimer.scan().expect("a first search");
        let found = reclaimer.scan().expect("a second search");
        assert_eq!(found.refused, None, "{round}");
        assert!(
            found.chosen.len() * 2 > BLOCKS,
            "{round}: {}",
            found.chosen.len()
        );
        let mut freed = BTreeSet::new();
        let options = HoldOptions {
            judge: None,
            thread: Some(pid),
            deadline: Duration::from_secs(10),
        };
        // After the search, and before the first check.
        let done = reclaimer.release(&found, &mut || {
            if freed.is_empty() {
                for line in WAYS.iter().flat_map(|way| tell(&mut target, way)) {
                    let address = line.trim().trim_start_matches("freed 0x");
                    freed.insert(u64::from_str_radix(address, 16).expect("an address"));
                }
            }
            hold(pid, &options)
        });
        assert!(done.failed.is_none(), "{round}: {:?}", done.failed);
        let address = |&block: &u32| found.scan.heap.blocks.get(block).address;
        let released: BTreeSet<u64> = done.released.iter().map(address).collect();
        let chosen: BTreeSet<u64> = found.chosen.iter().map(address).collect();
        let twice: Vec<_> = released.intersection(&freed).collect();
        assert!(twice.is_empty(), "{round}: freed twice: {twice:x?}");
        let kept: Vec<_> = chosen
            .difference(&released)
            .filter(|at| !freed.contains(at))
            .collect();
        assert!(kept.is_empty(), "{round}: live and kept: {kept:x?}");
        let at_stake = chosen.intersection(&freed).count();
        assert!(at_stake >= 10, "{round}: {at_stake}");
        assert_eq!(tell(&mut target, "c"), ["twice 0\n"], "{round}");
        assert!(target.finish().success());
    }
}

fn with(library: &str) -> Option<Command> {
    has_library(library).then(|| {
        let mut command = Command::new(build_target("hidden_frees", &[]));
        command.env("LD_PRELOAD", installed_library(library));
        command
    })
}

#[test]
fn on_glibc() {
    memhook_tests::patiently(|| {
        check(&mut Command::new(build_target("hidden_frees", &[])));
    });
}

/// Checks fast lists, with and without mangled links (since 2.32). The bytes of a freed block that
/// was never written to may be unchanged in such a list.
#[test]
fn in_fast_lists_of_glibc() {
    memhook_tests::patiently(|| {
        let here = build_target("hidden_frees", &[]);
        let releases = Release::all().into_iter();
        // glibc 2.43 has no fast lists.
        let with_lists = releases.filter(|release| release.glibc_minor() < 43);
        let elsewhere = with_lists.map(|release| {
            println!("{}, glibc 2.{}", release.name, release.glibc_minor());
            release.build_target("hidden_frees", &[])
        });
        for program in elsewhere.chain([here]) {
            check(
                Command::new(program)
                    .arg("fast")
                    .env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0"),
            );
        }
    });
}

#[test]
fn on_jemalloc() {
    memhook_tests::patiently(|| {
        with("libjemalloc.so.2").iter_mut().for_each(check);
    });
}

#[test]
fn on_mimalloc() {
    memhook_tests::patiently(|| {
        with("libmimalloc.so.2").iter_mut().for_each(check);
    });
}

#[test]
fn on_tcmalloc() {
    memhook_tests::patiently(|| {
        with("libtcmalloc_minimal.so.4").iter_mut().for_each(check);
    });
}

#[test]
fn on_musl() {
    memhook_tests::patiently(|| {
        if let Some(program) = build_on_musl("hidden_frees", &["-pthread"]) {
            check(&mut Command::new(program));
        }
    });
}
