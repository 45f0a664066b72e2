//! Builds the hook, the C++ shared object that runs inside targets, for embedding.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    let hook = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap()).join("hook-cxx");
    println!("cargo:rerun-if-changed={}", hook.display());
    build(
        &hook.join("hook.cc"),
        &[],
        "MEMHOOK_HOOK_OBJECT",
        "memhook-hook.so",
    );
    build(
        &hook.join("hook.cc"),
        &["-DMEMHOOK_EMITTER"],
        "MEMHOOK_EMITTER_OBJECT",
        "memhook-emitter.so",
    );
    // Object that the pads of probes call.
    build(
        &hook.join("probe.cc"),
        &[],
        "MEMHOOK_PROBE_OBJECT",
        "memhook-probe.so",
    );
    build_access_runtime(&hook);
}

/// Builds the runtime that programs link to report their reads and writes. The runtime becomes part of the program, so
/// it is compiled like ordinary code.
fn build_access_runtime(hook: &Path) {
    let object = PathBuf::from(env::var("OUT_DIR").unwrap()).join("memhook_access.o");
    let compiler = cc::Build::new().cpp(true).opt_level(2).get_compiler();
    let output = Command::new(compiler.path())
        .args([
            "-std=c++20",
            "-O2",
            "-fPIC",
            "-c",
            "-ffreestanding",
            "-fno-exceptions",
            "-fno-rtti",
            "-fno-stack-protector",
            "-fvisibility=hidden",
            // The program's code expects the callbacks to change no registers except their own.
            "-mgeneral-regs-only",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .arg(hook.join("access_runtime.cc"))
        .arg("-o")
        .arg(&object)
        .output()
        .unwrap_or_else(|error| no_compiler(compiler.path(), &error));
    assert!(
        output.status.success(),
        "the access runtime does not compile:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    println!(
        "cargo:rustc-env=MEMHOOK_ACCESS_RUNTIME={}",
        object.display()
    );
}

/// Builds one object and sets a compiler environment variable to its path.
fn build(source: &Path, options: &[&str], variable: &str, file: &str) {
    let directory = env::var("OUT_DIR").unwrap();
    let object = Path::new(&directory).join(file);
    // `cc` only locates the compiler (CXX, CXX_<target>); the flags below are the whole recipe.
    let compiler = cc::Build::new().cpp(true).opt_level(2).get_compiler();
    // GCC writes the call graph and stack sizes for the test of the hook's stack use; clang cannot.
    let mut calls = Vec::new();
    if compiler.is_like_gnu() {
        let directory = format!("{directory}/");
        calls.extend(
            [
                "-fcallgraph-info=su",
                "-dumpdir",
                &directory,
                "-dumpbase",
                file,
            ]
            .map(str::to_owned),
        );
        println!("cargo:rustc-env={variable}_CALLS={}.ci", object.display());
    }
    let output = Command::new(compiler.path())
        .args([
            "-std=c++20",
            "-O2",
            "-fPIC",
            "-shared",
            // The hook runs inside foreign processes, below their allocator, so it must not import anything.
            "-ffreestanding",
            "-nostdlib",
            "-fno-exceptions",
            "-fno-rtti",
            "-fno-stack-protector",
            "-fno-threadsafe-statics",
            // Vector registers may hold the caller's arguments and results.
            "-mgeneral-regs-only",
            "-fomit-frame-pointer",
            "-fvisibility=hidden",
            // Exceptions of operator new pass through the wrappers.
            "-fasynchronous-unwind-tables",
            "-fcf-protection=none",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wl,-z,now",
            // RELRO needs mprotect(2), which a sandbox may refuse; dlopen would then fail.
            "-Wl,-z,norelro",
            // A thread may still return through a wrapper long after the detach.
            "-Wl,-z,nodelete",
            "-Wl,--hash-style=gnu",
            "-Wl,--build-id=sha1",
            "-Wl,--no-undefined",
            "-Wl,-soname,memhook-hook.so",
        ])
        .args(options)
        .args(calls)
        .arg(source)
        .arg("-o")
        .arg(&object)
        .output()
        .unwrap_or_else(|error| no_compiler(compiler.path(), &error));
    assert!(
        output.status.success(),
        "the hook does not compile:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    println!("cargo:rustc-env={variable}={}", object.display());
}

/// Prints one line and exits.
fn no_compiler(path: &Path, error: &std::io::Error) -> ! {
    println!(
        "cargo::error=the C++ compiler {} cannot be run ({error}): install g++ 12 or newer, or name one in CXX",
        path.display()
    );
    std::process::exit(1);
}
