//! The tests of an independent C++ project, built with the flags of its distribution, with and
//! without a planted leak.

use memhook_tests::programs::Folder;
use memhook_tests::{binary, debian_source};
use std::path::Path;
use std::process::{Command, Output};

/// Output of `dpkg-buildflags --get CXXFLAGS` in Debian 12, and Debian's linker flags.
const DEBIAN_FLAGS: [&str; 7] = [
    "-g",
    "-O2",
    "-fstack-protector-strong",
    "-Wformat",
    "-Werror=format-security",
    "-Wdate-time",
    "-D_FORTIFY_SOURCE=2",
];

/// Builds the shared library and its test program as the package does.
fn build(folder: &Path) {
    let run = |args: &[&str]| {
        let status = Command::new("c++")
            .current_dir(folder)
            .args(DEBIAN_FLAGS)
            .arg(format!("-ffile-prefix-map={}=.", folder.display()))
            .args(args)
            .status();
        assert!(status.expect("a C++ compiler").success(), "{args:?}");
    };
    run(&[
        "-shared",
        "-fPIC",
        "-Wl,-z,relro",
        "tinyxml2.cpp",
        "-o",
        "libtinyxml2.so.9",
    ]);
    run(&[
        "xmltest.cpp",
        "libtinyxml2.so.9",
        "-Wl,-z,relro",
        "-Wl,-rpath,$ORIGIN",
        "-o",
        "xmltest",
    ]);
}

fn gate(folder: &Path) -> Output {
    Command::new(binary())
        .current_dir(folder)
        .args(["gate", "-o", "github", "--", "./xmltest"])
        .output()
        .expect("it runs")
}

#[test]
fn tinyxml2_passes_and_a_planted_leak_fails() {
    let folder = Folder::new("tinyxml2");
    let place = folder.path("project");
    let folder = Path::new(&place);
    let Some(source) = debian_source("tinyxml2") else {
        return;
    };
    let copied = Command::new("cp")
        .arg("-r")
        .arg(source)
        .arg(folder)
        .status();
    assert!(copied.expect("cp runs").success());
    build(folder);
    let clean = gate(folder);
    let text = String::from_utf8_lossy(&clean.stderr).into_owned();
    assert_eq!(clean.status.code(), Some(0), "{text}");
    assert!(text.ends_with("\nPASSED: no leaks\n"), "{text}");

    // Removes the code that releases a document's source text.
    let source = folder.join("tinyxml2.cpp");
    let code = std::fs::read_to_string(&source).expect("readable");
    let planted = code.replacen("delete [] _charBuffer;", "", 1);
    assert_ne!(planted, code);
    let line = 1 + code[..code
        .find("_charBuffer = new char[size+1];")
        .expect("LoadFile")]
        .matches('\n')
        .count();
    std::fs::write(&source, planted).expect("written");
    build(folder);
    let leaky = gate(folder);
    let text = String::from_utf8_lossy(&leaky.stderr).into_owned();
    assert_eq!(leaky.status.code(), Some(1), "{text}");
    assert!(text.contains("\nFAILED: "), "{text}");
    assert!(text.contains(&format!("tinyxml2.cpp:{line}")), "{text}");
    let notes = String::from_utf8_lossy(&leaky.stdout).into_owned();
    let annotation = format!("::error file=tinyxml2.cpp,line={line},");
    assert!(notes.lines().any(|l| l.starts_with(&annotation)), "{notes}");
}
