//! `cargo xtask debian-roots`: the C libraries of other Debian releases, for tests.

use memhook_tests::DebianPackages;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Releases that remain available.
const RELEASES: [&str; 2] = ["bullseye", "trixie"];
/// Rolling releases with the newest C libraries. A mirror may lack them.
const MOVING: [&str; 2] = ["sid", "experimental"];
/// Packages, including the start files and the linker script for linking against an older C library.
const PACKAGES: [&str; 4] = ["libc6", "libc6-dev", "libstdc++6", "libgcc-s1"];

/// Allocators of releases that are newer than this system's. Names differ between releases, and a release may lack one.
const ALLOCATORS: [&str; 3] = ["libjemalloc2", "libtcmalloc-minimal4t64", "libmimalloc3"];

/// A Python version that the stable releases lack. The rolling releases have it for some time.
const PYTHON: [&str; 5] = [
    "python3.14-minimal",
    "libpython3.14-minimal",
    "libpython3.14-stdlib",
    "libexpat1",
    "zlib1g",
];

/// Fetches the packages and unpacks them into `target/debian-roots/RELEASE`. apt's state is also kept there, so this
/// system does not change.
pub fn run() -> ExitCode {
    for release in RELEASES {
        if let Err(why) = fetch(release) {
            eprintln!("{release}: {why}");
            return ExitCode::FAILURE;
        }
        println!("{release}: {}", root(release).display());
    }
    for release in MOVING {
        match fetch(release) {
            Ok(()) => println!("{release}: {}", root(release).display()),
            Err(why) => println!("{release}: skipped, because it is not available here: {why}"),
        }
    }
    ExitCode::SUCCESS
}

fn root(release: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/debian-roots")
        .join(release)
}

fn fetch(release: &str) -> Result<(), String> {
    let fail = |e: std::io::Error| e.to_string();
    let root = root(release);
    let has_allocators = || {
        root.join("usr/lib/x86_64-linux-gnu/libjemalloc.so.2")
            .exists()
    };
    if root.exists() && (!matches!(release, "sid" | "trixie") || has_allocators()) {
        return Ok(());
    }
    let more = match release {
        "sid" => [&ALLOCATORS[..], &PYTHON].concat(),
        "trixie" => ALLOCATORS.to_vec(),
        _ => Vec::new(),
    };
    let work = root.with_extension("unfinished");
    if work.exists() {
        std::fs::remove_dir_all(&work).map_err(fail)?;
    }
    // Experimental contains only the packages that differ from sid.
    let suites = if release == "experimental" {
        vec!["sid", release]
    } else {
        vec![release]
    };
    let packages = DebianPackages::new(&work.join("apt"), &suites, "amd64")?;
    packages.unpack(&PACKAGES, &work)?;
    for package in more {
        if let Err(why) = packages.unpack(&[package], &work) {
            println!("{release}: without {package}: {why}");
        }
    }
    // The link to the loader points to a path of the running system.
    let link = work.join("lib64/ld-linux-x86-64.so.2");
    if let Ok(to) = std::fs::read_link(&link) {
        std::fs::remove_file(&link).map_err(fail)?;
        let inside = Path::new("..").join(to.strip_prefix("/").unwrap_or(&to));
        std::os::unix::fs::symlink(inside, &link).map_err(fail)?;
    }
    if root.exists() {
        std::fs::remove_dir_all(&root).map_err(fail)?;
    }
    std::fs::rename(&work, &root).map_err(fail)
}
