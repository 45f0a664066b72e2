//! Links the command statically against glibc, regardless of cargo's configuration.
//!
//! In a clone, `.cargo/config.toml` requests `crt-static`. But `cargo install` does not read this
//! file from a repository or a package, and a package cannot request a target feature itself.
//! Without the feature, rustc passes the names of shared libraries to the linker. This script
//! passes `-static-pie` to the linker, and a directory of linker scripts that is searched first.
//! These scripts replace the shared libraries with archives.

use std::{env, fs, path::Path, process::Command};

/// Libraries that rustc requests, and the linker scripts that replace them. `libc.a` needs parts of
/// `libgcc.a`, which rustc does not list again after `libc.a`.
const SCRIPTS: [(&str, &str); 3] = [
    ("libc.so", "GROUP(-l:libc.a -l:libgcc.a -l:libgcc_eh.a)\n"),
    ("libm.so", "GROUP(-l:libm.a)\n"),
    (
        "libgcc_s.so",
        "GROUP(-l:libgcc_eh.a -l:libgcc.a -l:libc.a)\n",
    ),
];

pub fn link_statically() {
    // Other C libraries have their own rules: rustc links musl statically by default.
    if env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("gnu") {
        return;
    }
    // For a cross build, it is up to the user to configure a linker that finds its archives.
    if env::var("HOST") == env::var("TARGET") && !is_installed("libc.a") {
        println!(
            "cargo::error=memhook-rs is linked statically, and the static C library (libc.a) is not \
             installed: install libc6-dev (Debian, Ubuntu) or glibc-static (Fedora, openSUSE: \
             glibc-devel-static), and build again"
        );
        std::process::exit(1);
    }
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if features.split(',').any(|feature| feature == "crt-static") {
        return;
    }
    let directory = env::var("OUT_DIR").expect("cargo names a directory");
    for (library, script) in SCRIPTS {
        fs::write(Path::new(&directory).join(library), script).expect("OUT_DIR is writable");
    }
    println!("cargo::rustc-link-search=native={directory}");
    println!("cargo::rustc-link-arg-bins=-static-pie");
}

/// Returns true if a static library is installed. The compiler driver that rustc links with prints
/// an absolute path for a library that it finds, and the bare name otherwise (gcc(1),
/// -print-file-name).
fn is_installed(library: &str) -> bool {
    let output = Command::new("cc")
        .arg(format!("-print-file-name={library}"))
        .output();
    // Without a driver, rustc itself reports the missing library.
    output.map_or(true, |output| output.stdout.first() == Some(&b'/'))
}
