//! Builds the programs of this directory together with the hook's own code.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use memhook_abi::region_bytes;

/// Compiles `SOURCE` against the hook.
pub fn compile(source: &str, name: &str, options: &[&str]) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let status = Command::new(compiler)
        .args([
            "-std=c++20",
            "-O2",
            "-pthread",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .args(options)
        .arg("-I")
        .arg(here.join("../../hook-cxx"))
        .arg(here.join("tests").join(source))
        .arg("-o")
        .arg(&program)
        .status()
        .expect("a C++ compiler is needed");
    assert!(status.success());
    program
}

/// Returns a region that child processes inherit: without close-on-exec.
pub fn region_file(ring_bytes: usize) -> OwnedFd {
    memhook_stream::sealed_file(region_bytes(ring_bytes) as u64).unwrap()
}
