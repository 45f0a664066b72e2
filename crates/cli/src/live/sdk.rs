//! `sdk`: files with which a program may be built.

use anyhow::Context;
use memhook_attach::ACCESS_RUNTIME;
use memhook_foreign::{OutputFile, visible};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Header for code that no compiler instruments.
const ACCESS_HEADER: &str = include_str!("sdk/memhook_access.h");
/// Header for programs that set marks themselves.
const MARK_HEADER: &str = include_str!("sdk/memhook_mark.h");
const OBJECT_NAME: &str = "memhook_access.o";

/// Options of the command.
#[derive(clap::Args)]
pub struct Args {
    /// Write the files into this directory; it is made if it does not exist
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Overwrite other files of the same names
    #[arg(long)]
    force: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let directory = &args.output;
    let cannot_write = || format!("cannot write into {}", directory.display());
    fs::create_dir_all(directory).with_context(cannot_write)?;
    let full = fs::canonicalize(directory).with_context(cannot_write)?;
    let pkg_config = pkg_config(&full);
    let files = [
        (OBJECT_NAME, ACCESS_RUNTIME),
        ("memhook_access.h", ACCESS_HEADER.as_bytes()),
        ("memhook-access.pc", pkg_config.as_bytes()),
        ("memhook_mark.h", MARK_HEADER.as_bytes()),
    ];
    for (name, contents) in files {
        write(&directory.join(name), contents, args.force)?;
    }
    println!(
        "Wrote {} into {}.",
        files.map(|(name, _)| name).join(", "),
        visible(&directory.to_string_lossy())
    );
    println!("To report reads and writes, build with one of:");
    println!("  clang {CLANG_FLAGS} ... {}", object_in(directory));
    println!("  gcc {GCC_FLAGS} ... {}", object_in(directory));
    Ok(ExitCode::SUCCESS)
}

/// Flags for clang. Some versions, including clang 14, trace nothing unless a kind of coverage is
/// also named; `func` adds no code. clang would also link a sanitizer runtime, which is not used,
/// and which Debian has in a separate package (libclang-rt-14-dev).
const CLANG_FLAGS: &str =
    "-fsanitize-coverage=func,trace-loads,trace-stores -fno-sanitize-link-runtime";
/// Flags for gcc.
const GCC_FLAGS: &str = "-fsanitize=kernel-address --param asan-instrumentation-with-call-threshold=0 --param asan-stack=0 --param asan-globals=0";

fn object_in(directory: &Path) -> String {
    visible(&directory.join(OBJECT_NAME).to_string_lossy()).to_string()
}

/// Returns the file for pkg-config(1) about the object in this directory. The compiler flags are
/// variables, because they differ between compilers.
fn pkg_config(directory: &Path) -> String {
    // An unescaped space or quote in the directory name would end the word.
    let directory = directory.to_string_lossy();
    let mut quoted = String::new();
    for letter in directory.chars() {
        if letter.is_whitespace() || "\"'\\$#".contains(letter) {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    format!(
        "directory={quoted}\n\
         clang_flags={CLANG_FLAGS}\n\
         gcc_flags={GCC_FLAGS}\n\
         \n\
         Name: memhook-access\n\
         Description: Tells memhook-rs of the reads and writes of a program\n\
         Version: {}\n\
         Cflags: -I${{directory}}\n\
         Libs: ${{directory}}/{OBJECT_NAME}\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// Writes a file, unless it already has these contents.
fn write(path: &Path, contents: &[u8], replace: bool) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|old| old == contents) {
        return Ok(());
    }
    let output = OutputFile::create(path, replace)?;
    let written = output.file().write_all(contents);
    written
        .and_then(|()| output.keep())
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}
