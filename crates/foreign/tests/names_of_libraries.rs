//! C++ names of real libraries, compared with c++filt.

#[macro_use]
extern crate memhook_tests;

use memhook_foreign::demangle_in_full;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn output(command: &mut Command) -> String {
    let output = command.output().expect("part of every compiler's tools");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns symbols in the spelling of c++filt.
fn by_cxxfilt(symbols: &str) -> String {
    // `-i`: `std::string` stays short.
    let mut child = Command::new("c++filt")
        .arg("-i")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("part of every compiler's tools");
    let (mut input, symbols) = (child.stdin.take().unwrap(), symbols.to_owned());
    let writer = std::thread::spawn(move || input.write_all(symbols.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the dynamic symbols of a library that are C++ names. For other files, returns none.
fn names_of(library: &Path) -> Vec<String> {
    let mut nm = Command::new("nm");
    let listing = nm.args(["-D", "--without-symbol-versions"]).arg(library);
    let listing = listing.stderr(Stdio::null()).output().expect("binutils");
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    let names = listing
        .lines()
        .filter_map(|line| line.split(' ').next_back());
    names
        .filter(|name| name.starts_with("_Z"))
        .map(str::to_owned)
        .collect()
}

/// Compares, ignoring spaces, and allowing one difference in a thousand.
fn are_those_of_cxxfilt(names: &[String]) {
    let expected = by_cxxfilt(&names.join("\n"));
    let plain = |name: &str| name.replace(' ', "");
    let different: Vec<_> = names
        .iter()
        .zip(expected.lines())
        .map(|(name, expected)| (name, demangle_in_full(name), expected))
        .filter(|(_, own, expected)| plain(own) != plain(expected))
        .collect();
    println!("{} of {} names differ", different.len(), names.len());
    let shown = &different[..different.len().min(100)];
    assert!(
        different.len() * 1000 < names.len(),
        "{} of {}: {shown:#?}",
        different.len(),
        names.len()
    );
}

#[test]
fn all_names_of_the_cxx_library_are_those_of_cxxfilt() {
    let library = output(Command::new("cc").arg("-print-file-name=libstdc++.so.6"));
    let names = names_of(Path::new(library.trim()));
    assert!(names.len() > 3000, "{}", names.len());
    are_those_of_cxxfilt(&names);
}

/// The libraries of compilers contain the most difficult names. Other large libraries are tested if
/// they are installed.
#[test]
fn names_of_large_libraries_are_those_of_cxxfilt() {
    /// Size below which a file has few names or none.
    const LARGE: u64 = 1_000_000;
    /// Number above which names are sampled evenly.
    const MOST_NAMES: usize = 300_000;
    let own = output(Command::new("cc").arg("-print-file-name=libstdc++.so.6"));
    let beside = std::fs::read_dir("/usr/lib/x86_64-linux-gnu");
    let files = beside.into_iter().flatten().flatten();
    // Compilers keep their libraries elsewhere, and put links to them into this directory.
    let files = files.filter_map(|file| std::fs::canonicalize(file.path()).ok());
    let is_large = |path: &PathBuf| {
        let file = std::fs::metadata(path);
        file.is_ok_and(|file| file.is_file() && file.len() > LARGE)
            && path.to_string_lossy().contains(".so")
    };
    let mut libraries: BTreeSet<PathBuf> = files.filter(is_large).collect();
    libraries.remove(&std::fs::canonicalize(own.trim()).expect("the C++ library"));
    let mut names = BTreeSet::new();
    let mut compilers = Vec::new();
    for library in libraries {
        let found = names_of(&library);
        let file = library.file_name().unwrap_or_default().to_string_lossy();
        if found.len() > 10_000 && (file.starts_with("libLLVM") || file.starts_with("libclang-cpp"))
        {
            compilers.push(file.into_owned());
        }
        names.extend(found);
    }
    if compilers.len() < 2 {
        return memhook_tests::not_run(&format!(
            "libLLVM and libclang-cpp are not both installed (apt-get install clang): {compilers:?}"
        ));
    }
    let step = names.len().div_ceil(MOST_NAMES);
    let names: Vec<String> = names.into_iter().step_by(step).collect();
    are_those_of_cxxfilt(&names);
}
