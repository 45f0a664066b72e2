//! Links the command statically against glibc, whatever the configuration of cargo is.
//!
//! `.cargo/config.toml` asks for `crt-static` in a clone, but `cargo install` reads it neither from a
//! repository nor from a package, and a package cannot ask for a target feature by itself. Without the
//! feature, rustc names the shared libraries to the linker. This hands the linker `-static-pie`, and
//! linker scripts in a directory that is searched first, which put the archives in the place of those
//! libraries.

use std::{env, fs, path::Path, process::Command};

/// What rustc asks for, and what the linker gets instead. `libc.a` needs parts of `libgcc.a`, and rustc does
/// not name that again after it.
const SCRIPTS: [(&str, &str); 3] = [
    ("libc.so", "GROUP(-l:libc.a -l:libgcc.a -l:libgcc_eh.a)\n"),
    ("libm.so", "GROUP(-l:libm.a)\n"),
    (
        "libgcc_s.so",
        "GROUP(-l:libgcc_eh.a -l:libgcc.a -l:libc.a)\n",
    ),
];

pub fn link_statically() {
    // Other C libraries have rules of their own: rustc links musl statically by default.
    if env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("gnu") {
        return;
    }
    // A cross linker is for whoever configures it to find its archives.
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

/// The compiler driver that rustc links with prints an absolute path for a library that it finds, and the
/// bare name otherwise (gcc(1), -print-file-name).
fn is_installed(library: &str) -> bool {
    let output = Command::new("cc")
        .arg(format!("-print-file-name={library}"))
        .output();
    // Without a driver, rustc itself says what is missing.
    output.map_or(true, |output| output.stdout.first() == Some(&b'/'))
}
