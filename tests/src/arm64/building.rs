//! Cross-compilation of programs for AArch64.

use super::root::Root;
use crate::building::{built, cargo, folder, once, source};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROCESSOR: &str = "aarch64-unknown-linux-gnu";
const C_COMPILER: &str = "aarch64-linux-gnu-gcc";
const CXX_COMPILER: &str = "aarch64-linux-gnu-g++";

/// Names a tool that is missing for compiling AArch64 programs, and how to install it.
pub fn missing_tools() -> Option<&'static str> {
    if !runs(CXX_COMPILER) {
        return Some("there is no compiler for AArch64: install g++-aarch64-linux-gnu");
    }
    let libraries = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", PROCESSOR])
        .output();
    let has_libraries = libraries.is_ok_and(|output| {
        let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success() && Path::new(&directory).is_dir()
    });
    (!has_libraries).then_some(
        "there is no standard library for AArch64: rustup target add aarch64-unknown-linux-gnu",
    )
}

/// Returns true if a program can be started.
pub(super) fn runs(program: &str) -> bool {
    let mut command = Command::new(program);
    let command = command.arg("--version").stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Builds memhook-rs for AArch64 with warnings as errors; returns its path.
///
/// # Errors
/// Returns the output of the compiler.
pub fn build_command() -> Result<PathBuf, String> {
    let output = cargo()
        .args(["build", "-q", "-p", "memhook-cli", "--target", PROCESSOR])
        .arg("--message-format=json")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", C_COMPILER)
        .env("RUSTFLAGS", "-D warnings")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        let messages = String::from_utf8_lossy(&output.stdout).into_owned();
        return Err(format!("memhook-rs does not build for AArch64: {messages}"));
    }
    built(&output.stdout, "/memhook-rs").ok_or_else(|| "cargo names no program".to_owned())
}

/// Builds `tests/targets/NAME` for AArch64 and glibc; returns the program's path.
pub fn build_for_glibc(name: &str) -> PathBuf {
    let to = folder().join(format!("{name}-aarch64"));
    let compiler = if name.ends_with(".c") {
        C_COMPILER
    } else {
        CXX_COMPILER
    };
    once(&to, |to| {
        compile(Command::new(compiler).arg("-pthread"), name, to);
    });
    to
}

/// Builds `tests/targets/NAME.c` for AArch64 and musl with these options for the linker; returns the program's path.
pub fn build_for_musl(root: &Root, name: &str, linking: &[&str]) -> PathBuf {
    let to = folder().join(format!("{name}-aarch64-musl{}", linking.concat()));
    let specs = root.musl_specs();
    once(&to, |to| {
        let mut compiler = Command::new(C_COMPILER);
        compile(compiler.arg("-specs").arg(&specs).args(linking), name, to);
    });
    to
}

fn compile(compiler: &mut Command, name: &str, to: &Path) {
    let status = compiler
        .args(["-g", "-O2"])
        .arg(source(name))
        .arg("-o")
        .arg(to)
        .status()
        .expect("a compiler");
    assert!(status.success(), "{name} does not build for AArch64");
}
