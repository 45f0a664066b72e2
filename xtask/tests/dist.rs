//! Installs the packages of `cargo xtask dist` into empty roots, and runs them there.

// This crate provides `#[test]`, which lets a test pass if a required tool is not installed.
#[macro_use]
extern crate memhook_tests;

use memhook_tests::programs::{Folder, installed};
use memhook_tests::{binary, not_run};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Returns the standard output of a command, which must succeed.
fn output(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// Packs a release with these options into a directory. Returns the paths of the results.
fn pack(options: [&str; 2], to: &str) -> Vec<PathBuf> {
    let made = output(
        Command::new(env!("CARGO_BIN_EXE_memhook-xtask"))
            .arg("dist")
            .args(options)
            .args(["--to", to])
            .env("SOURCE_DATE_EPOCH", "1700000000"),
    );
    made.lines().map(PathBuf::from).collect()
}

/// Returns the file whose name has this ending.
fn ending<'a>(made: &'a [PathBuf], end: &str) -> &'a Path {
    let ends = |path: &&PathBuf| path.to_string_lossy().ends_with(end);
    let found: Vec<&PathBuf> = made.iter().filter(ends).collect();
    assert_eq!(found.len(), 1, "{end}: {made:?}");
    found[0]
}

fn unpack(archive: &Path, into: &str) {
    fs::create_dir_all(into).expect("writable");
    output(
        Command::new("tar")
            .arg("xf")
            .arg(archive)
            .args(["-C", into]),
    );
}

/// Runs the program in a chroot of the root into which it was installed.
fn runs_in(root: &str, program: &str) {
    let version = output(Command::new("chroot").args([root, program, "--version"]));
    assert_eq!(
        version,
        format!("memhook-rs {}\n", env!("CARGO_PKG_VERSION"))
    );
}

fn json(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&fs::read(path).expect("readable")).expect("JSON")
}

fn are_equal(made: &[PathBuf], again: &[PathBuf]) {
    assert_eq!(made.len(), again.len());
    for (first, second) in made.iter().zip(again) {
        let is_same = fs::read(first).expect("made") == fs::read(second).expect("made");
        assert!(is_same, "{} differs between two runs", first.display());
    }
}

/// Checks that the same commit gives the same bytes in any directory.
#[test]
#[ignore = "builds the command twice as a release; cargo xtask nightly runs it"]
fn builds_in_two_places_are_equal() {
    let folder = Folder::new("built-twice");
    let [first, second] = ["here", "some/where/else"].map(|place| {
        let sources = folder.path(place);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        output(
            Command::new("git")
                .args(["clone", "--quiet", "--depth=1"])
                .arg(format!(
                    "file://{}",
                    root.canonicalize().expect("there").display()
                ))
                .arg(&sources),
        );
        pack(["--sources", &sources], &format!("{sources}/packed"))
    });
    are_equal(&first, &second);
}

#[test]
fn packages_are_reproducible_and_run_in_empty_roots() {
    if !fs::read_to_string("/proc/self/status")
        .expect("our own")
        .contains("Uid:\t0\t0")
    {
        return not_run("chroot and dpkg --root need root");
    }
    let folder = Folder::new("dist");
    // The packed program has no debug information and only one symbol, which saves time for the
    // compression.
    let program = folder.path("memhook-rs");
    output(
        Command::new("objcopy")
            .args(["--strip-all", "--keep-symbol=main"])
            .arg(binary())
            .arg(&program),
    );

    let options = ["--binary", program.as_str()];
    let made = pack(options, &folder.path("first"));
    are_equal(&made, &pack(options, &folder.path("second")));
    output(
        Command::new("sha256sum")
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(folder.path("first")),
    );

    deb(ending(&made, "_amd64.deb"), &folder.path("deb"));
    rpm(ending(&made, ".x86_64.rpm"), &folder.path("rpm"));
    tarball(ending(&made, "linux.tar.gz"), &folder.path("tarball"));
    debug_information(
        ending(&made, "-debug.tar.gz"),
        &folder.path("debug"),
        &program,
    );
    image(ending(&made, ".oci.tar"), &folder.path("image"));
    bill_of_materials(&json(ending(&made, ".cdx.json")));
}

/// Installs a package into a root that contains only dpkg's own database.
fn deb(package: &Path, root: &str) {
    fs::create_dir_all(format!("{root}/var/lib/dpkg/updates")).expect("writable");
    fs::create_dir_all(format!("{root}/var/lib/dpkg/info")).expect("writable");
    fs::write(format!("{root}/var/lib/dpkg/status"), "").expect("writable");
    let dpkg = |words: &[&str]| {
        output(
            Command::new("dpkg")
                .arg(format!("--root={root}"))
                .args(words),
        )
    };
    let package = package.to_str().expect("UTF-8");
    dpkg(&["--force-not-root", "--install", package]);
    assert!(dpkg(&["--status", "memhook-rs"]).contains("Status: install ok installed"));
    runs_in(root, "/usr/bin/memhook-rs");
    for file in [
        "man/man1/memhook-rs-attach.1.gz",
        "bash-completion/completions/memhook-rs",
        "doc/memhook-rs/copyright",
    ] {
        let path = format!("{root}/usr/share/{file}");
        assert!(Path::new(&path).exists(), "{path}");
    }
    dpkg(&["--remove", "memhook-rs"]);
    assert!(!Path::new(&format!("{root}/usr/bin/memhook-rs")).exists());
}

fn rpm(package: &Path, root: &str) {
    let rpm = |words: &[&str]| {
        output(
            Command::new(installed("rpm"))
                .arg(format!("--root={root}"))
                .args(words),
        )
    };
    fs::create_dir_all(root).expect("writable");
    let package = package.to_str().expect("UTF-8");
    let checked = output(Command::new(installed("rpm")).args(["--checksig", "--verbose", package]));
    assert!(
        checked.contains("SHA256") && !checked.contains("BAD"),
        "{checked}"
    );
    // Debian's rpm expects this option for packages.
    rpm(&["--force-debian", "--install", package]);
    runs_in(root, "/usr/bin/memhook-rs");
    // Modes, sizes, digests, times and owners match the package.
    assert_eq!(rpm(&["--verify", "memhook-rs"]), "");
    assert!(
        rpm(&["--query", "--list", "memhook-rs"]).contains("/usr/share/man/man1/memhook-rs.1.gz")
    );
    rpm(&["--force-debian", "--erase", "memhook-rs"]);
    assert!(!Path::new(&format!("{root}/usr/bin/memhook-rs")).exists());
}

fn tarball(archive: &Path, root: &str) {
    unpack(archive, root);
    let directory = format!("memhook-rs-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    runs_in(root, &format!("/{directory}/bin/memhook-rs"));
    let packed = format!("{root}/{directory}/share/doc/memhook-rs/LICENSES-DEPENDENCIES.gz");
    let texts = output(Command::new("zcat").arg(packed));
    // C sources that a package bundles in a subdirectory.
    for part in [
        "ring 0.",
        "zstd/LICENSE",
        "Permission is hereby granted",
        "GNU C library",
    ] {
        assert!(texts.contains(part), "{part} is missing");
    }
}

fn debug_information(archive: &Path, root: &str, program: &str) {
    unpack(archive, root);
    let notes = output(Command::new("readelf").args(["--notes", program]));
    let id = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "));
    let (directory, rest) = id.expect("a build-id").split_at(2);
    let file = format!("{root}/usr/lib/debug/.build-id/{directory}/{rest}.debug");
    let symbols = output(Command::new("nm").arg(&file));
    assert!(symbols.contains("main"), "{file} has no symbols");
}

fn image(archive: &Path, directory: &str) {
    unpack(archive, directory);
    // Every blob matches its name.
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().expect("a digest");
        let digest = digest.strip_prefix("sha256:").expect("of SHA-256");
        let path = format!("{directory}/blobs/sha256/{digest}");
        let sum = output(Command::new("sha256sum").arg(&path));
        assert!(sum.starts_with(digest), "{path}: {sum}");
        let size = fs::metadata(&path).expect("there").len();
        assert_eq!(descriptor["size"], size, "{path}");
        path
    };
    assert_eq!(
        json(format!("{directory}/oci-layout"))["imageLayoutVersion"],
        "1.0.0"
    );
    let index = json(format!("{directory}/index.json"));
    let manifest = json(blob(&index["manifests"][0]));
    let config = json(blob(&manifest["config"]));
    let layer = blob(&manifest["layers"][0]);
    let plain = output(Command::new("sh").args(["-c", &format!("zcat {layer} | sha256sum")]));
    let plain = plain.split_whitespace().next().expect("a sum");
    assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{plain}"));

    let root = format!("{directory}/root");
    unpack(Path::new(&layer), &root);
    assert_eq!(
        fs::read_dir(&root).expect("unpacked").count(),
        1,
        "one file"
    );
    runs_in(
        &root,
        config["config"]["Entrypoint"][0].as_str().expect("a path"),
    );
}

fn bill_of_materials(bom: &Value) {
    assert_eq!(bom["metadata"]["component"]["name"], "memhook-cli");
    let components = bom["components"].as_array().expect("a list");
    let name_of = |component: &Value| component["name"].as_str().expect("a name").to_owned();
    let names: Vec<String> = components.iter().map(name_of).collect();
    assert!(names.contains(&"libc".to_owned()), "{names:?}");
    for unlinked in ["proptest", "cc", "criterion"] {
        assert!(
            !names.contains(&unlinked.to_owned()),
            "{unlinked} is not linked"
        );
    }
}
