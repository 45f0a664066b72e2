//! Scans of a program that has planted blocks before anyone looked: chunk for chunk, and the sums
//! against the allocator's own, for the C library of this system and those of other Debian releases.

use memhook_tests::scans::{List, planted, scan};
use memhook_tests::{Target, build_target, source};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program that plants blocks, built once: a file that is being written can't be run.
fn plant() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build_target("scan_plant", &[]))
}

/// Scans a target that has planted blocks, and compares.
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
    // Stale words keep a few alive: LeakSanitizer misses about as many of the same program.
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
    // mallinfo2 counts cached chunks as used, and the headers of other arenas' heaps (heap_info and
    // malloc_state: 48 + 2200 bytes, aligned, in glibc 2.35 and later; 32 + 2200 before).
    let used = found.sum("arena", "used") + found.sum("arena", "cached");
    let headers = info["uordblks"] - used;
    let arenas = found.rest.iter().filter(|l| l.starts_with("arena")).count() as u64;
    assert!(
        headers == 2256 * (arenas - 1) || headers == 2240 * (arenas - 1),
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

/// The unpacked packages of another Debian release, if `cargo xtask debian-roots` has fetched them.
fn root(release: &str) -> Option<PathBuf> {
    let root = source("../../target/debian-roots").join(release);
    if !root.exists() {
        eprintln!("skipped: run cargo xtask debian-roots first");
        return None;
    }
    Some(root.canonicalize().expect("a path"))
}

/// Runs a program under the loader and the libraries of a root.
fn check_in(root: &Path, program: &Path) {
    let folders = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|f| root.join(f));
    let path = folders.each_ref().map(|f| f.to_string_lossy().into_owned());
    let loader = folders.iter().map(|f| f.join("ld-linux-x86-64.so.2"));
    let loader = loader.into_iter().find(|l| l.exists()).expect("a loader");
    for (threads, method) in [
        ("0", "precopy"),
        ("8", "precopy"),
        ("3", "fork"),
        ("3", "stop"),
    ] {
        let mut command = Command::new(&loader);
        command.arg("--library-path").arg(path.join(":"));
        check_plant(command.arg(program).arg(threads), method);
    }
}

/// glibc 2.41.
#[test]
fn planted_blocks_debian_13() {
    if let Some(root) = root("trixie") {
        check_in(&root, plant());
    }
}

/// glibc 2.31; the program is linked against it, as it has none of the newer versions of symbols.
#[test]
fn planted_blocks_debian_11() {
    let Some(root) = root("bullseye") else {
        return;
    };
    let (lib, usr) = (
        root.join("lib/x86_64-linux-gnu"),
        root.join("usr/lib/x86_64-linux-gnu"),
    );
    let program = root.join(format!("scan_plant-{}", std::process::id()));
    let with = |before: &str, path: &Path| format!("{before}{}", path.display());
    let status = Command::new("c++")
        .args(["-std=c++20", "-O2", "-o"])
        .arg(&program)
        .args([
            with("--sysroot=", &root),
            with("-B", &usr),
            with("-Wl,-rpath-link,", &lib),
        ])
        .args([
            "-isystem",
            "/usr/include/x86_64-linux-gnu",
            "-isystem",
            "/usr/include",
        ])
        .args([with("-L", &lib), with("-L", &usr)])
        .arg(source("scan_plant.cc"))
        .arg(lib.join("libpthread.so.0"))
        .arg(usr.join("libstdc++.so.6"))
        .status()
        .expect("a C++ compiler");
    assert!(status.success());
    check_in(&root, &program);
    std::fs::remove_file(program).expect("removed");
}
