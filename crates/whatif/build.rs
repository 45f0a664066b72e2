//! Builds the replayer, the C++ program that makes the recorded calls, so that it can be embedded.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    let source =
        PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap()).join("replayer/replayer.cc");
    println!("cargo:rerun-if-changed={}", source.display());
    let program = PathBuf::from(env::var("OUT_DIR").unwrap()).join("memhook-replayer");
    let compiler = cc::Build::new().cpp(true).opt_level(2).get_compiler();
    let output = Command::new(compiler.path())
        .args([
            "-std=c++20",
            "-O2",
            // Makes the address of malloc that of the function itself, not that of a PLT stub in
            // this program.
            "-fPIE",
            "-pie",
            "-fno-plt",
            // Calls of malloc and free are measured, so the compiler must not optimize them.
            "-fno-builtin",
            "-fno-exceptions",
            "-fno-rtti",
            // The C++ library would allocate before the first recorded call.
            "-nodefaultlibs",
            "-pthread",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wl,-z,now",
            // Libraries must also use the clock of the recording.
            "-rdynamic",
            "-Wl,--build-id=none",
            "-s",
        ])
        .arg(&source)
        .arg("-lc")
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap_or_else(|error| no_compiler(compiler.path(), &error));
    assert!(
        output.status.success(),
        "the replayer does not compile:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    println!("cargo:rustc-env=MEMHOOK_REPLAYER={}", program.display());
}

/// Ends the build with one line.
fn no_compiler(path: &Path, error: &std::io::Error) -> ! {
    println!(
        "cargo::error=the C++ compiler {} cannot be run ({error}): install g++ 12 or newer, or name one in CXX",
        path.display()
    );
    std::process::exit(1);
}
