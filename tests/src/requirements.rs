//! Tests that cannot run on every machine.

use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs and libraries whose Debian package has a different name.
const PACKAGES: [(&str, &str); 42] = [
    ("apparmor_parser", "apparmor"),
    ("checkmodule", "checkpolicy"),
    ("chroot", "coreutils"),
    ("clang++", "clang"),
    ("gcore", "gdb"),
    ("go", "golang-go"),
    ("heaptrack_print", "heaptrack"),
    ("id", "coreutils"),
    ("java", "default-jdk-headless"),
    ("javac", "default-jdk-headless"),
    ("ld.lld", "lld"),
    ("ld.mold", "mold"),
    ("libcurl.so.4", "libcurl4"),
    ("libjemalloc.a", "libjemalloc-dev"),
    ("libjemalloc.so", "libjemalloc-dev"),
    ("libjemalloc.so.2", "libjemalloc2"),
    ("libmimalloc.so.2", "libmimalloc2.0"),
    ("libpq.so.5", "libpq5"),
    ("libsqlite3.so.0", "libsqlite3-0"),
    ("libtcmalloc.so", "libgoogle-perftools-dev"),
    ("libtcmalloc.so.4", "libgoogle-perftools-dev"),
    ("libtcmalloc_minimal.a", "libgoogle-perftools-dev"),
    ("libtcmalloc_minimal.so", "libgoogle-perftools-dev"),
    ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    ("libxml2.so.2", "libxml2"),
    ("ms_print", "valgrind"),
    ("musl-gcc", "musl-tools"),
    ("nginx", "nginx-light"),
    ("node", "nodejs"),
    ("perf", "linux-perf"),
    ("pivot_root", "util-linux"),
    ("promtool", "prometheus"),
    ("qemu-x86_64", "qemu-user"),
    ("redis-benchmark", "redis-tools"),
    ("redis-cli", "redis-tools"),
    ("scmp_sys_resolver", "seccomp"),
    ("semodule_package", "semodule-utils"),
    ("setpriv", "util-linux"),
    ("sh", "dash"),
    ("ssh-keygen", "openssh-client"),
    ("unshare", "util-linux"),
    ("xz", "xz-utils"),
];

/// Library directory of Debian.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// Panic value of a skipped test.
struct Left;

/// Prints why this test does not run. In CI, which sets MEMHOOK_TESTS_MUST_RUN, the test then
/// fails.
pub fn not_run(why: &str) {
    let must = std::env::var_os("MEMHOOK_TESTS_MUST_RUN").is_some();
    assert!(!must, "cannot run: {why}");
    not_run_here(why);
}

/// Prints why this test does not run, for a reason that no package can fix: a missing kernel
/// feature, or a network failure. The test also passes in CI.
pub fn not_run_here(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // The line is written directly, because the test harness hides the output of passed tests.
    let _ = writeln!(std::io::stderr(), "{test}: not run: {why}");
}

/// Skips this test, because it cannot run here. The test then passes, except in CI.
pub fn leave(why: &str) -> ! {
    not_run(why);
    // Bypasses the panic hook, which would print a message.
    resume_unwind(Box::new(Left));
}

/// Runs a test that may be skipped. The attribute `#[test]` calls this function.
pub fn unless_left(test: impl FnOnce()) {
    let is_left = |panic: &Box<dyn Any + Send>| panic.is::<Left>();
    match catch_unwind(AssertUnwindSafe(test)) {
        Err(panic) if !is_left(&panic) => resume_unwind(panic),
        _ => {}
    }
}

/// Returns the path of an installed program. Skips the test if it is missing.
pub fn installed(name: &str) -> PathBuf {
    program(name).unwrap_or_else(|| leave(&missing(name)))
}

/// Returns true if a program is installed, for a test that can continue without it. Prints a
/// message if it is missing.
pub fn has_program(name: &str) -> bool {
    let is_there = program(name).is_some();
    if !is_there {
        not_run(&missing(name));
    }
    is_there
}

fn program(name: &str) -> Option<PathBuf> {
    // Debian's directory comes first, because an earlier directory in PATH may contain a script of
    // the same name.
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = ["/usr/bin", "/usr/sbin"].into_iter().chain(path.split(':'));
    // Go's own archive is unpacked into this directory (go.dev/doc/install), which is rarely in
    // PATH.
    let mut folders = folders.chain(["/usr/local/go/bin"]);
    folders.find_map(|folder| file_in(folder, name))
}

/// Returns the path of an installed library. Skips the test if it is missing.
pub fn installed_library(name: &str) -> PathBuf {
    let found = file_in(LIBRARIES, name);
    found.unwrap_or_else(|| leave(&missing(name)))
}

/// Returns true if a library is installed, for a test that can continue without it. Prints a
/// message if it is missing.
pub fn has_library(name: &str) -> bool {
    let is_there = file_in(LIBRARIES, name).is_some();
    if !is_there {
        not_run(&missing(name));
    }
    is_there
}

/// Skips the test if these flags of a compiler name a linker or a library that is not installed.
pub fn leave_unless_linkable(compiler: &str, flags: &[&str]) {
    for linker in flags
        .iter()
        .filter_map(|flag| flag.strip_prefix("-fuse-ld="))
    {
        installed(&format!("ld.{linker}"));
    }
    for library in flags.iter().filter_map(|flag| flag.strip_prefix("-l")) {
        let file = match library.strip_prefix(':') {
            Some(file) => file.to_owned(),
            None => format!("lib{library}.so"),
        };
        // Most libraries are in this directory, so no process is needed to find them.
        if file_in(LIBRARIES, &file).is_none() && !is_found(compiler, &file) {
            let archive = file.replace(".so", ".a");
            if library.starts_with(':') || !is_found(compiler, &archive) {
                leave(&missing(&file));
            }
        }
    }
}

/// Returns true if a compiler finds this library: it then prints a path, otherwise the bare name
/// (gcc(1), -print-file-name).
fn is_found(compiler: &str, file: &str) -> bool {
    let asked = Command::new(compiler)
        .arg(format!("-print-file-name={file}"))
        .output();
    asked.is_ok_and(|output| output.stdout.starts_with(b"/"))
}

fn file_in(folder: &str, name: &str) -> Option<PathBuf> {
    let file = Path::new(folder).join(name);
    file.is_file().then_some(file)
}

fn missing(name: &str) -> String {
    format!(
        "{name} is not installed (apt-get install {})",
        package(name)
    )
}

/// Returns the Debian package of a program or library.
fn package(name: &str) -> &str {
    let other = PACKAGES.iter().find(|(program, _)| *program == name);
    other.map_or(name, |(_, package)| package)
}

/// Returns true if we can suspend seccomp filters of other processes, which requires that we have
/// no filter ourselves.
pub fn can_pass_by_filters() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("our own");
    status.lines().any(|line| line == "Seccomp:\t0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Checks that a skipped test passes, and that its values are dropped.
    #[test]
    fn only_what_is_left_passes() {
        struct Held<'a>(&'a mut bool);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                *self.0 = true;
            }
        }
        let mut is_dropped = false;
        unless_left(|| {
            let _held = Held(&mut is_dropped);
            resume_unwind(Box::new(Left));
        });
        assert!(is_dropped);
        let fails = || unless_left(|| resume_unwind(Box::new("it fails")));
        assert!(catch_unwind(fails).is_err());
    }

    /// Beginnings of calls that ask for a program or a library.
    const ASKING: [&str; 4] = [
        "installed(\"",
        "installed_library(\"",
        "has_program(\"",
        "has_library(\"",
    ];

    /// Returns the programs and libraries that tests name where they ask for one.
    fn asked_for(root: &Path) -> BTreeSet<String> {
        let mut folders = ["benches", "crates", "tests", "xtask"]
            .map(|of| root.join(of))
            .to_vec();
        let mut names = BTreeSet::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a directory") {
                let path = entry.expect("readable").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = std::fs::read_to_string(&path).expect("text");
                    // A build script has a function with a longer name.
                    let text = text.replace("is_installed(", "");
                    for function in ASKING {
                        let calls = text.split(function).skip(1);
                        let asked = calls.filter_map(|call| call.split_once('"'));
                        names.extend(asked.map(|(name, _)| name.to_owned()));
                    }
                }
            }
        }
        names
    }

    /// Checks that CI installs every package that a test needs.
    #[test]
    fn ci_installs_what_tests_ask_for() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let run = std::fs::read_to_string(root.join(".ci/run")).expect("the script");
        let words: Vec<&str> = run
            .split(|c: char| c.is_whitespace() || ")\\".contains(c))
            .collect();
        let of_every_debian = ["bash", "dash", "coreutils", "util-linux"];
        let names = asked_for(&root);
        assert!(names.len() > 40, "{names:?}");
        let asked = names.iter().map(|name| package(name));
        for package in asked.chain(PACKAGES.map(|(_, package)| package)) {
            let is_there = words.contains(&package) || of_every_debian.contains(&package);
            assert!(is_there, "{package} is not in .ci/run");
        }
    }
}
