//! Builds the programs that the tests run: the memhook-rs binary and the targets.

use crate::releases::Release;
use crate::requirements::{has_program, leave_unless_linkable, not_run};
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, OnceLock},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns a Cargo command with the environment of a shell. With the variables that Cargo sets for
/// tests, build scripts would run again, and everything that depends on their crates would be
/// rebuilt.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        let is_of_test = |name: &str| {
            let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_EXE_"];
            name == "CARGO_CRATE_NAME" || prefixes.iter().any(|p| name.starts_with(p))
        };
        if name.to_str().is_some_and(is_of_test) {
            cargo.env_remove(name);
        }
    }
    cargo.current_dir(root());
    cargo
}

/// Returns the path of the built program with this suffix, from Cargo's messages.
pub(crate) fn built(messages: &[u8], end: &str) -> Option<PathBuf> {
    let text = String::from_utf8_lossy(messages);
    let messages = text.lines().map(serde_json::from_str::<serde_json::Value>);
    let mut programs = messages.filter_map(|message| {
        let path = PathBuf::from(message.ok()?["executable"].as_str()?);
        path.to_str()?.ends_with(end).then_some(path)
    });
    programs.next_back()
}

/// Builds the Rust service `name` from `tests/services` with this allocator linked in, and returns
/// the path of its executable. Returns `None` if the service cannot be built here; the reason is
/// printed on standard error.
pub fn build_service(allocator: &str, name: &str) -> Option<PathBuf> {
    // A separate target folder keeps Cargo from rebuilding the tests' dependencies with other
    // features, and from waiting for its lock.
    let folder = folder().join("../../services");
    let mut build = cargo();
    build.args(["build", "-p", "memhook-test-services"]);
    build.args(["--features", allocator, "--message-format=json"]);
    let output = build.arg("--target-dir").arg(folder).output();
    let output = output.expect("cargo runs");
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        not_run(&format!("cannot build a service with {allocator}: {said}"));
        return None;
    }
    let program = built(&output.stdout, &format!("/{name}"));
    Some(program.expect("cargo names the service"))
}

static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// Sets the path of the memhook-rs binary, for tests in the binary's own package.
pub fn binary_is(path: &str) {
    BINARY.get_or_init(|| PathBuf::from(path));
}

/// Returns the memhook-rs binary. Builds it once per test program, with the profile of the tests.
pub fn binary() -> &'static Path {
    BINARY.get_or_init(|| {
        let mut build = cargo();
        // Uses the features of `cargo test --workspace`, for which Cargo must be given all packages
        // and a test. With the features of `-p memhook-cli`, half of the dependencies would be
        // rebuilt while the first test waits.
        build.args(["build", "-q", "--workspace", "--bin", "memhook-rs"]);
        build.args(["--test", "rooms", "--message-format=json"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let output = build.stderr(Stdio::inherit()).output().expect("cargo runs");
        assert!(output.status.success(), "memhook-rs does not build");
        built(&output.stdout, "/memhook-rs").expect("cargo names the binary")
    })
}

/// Returns the path of a file in `tests/targets`.
pub fn source(file: &str) -> PathBuf {
    root().join("tests/targets").join(file)
}

/// Returns the folder for built targets, next to the binary. Each version of the sources has a
/// separate folder, so that no target is built twice.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        let mut files: Vec<PathBuf> = std::fs::read_dir(source(""))
            .expect("tests/targets")
            .map(|entry| entry.expect("a file").path())
            .collect();
        files.sort();
        for file in files {
            file.file_name().hash(&mut hasher);
            std::fs::read(&file).expect("readable").hash(&mut hasher);
        }
        let name = format!("test-targets/{:016x}", hasher.finish());
        let folder = binary().parent().expect("a folder").join(name);
        std::fs::create_dir_all(&folder).expect("a folder in target/");
        folder
    })
}

/// Creates a file under another name, and moves it into place when it is complete, because another
/// process may be waiting for it.
fn whole(to: &Path, make: impl FnOnce(&Path)) {
    let mut unfinished = to.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    make(Path::new(&unfinished));
    std::fs::rename(&unfinished, to).expect("moved");
}

/// Creates a file unless it exists. Tests run in parallel and may need the same file; the second
/// test waits. If both created the file, the first test would execute it while the second test's
/// linker still writes to it (ETXTBSY).
pub(crate) fn once(to: &Path, make: impl FnOnce(&Path)) {
    type Turns = BTreeMap<PathBuf, Arc<Mutex<()>>>;
    static TURNS: Mutex<Turns> = Mutex::new(Turns::new());
    let turn = {
        let mut turns = TURNS.lock().unwrap_or_else(|e| e.into_inner());
        Arc::clone(turns.entry(to.to_owned()).or_default())
    };
    // A target that failed to build for one test also fails for the next test, which then reports
    // the failure itself.
    let _turn = turn.lock().unwrap_or_else(|e| e.into_inner());
    if !to.exists() {
        whole(to, make);
    }
}

/// Builds `tests/targets/NAME.cc` with extra flags, and returns the program's path.
pub fn build_target(name: &str, flags: &[&str]) -> PathBuf {
    build_for(Release::asked_for().as_ref(), name, flags)
}

/// Builds a target against the C library of a release; `None` means this system's library.
pub(crate) fn build_for(release: Option<&Release>, name: &str, flags: &[&str]) -> PathBuf {
    let file = format!("{name}-{}", flags.join("").replace(['/', ','], "_"));
    build(release, name, &file, &["-pthread"], flags)
}

/// Builds `tests/targets/NAME.cc` into a shared library with this name, and returns its path.
pub fn build_library(name: &str, file: &str, flags: &[&str]) -> PathBuf {
    build(None, name, file, &["-shared", "-fPIC"], flags)
}

fn build(
    release: Option<&Release>,
    name: &str,
    file: &str,
    base: &[&str],
    flags: &[&str],
) -> PathBuf {
    let directory = match release {
        Some(release) => folder().join(format!("{}-2.{}", release.name, release.glibc_minor())),
        None => folder().to_owned(),
    };
    std::fs::create_dir_all(&directory).expect("a directory in target/");
    let path = directory.join(file);
    leave_unless_linkable("c++", flags);
    once(&path, |to| {
        let of_release = release.map(Release::flags).unwrap_or_default();
        let mut flags = flags.to_vec();
        flags.extend(of_release.iter().map(String::as_str));
        compile(&source(&format!("{name}.cc")), base, &flags, to);
    });
    path
}

/// Builds `tests/targets/NAME.c` with musl's compiler wrapper and these flags, and returns the
/// program's path. `None` if musl is not installed; this is printed on standard error.
pub fn build_on_musl(name: &str, flags: &[&str]) -> Option<PathBuf> {
    let flags_in_name = flags.join("").replace(['/', '"'], "_");
    let to = folder().join(format!("{name}-musl{flags_in_name}"));
    if !has_program("musl-gcc") {
        return None;
    }
    once(&to, |to| {
        let status = Command::new("musl-gcc")
            .args(["-g", "-O2", "-Wall", "-pthread"])
            .arg(source(&format!("{name}.c")))
            .args(flags)
            .arg("-o")
            .arg(to)
            .status();
        assert!(
            status.expect("musl-gcc").success(),
            "{name}.c does not build"
        );
    });
    Some(to)
}

/// Returns the directory with the access runtime that `sdk` wrote.
pub fn access_runtime() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = folder().join(format!("access-{}", std::process::id()));
        let (code, _, err) = crate::run(&["sdk", "-o", &directory.to_string_lossy()]);
        assert_eq!(code, 0, "{err}");
        directory
    })
}

/// Builds `tests/targets/NAME.cc` with g++ or clang++ so that it reports its reads and writes, and
/// returns the program's path.
pub fn build_telling(compiler: &str, name: &str, flags: &[&str]) -> PathBuf {
    let path = folder().join(format!("{name}-telling-{compiler}{}", flags.join("")));
    // The file of a running program must not change, so each program is built once per run. A file
    // from an earlier run contains an older runtime.
    static BUILT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut built = BUILT.lock().unwrap_or_else(|e| e.into_inner());
    if built.contains(&path) {
        return path;
    }
    let variable = match compiler {
        "clang++" => "clang_flags",
        _ => "gcc_flags",
    };
    let runtime = access_runtime();
    let settings = std::fs::read_to_string(runtime.join("memhook-access.pc")).expect("settings");
    let mut lines = settings.lines();
    let of_compiler = lines.find_map(|line| line.strip_prefix(variable)?.strip_prefix('='));
    let mut all: Vec<&str> = of_compiler.expect("flags").split(' ').collect();
    let object = runtime.join("memhook_access.o");
    all.extend(["-O1", object.to_str().expect("a plain path")]);
    all.extend(flags);
    let source = source(&format!("{name}.cc"));
    whole(&path, |to| {
        compile_by(compiler, &["-std=c++20", "-pthread"], &source, &all, to);
    });
    built.insert(path.clone());
    path
}

/// Builds `tests/targets/NAME.c` with extra flags, and returns the program's path.
pub fn build_c_target(name: &str, flags: &[&str]) -> PathBuf {
    let path = folder().join(format!("{name}-c{}", flags.join("")));
    let source = source(&format!("{name}.c"));
    leave_unless_linkable("cc", flags);
    once(&path, |to| {
        compile_by("cc", &["-std=gnu11"], &source, flags, to);
    });
    path
}

/// Compiles a C++ file.
pub fn compile(source: &Path, base: &[&str], flags: &[&str], to: &Path) {
    let base = [&["-std=c++20"], base].concat();
    compile_by("c++", &base, source, flags, to);
}

fn compile_by(compiler: &str, base: &[&str], source: &Path, flags: &[&str], to: &Path) {
    let status = Command::new(compiler)
        .args(["-g", "-O2"])
        .args(base)
        .arg(source)
        .args(flags)
        .arg("-o")
        .arg(to)
        .status()
        .expect("a C++ compiler");
    assert!(status.success(), "{} does not build", source.display());
}
