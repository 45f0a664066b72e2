//! Tests that cannot run everywhere.

use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages of Debian whose programs and libraries have other names than they.
const PACKAGES: [(&str, &str); 37] = [
    ("apparmor_parser", "apparmor"),
    ("checkmodule", "checkpolicy"),
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
    ("redis-benchmark", "redis-tools"),
    ("redis-cli", "redis-tools"),
    ("scmp_sys_resolver", "seccomp"),
    ("semodule_package", "semodule-utils"),
    ("ssh-keygen", "openssh-client"),
    ("xz", "xz-utils"),
];

/// Library directory of Debian.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// Ends a test that is skipped.
struct Left;

/// Says why this test does not run. In CI, which sets MEMHOOK_TESTS_MUST_RUN, that is a failure.
pub fn not_run(why: &str) {
    let must = std::env::var_os("MEMHOOK_TESTS_MUST_RUN").is_some();
    assert!(!must, "cannot run: {why}");
    not_run_here(why);
}

/// Says why this test does not run where no package changes that: the kernel lacks something, or the network does not
/// answer. It passes in CI, too.
pub fn not_run_here(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // Not as printed text, which nobody sees of a test that passes.
    let _ = writeln!(std::io::stderr(), "{test}: not run: {why}");
}

/// Skips this test, which passes, as it cannot run here. In CI it fails.
pub fn leave(why: &str) -> ! {
    not_run(why);
    // Without a word of the hook for panics.
    resume_unwind(Box::new(Left));
}

/// Runs a test, unless it is left. What its attribute calls.
pub fn unless_left(test: impl FnOnce()) {
    let is_left = |panic: &Box<dyn Any + Send>| panic.is::<Left>();
    match catch_unwind(AssertUnwindSafe(test)) {
        Err(panic) if !is_left(&panic) => resume_unwind(panic),
        _ => {}
    }
}

/// Returns the path of an installed program; without it the test is skipped.
pub fn installed(name: &str) -> PathBuf {
    program(name).unwrap_or_else(|| leave(&missing(name)))
}

/// Returns true if a program is installed, for a test that goes on without it; says so if not.
pub fn has_program(name: &str) -> bool {
    let is_there = program(name).is_some();
    if !is_there {
        not_run(&missing(name));
    }
    is_there
}

fn program(name: &str) -> Option<PathBuf> {
    // Debian's first: what stands before it in PATH may be a script.
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = ["/usr/bin", "/usr/sbin"].into_iter().chain(path.split(':'));
    // Go's own archive is unpacked there (go.dev/doc/install), and few have it in PATH.
    let mut folders = folders.chain(["/usr/local/go/bin"]);
    folders.find_map(|folder| file_in(folder, name))
}

/// Returns the path of an installed library; without it the test is skipped.
pub fn installed_library(name: &str) -> PathBuf {
    let found = file_in(LIBRARIES, name);
    found.unwrap_or_else(|| leave(&missing(name)))
}

/// Returns true if a library is installed, for a test that continues without it; says so if not.
pub fn has_library(name: &str) -> bool {
    let is_there = file_in(LIBRARIES, name).is_some();
    if !is_there {
        not_run(&missing(name));
    }
    is_there
}

/// Leaves the test if these flags of a compiler name a linker or a library that is not installed.
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
        // Most are there, and no process needs to be started for those.
        if file_in(LIBRARIES, &file).is_none() && !is_found(compiler, &file) {
            let archive = file.replace(".so", ".a");
            if library.starts_with(':') || !is_found(compiler, &archive) {
                leave(&missing(&file));
            }
        }
    }
}

/// Returns true if a compiler finds this library: it prints a path then, and the bare name otherwise (gcc(1),
/// -print-file-name).
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
    let other = PACKAGES.iter().find(|(program, _)| *program == name);
    let package = other.map_or(name, |(_, package)| package);
    format!("{name} is not installed (apt-get install {package})")
}

/// Returns whether we can suspend seccomp filters of other processes: not if we have one ourselves.
pub fn can_pass_by_filters() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("our own");
    status.lines().any(|line| line == "Seccomp:\t0")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A skipped test shows no failure, and its values are dropped.
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

    /// Where all tests must run, CI has to install everything: the names of packages are in both places.
    #[test]
    fn ci_installs_what_has_another_name() {
        let run = concat!(env!("CARGO_MANIFEST_DIR"), "/../.ci/run");
        let run = std::fs::read_to_string(run).expect("the script");
        let words: Vec<&str> = run
            .split(|c: char| c.is_whitespace() || ")\\".contains(c))
            .collect();
        let of_every_debian = ["dash", "coreutils", "util-linux"];
        for (_, package) in PACKAGES {
            let is_there = words.contains(&package) || of_every_debian.contains(&package);
            assert!(is_there, "{package} is not in .ci/run");
        }
    }
}
