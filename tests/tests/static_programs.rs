//! Programs whose allocator is linked into them: an attach refuses them, and `doctor` names the functions.

use memhook_tests::{Target, build_on_musl, build_target, run};
use std::path::Path;
use std::process::Command;

/// The addresses of functions in a file, by nm.
fn symbols(program: &Path, names: &[&str]) -> Vec<(String, u64)> {
    let output = Command::new("nm").arg(program).output().expect("nm");
    let text = String::from_utf8(output.stdout).expect("names");
    let mut found = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let [address, _, name] = words[..]
            && names.contains(&name)
        {
            let address = u64::from_str_radix(address, 16).expect("an address");
            found.push((name.to_owned(), address));
        }
    }
    found
}

fn names_functions(program: &Path, arguments: &[&str], functions: &[&str], owner: &str) {
    let mut target = Target::start(program, arguments);
    let pid = target.pid().to_string();
    let (code, out, _) = run(&["doctor", &pid]);
    assert_eq!(code, 2, "{out}");
    assert!(out.contains("statically linked"), "{out}");
    let planted = symbols(program, functions);
    assert_eq!(planted.len(), functions.len(), "{planted:?}");
    for (name, address) in planted {
        let begin = format!("{name} ({owner})");
        let line = out.lines().find(|line| line.starts_with(&begin));
        let line = line.unwrap_or_else(|| panic!("{name}: {out}"));
        assert!(line.contains(&format!("{address:#018x}")), "{line}");
        assert!(
            line.ends_with("not at all: calls of it use no slot"),
            "{line}"
        );
    }
    let (code, _, err) = run(&["attach", &pid]);
    assert_eq!((code, err.lines().count()), (2, 1), "{err}");
    assert!(err.contains("statically linked"), "{err}");
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}

#[test]
fn a_static_program_on_glibc() {
    let program = build_target("threads", &["-static", "-no-pie"]);
    let functions = ["malloc", "free", "calloc", "realloc"];
    names_functions(&program, &["16"], &functions, "glibc");
}

#[test]
fn a_static_program_on_musl() {
    let Some(program) = build_on_musl("on_musl", &["-static", "-no-pie"]) else {
        return;
    };
    let functions = ["malloc", "free", "calloc", "realloc"];
    names_functions(&program, &["16"], &functions, "musl");
}

/// Functions that a dynamic program reaches through slots.
#[test]
fn a_dynamic_program() {
    let mut target = Target::start(&build_target("threads", &[]), &["16"]);
    let (code, out, _) = run(&["doctor", &target.pid().to_string()]);
    assert_eq!(code, 0, "{out}");
    let line = out.lines().find(|line| line.starts_with("malloc (glibc)"));
    let line = line.unwrap_or_else(|| panic!("{out}"));
    assert!(
        line.contains("libc.so.6") && line.ends_with(" slots"),
        "{line}"
    );
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}
