//! C++ names of real libraries, compared with c++filt.

use memhook_foreign::demangle_in_full;
use std::io::Write;
use std::process::{Command, Stdio};

fn output(command: &mut Command) -> String {
    let output = command.output().expect("part of every compiler's tools");
    String::from_utf8(output.stdout).unwrap()
}

/// Symbols as c++filt writes them.
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

/// But for spaces, and for one in a thousand.
#[test]
fn all_names_of_the_cxx_library_are_those_of_cxxfilt() {
    let library = output(Command::new("cc").arg("-print-file-name=libstdc++.so.6"));
    let listing =
        output(Command::new("nm").args(["-D", "--without-symbol-versions", library.trim()]));
    let names = listing
        .lines()
        .filter_map(|line| line.split(' ').next_back());
    let names: Vec<&str> = names.filter(|name| name.starts_with("_Z")).collect();
    assert!(names.len() > 3000, "{}", names.len());
    let expected = by_cxxfilt(&names.join("\n"));
    let plain = |name: &str| name.replace(' ', "");
    let different: Vec<_> = names
        .iter()
        .zip(expected.lines())
        .map(|(name, expected)| (demangle_in_full(name), expected))
        .filter(|(own, expected)| plain(own) != plain(expected))
        .collect();
    assert!(different.len() * 1000 < names.len(), "{different:#?}");
}
