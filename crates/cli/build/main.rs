//! Links the command statically, and builds the service to which `memhook-rs demo` attaches. The
//! service is an ordinary program, as a distribution would build it, but with line numbers.

mod static_linking;

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    println!("cargo:rerun-if-changed=build");
    static_linking::link_statically();
    // The demo traces a process, which is not implemented on other processors yet.
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        build_demo_service();
    }
}

fn build_demo_service() {
    let here = env::var("CARGO_MANIFEST_DIR").unwrap();
    let source = PathBuf::from(&here).join("demo/service.cc");
    println!("cargo:rerun-if-changed={}", source.display());
    let program = PathBuf::from(env::var("OUT_DIR").unwrap()).join("demo-service");
    let compiler = cc::Build::new().cpp(true).opt_level(2).get_compiler();
    let output = Command::new(compiler.path())
        .args(["-std=c++20", "-O2", "-g1", "-pthread", "-o"])
        .arg(&program)
        // This makes paths short in the demo's report.
        .arg(format!("-ffile-prefix-map={here}=."))
        .arg(&source)
        .output()
        .unwrap_or_else(|error| no_compiler(compiler.path(), &error));
    assert!(
        output.status.success(),
        "the demo service does not compile:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    println!("cargo:rustc-env=MEMHOOK_DEMO_SERVICE={}", program.display());
}

/// Ends the build with one line.
fn no_compiler(path: &Path, error: &std::io::Error) -> ! {
    println!(
        "cargo::error=the C++ compiler {} cannot be run ({error}): install g++ 12 or newer, or name one in CXX",
        path.display()
    );
    std::process::exit(1);
}
