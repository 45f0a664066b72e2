//! Scans of a program that planted blocks before an attach, compared chunk by chunk. The tests also
//! compare the sums with the allocator's own, for the C library of this system and the C libraries
//! of other Debian releases.

use memhook_tests::releases::Release;
use memhook_tests::scans::{List, planted, scan};
use memhook_tests::{Target, build_target};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the program that plants blocks. Builds it once, because a file that is being written
/// cannot be executed.
fn plant() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build_target("scan_plant", &[]))
}

/// Scans a target that has planted blocks, and compares the result.
fn check_plant(command: &mut Command, method: &str) {
    let mut target = Target::run(command);
    let before = target.maps();
    let found = List::parse(&scan(target.pid(), &["--list", "--snapshot", method]));
    assert_eq!(target.maps(), before, "{method}: mappings as before");
    let (want, info) = planted(&mut target);
    assert!(
        !found.rest.iter().any(|l| l.starts_with("finding")),
        "{:?}",
        found.rest
    );
    let mut missed = 0;
    for (address, &(leaked, bytes)) in &want.blocks {
        let &(is_leaked, has) = found
            .blocks
            .get(address)
            .expect("every planted block is found");
        assert_eq!(has, bytes, "{address:#x}");
        assert!(
            leaked || !is_leaked,
            "{address:#x} is reachable, and called leaked"
        );
        missed += u64::from(leaked && !is_leaked);
    }
    // Stale words keep a few blocks alive. LeakSanitizer misses about the same number in this
    // program.
    let leaked = want.blocks.values().filter(|b| b.0).count() as u64;
    assert!(
        missed * 10 <= leaked,
        "{missed} of {leaked} leaks were missed"
    );
    let extra = found
        .blocks
        .iter()
        .filter(|(a, b)| b.0 && !want.blocks.contains_key(a));
    assert_eq!(extra.count(), 0, "nothing else is leaked");
    // mallinfo2 counts cached chunks as used. It also counts the headers of other arenas' heaps
    // (heap_info and malloc_state), whose sizes differ between releases.
    let used = found.sum("arena", "used") + found.sum("arena", "cached");
    let headers = info["uordblks"] - used;
    let arenas = found.rest.iter().filter(|l| l.starts_with("arena")).count() as u64;
    let each = [48 + 2200u64, 32 + 2200, 48 + 2112].map(|bytes| bytes.next_multiple_of(16));
    assert!(
        each.iter().any(|each| headers == each * (arenas - 1)),
        "{headers}"
    );
    assert_eq!(found.sum("arena", "system"), info["arena"]);
    let mmapped = format!("mmapped {} {}", info["hblks"], info["hblkhd"]);
    assert!(found.rest.contains(&mmapped), "{mmapped}: {:?}", found.rest);
    assert!(target.finish().success());
}

fn check_here(threads: u32, method: &str) {
    check_plant(Command::new(plant()).arg(threads.to_string()), method);
}

#[test]
fn planted_blocks_one_thread() {
    check_here(0, "precopy");
    check_here(0, "fork");
    check_here(0, "stop");
}

#[test]
fn planted_blocks_many_threads() {
    check_here(8, "precopy");
    check_here(9, "fork");
    check_here(100, "stop");
}

/// Checks a system with huge pages: heaps of arenas then have the size and alignment of four huge
/// pages instead of 64 MiB.
#[test]
fn planted_blocks_in_arenas_that_ask_for_huge_pages() {
    let mut command = Command::new(plant());
    command
        .arg("8")
        .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=2");
    let mut target = Target::run(&mut command);
    let found = List::parse(&scan(target.pid(), &["--list"]));
    planted(&mut target);
    let words = |kind: &'static str| {
        let lines = found.rest.iter().filter(move |l| l.starts_with(kind));
        lines.filter_map(|line| line.split(' ').nth(1))
    };
    let arenas: Vec<&str> = words("arena").collect();
    assert_eq!(arenas.len(), 9, "{:?}", found.rest);
    // With huge pages, the main arena consists of distant mappings (malloc.c,
    // `__always_fail_morecore`), and is reported as incomplete.
    assert!(
        words("finding").all(|at| at == arenas[0]),
        "{:?}",
        found.rest
    );
    assert!(target.finish().success());
}

/// Checks releases from glibc 2.31 to the newest.
#[test]
fn planted_blocks_on_other_releases() {
    for release in Release::all() {
        let program = release.build_target("scan_plant", &[]);
        for (threads, method) in [
            ("0", "precopy"),
            ("8", "precopy"),
            ("3", "fork"),
            ("3", "stop"),
        ] {
            println!("{}, glibc 2.{}", release.name, release.glibc_minor());
            check_plant(Command::new(&program).arg(threads), method);
        }
    }
}
