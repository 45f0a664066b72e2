//! Compiles programs from their Debian sources, without and with callbacks.

use super::{Program, Work, reads, run_command};
pub use memhook_measurements::CALLBACKS;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn flags(tells: bool) -> String {
    let callbacks = if tells { &CALLBACKS[..] } else { &[] };
    [&["-O2", "-g", "-w"][..], callbacks].concat().join(" ")
}

fn runtime(tells: bool) -> String {
    let object = memhook_tests::access_runtime().join("memhook_access.o");
    tells
        .then(|| object.display().to_string())
        .unwrap_or_default()
}

fn new_folder(folder: &Path, name: &str, tells: bool) -> PathBuf {
    let kind = if tells { "telling" } else { "plain" };
    let folder = folder.join(format!("{name}-{kind}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn run_quietly(command: &mut Command) {
    run_command(command.stdout(Stdio::null()));
}

/// Builds the server with its own build system. Returns `None` if the source cannot be fetched. The compiler is clang,
/// because gcc omits the callback for a write to memory that the same basic block has read, and the table of items has
/// no other writes.
pub fn memcached(folder: &Path) -> Option<Program> {
    let source = memhook_tests::debian_source("memcached")?;
    let compiled = |tells| {
        let folder = new_folder(folder, "memcached", tells);
        let mut configure = Command::new(source.join("configure"));
        configure.args(["CC=clang", "--disable-dependency-tracking"]);
        run_quietly(configure.current_dir(&folder));
        let callbacks = if tells {
            "-fno-builtin -fsanitize-coverage=func,trace-loads,trace-stores"
        } else {
            ""
        };
        let mut make = Command::new("make");
        make.args(["-s", "memcached"]);
        // Valgrind 3.19 cannot read clang's default debug format.
        make.arg(format!("CFLAGS=-O2 -gdwarf-4 -w -pthread {callbacks}"));
        make.arg(format!("LIBS={} -levent", runtime(tells)));
        run_quietly(make.current_dir(&folder));
        folder.join("memcached")
    };
    Some(Program {
        name: "memcached",
        plain: compiled(false),
        telling: compiled(true),
        arguments: Vec::new(),
        folder: None,
        work: Work::Requests,
        paper: "2.89 times (2.32 without locks)",
    })
}

/// Returns two programs that sort and filter 4,000 reads, or none if the source cannot be fetched.
pub fn bamtools(folder: &Path) -> Vec<Program> {
    let Some(source) = memhook_tests::debian_source("bamtools") else {
        return Vec::new();
    };
    // Debian's archive omits the bundled libraries of this directory.
    let copies = source.join("src/third_party");
    std::fs::create_dir_all(&copies).expect("a folder");
    std::fs::write(copies.join("CMakeLists.txt"), "").expect("written");
    let own_cost = folder.join("own_cost.o");
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/targets");
    let mut compile = Command::new("g++");
    compile
        .args(["-std=c++20", "-O2", "-c", "-o"])
        .arg(&own_cost);
    run_command(compile.arg(targets.join("own_cost.cc")));
    let compiled = |tells| {
        let folder = new_folder(folder, "bamtools", tells);
        let objects = format!("{} {}", own_cost.display(), runtime(tells));
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(&source).arg("-B").arg(&folder);
        // This is a release build with asserts, which cmake would remove.
        configure.arg("-DCMAKE_BUILD_TYPE=None");
        run_quietly(&mut configure);
        // The callbacks cannot be enabled earlier, because cmake's test programs for the compiler are not linked with
        // them.
        configure.arg(format!("-DCMAKE_CXX_FLAGS={}", flags(tells)));
        configure.arg(format!("-DCMAKE_EXE_LINKER_FLAGS={objects}"));
        run_quietly(&mut configure);
        let mut build = Command::new("cmake");
        build.arg("--build").arg(&folder).args(["--parallel", "2"]);
        run_quietly(&mut build);
        ["src/bamtools", "src/toolkit/bamtools"]
            .map(|name| folder.join(name))
            .into_iter()
            .find(|path| path.is_file())
            .expect("bamtools")
    };
    let (plain, telling) = (compiled(false), compiled(true));
    let (input, output) = (folder.join("reads.bam"), folder.join("out.bam"));
    reads::write(&input);
    let of = |name, command: &str, more: &[&str], paper| {
        let paths = ["-in".into(), text(&input), "-out".into(), text(&output)];
        let words = std::iter::once(command.to_owned()).chain(paths);
        Program {
            name,
            plain: plain.clone(),
            telling: telling.clone(),
            arguments: words.chain(more.iter().map(|&word| word.into())).collect(),
            folder: None,
            work: Work::Own,
            paper,
        }
    };
    vec![
        of(
            "bamtools sort",
            "sort",
            &["-byname"],
            "lifetime .90, usage .92, useful lifetime .60; 64,022 blocks of 5,705 sites; changed: .85, .82, .55; \
             37,333 of 279; 3.01 times, memory 5.78 times",
        ),
        of(
            "bamtools filter",
            "filter",
            &["-mapQuality", ">=50"],
            "lifetime .90, usage .82, useful lifetime .69; 35,708 blocks of 363 sites; 5.46 times, memory 4.36 times",
        ),
    ]
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}
