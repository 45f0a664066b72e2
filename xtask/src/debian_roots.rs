//! `cargo xtask debian-roots`: the C libraries of other Debian releases, for tests.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Those that stay.
const RELEASES: [&str; 2] = ["bullseye", "trixie"];
/// Those that move on, to the newest C libraries. A mirror need not have them.
const MOVING: [&str; 2] = ["sid", "experimental"];
/// With the start files and the linker script, for linking against an older C library.
const PACKAGES: [&str; 4] = ["libc6", "libc6-dev", "libstdc++6", "libgcc-s1"];

/// Allocators of releases that are newer than this system's. Names differ between releases, and one may have none.
const ALLOCATORS: [&str; 3] = ["libjemalloc2", "libtcmalloc-minimal4t64", "libmimalloc3"];

/// An interpreter that the releases which stay do not have. Those that move on have it for a time.
const PYTHON: [&str; 5] = [
    "python3.14-minimal",
    "libpython3.14-minimal",
    "libpython3.14-stdlib",
    "libexpat1",
    "zlib1g",
];

/// Fetches and unpacks the packages into `target/debian-roots/RELEASE`, with apt's state kept there
/// too: nothing of this system is changed.
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
            Err(why) => println!("{release}: left out, as it cannot be had here: {why}"),
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
    let apt = work.join("apt");
    if work.exists() {
        std::fs::remove_dir_all(&work).map_err(fail)?;
    }
    for folder in ["state/lists/partial", "cache/archives/partial", "debs"] {
        std::fs::create_dir_all(apt.join(folder)).map_err(fail)?;
    }
    let apt = apt.canonicalize().map_err(fail)?;
    let sources = apt.join("sources.list");
    let mirror = mirror()?;
    let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
    // Experimental has only what differs from sid.
    let suites = if release == "experimental" {
        vec!["sid", release]
    } else {
        vec![release]
    };
    let lines = suites
        .iter()
        .map(|suite| format!("deb [signed-by={keys}] {mirror} {suite} main\n"));
    std::fs::write(&sources, lines.collect::<String>()).map_err(fail)?;
    let options = [
        format!("Dir::State={}", apt.join("state").display()),
        format!("Dir::Cache={}", apt.join("cache").display()),
        format!("Dir::Etc::sourcelist={}", sources.display()),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        "Dir::Etc::preferencesparts=/dev/null".to_owned(),
        "Dir::State::status=/dev/null".to_owned(),
        format!("APT::Default-Release={release}"),
    ];
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        for option in &options {
            command.args(["-o", option]);
        }
        command
            .arg("-qq")
            .args(arguments)
            .current_dir(apt.join("debs"));
        complete(&mut command)
    };
    apt_get(&["update"])?;
    apt_get(&[&["download"], &PACKAGES[..]].concat())?;
    for package in more {
        if let Err(why) = apt_get(&["download", package]) {
            println!("{release}: without {package}: {why}");
        }
    }
    for package in std::fs::read_dir(apt.join("debs")).map_err(fail)? {
        let package = package.map_err(fail)?.path();
        complete(Command::new("dpkg").arg("-x").arg(package).arg(&work))?;
    }
    // The link to the loader names a place of the running system.
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

/// The mirror that this system installs Debian's packages from (after `apt-get update`).
fn mirror() -> Result<String, String> {
    let output = Command::new("apt-get")
        .args([
            "indextargets",
            "--format",
            "$(REPO_URI) $(LABEL)",
            "Created-By: Packages",
        ])
        .output()
        .map_err(|e| format!("apt-get: {e}"))?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_suffix(" Debian").map(str::to_owned))
        .ok_or_else(|| "this system has no Debian mirror: needs Debian and apt-get update".into())
}

fn complete(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
