//! Installs the packages that cargo packs in another place, outside this repository.

// This crate provides `#[test]`, which lets a test pass if a required tool is not installed.
#[macro_use]
extern crate memhook_tests;

use memhook_tests::programs::Folder;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is below the root")
}

/// Collects the files below a directory, with relative paths.
fn files_below(directory: &Path, prefix: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("readable");
        let path = prefix.join(entry.file_name());
        if entry.path().is_dir() {
            files_below(&entry.path(), &path, into);
        } else {
            into.push(path);
        }
    }
}

/// Checks that the library that embeds the hook builds it from sources in its own package.
#[test]
fn the_package_holds_the_hook() {
    let output = Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "-p", "memhook-attach"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let listed = String::from_utf8(output.stdout).expect("text");
    let listed: Vec<&Path> = listed.lines().map(Path::new).collect();
    let mut sources = Vec::new();
    files_below(
        &root().join("hook-cxx"),
        Path::new("hook-cxx"),
        &mut sources,
    );
    assert!(sources.len() > 20, "{sources:?}");
    for source in sources {
        assert!(
            listed.contains(&&*source),
            "{} is not packed",
            source.display()
        );
    }
    let recipe = fs::read_to_string(root().join("crates/attach/build.rs")).expect("readable");
    assert!(
        !recipe.contains("../"),
        "it builds something outside of its package"
    );
}

/// Applies the link rule of the command to a small program. Outside this repository, no
/// configuration requests static linking, and linkers search archives in different ways.
#[test]
fn the_command_is_linked_statically_without_configuration() {
    // rustc's current default linker, and its default before it shipped its own linker.
    for flags in ["", "-Clinker-features=-lld"] {
        let folder = Folder::new("static");
        let rule = root().join("crates/cli/build/static_linking.rs");
        fs::copy(rule, folder.path("static_linking.rs")).expect("copied");
        fs::write(
            folder.path("build.rs"),
            "mod static_linking; fn main() { static_linking::link_statically() }",
        )
        .expect("written");
        fs::write(
            folder.path("Cargo.toml"),
            "[package]\nname = \"linked\"\nedition = \"2024\"\n[workspace]\n\
             [[bin]]\nname = \"linked\"\npath = \"main.rs\"\n",
        )
        .expect("written");
        // A thread, a host name lookup and a float use more of libc than printing does.
        fs::write(
            folder.path("main.rs"),
            "use std::net::ToSocketAddrs;\n\
             fn main() {\n\
                 let found = || (\"127.0.0.1\", 1).to_socket_addrs().unwrap().count();\n\
                 let found = std::thread::spawn(found).join().unwrap();\n\
                 println!(\"{}\", (found as f64).sin() > 0.8);\n\
             }\n",
        )
        .expect("written");
        let output = Command::new(env!("CARGO"))
            .args(["run", "--offline"])
            .current_dir(folder.path(""))
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("CARGO_BUILD_TARGET")
            .env("RUSTFLAGS", flags)
            .output()
            .expect("cargo runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{flags}: {errors}");
        assert_eq!(output.stdout, b"true\n", "{flags}: {errors}");
        let headers = Command::new("readelf")
            .args(["--program-headers", "--dynamic"])
            .arg(folder.path("target/debug/linked"))
            .output()
            .expect("readelf belongs to binutils");
        let headers = String::from_utf8_lossy(&headers.stdout);
        assert!(headers.contains("LOAD"), "{headers}");
        for dynamic in ["INTERP", "(NEEDED)"] {
            assert!(!headers.contains(dynamic), "{flags}: {headers}");
        }
    }
}
