//! Targets that run on the C libraries of other Debian releases, unpacked by
//! `cargo xtask debian-roots`.

use crate::building::{build_for, folder, source};
use crate::not_run_here;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable with the name of a release, for which all targets are then built.
const VARIABLE: &str = "MEMHOOK_TEST_RELEASE";
/// Names of the supported releases. The last two change over time.
const NAMES: [&str; 4] = ["bullseye", "trixie", "sid", "experimental"];

/// The C and C++ libraries of a Debian release.
#[derive(Clone, Debug)]
pub struct Release {
    /// Name of the release.
    pub name: String,
    root: PathBuf,
}

impl Release {
    /// Returns all installed releases.
    pub fn all() -> Vec<Release> {
        let found: Vec<Release> = NAMES
            .iter()
            .filter_map(|name| Release::named(name))
            .collect();
        if found.is_empty() {
            eprintln!("skipped: run cargo xtask debian-roots first");
        }
        found
    }

    /// Returns the release that the environment variable names.
    pub(crate) fn asked_for() -> Option<Release> {
        let name = std::env::var(VARIABLE).ok()?;
        let release = Release::named(&name);
        Some(release.unwrap_or_else(|| panic!("{name}: run cargo xtask debian-roots first")))
    }

    /// Returns the release with this name if it is installed.
    pub fn named(name: &str) -> Option<Release> {
        let roots = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/debian-roots");
        let root = roots.join(name).canonicalize().ok()?;
        Some(Release {
            name: name.to_owned(),
            root,
        })
    }

    /// Returns an unknown C library: this system's library with a different version number in its
    /// strings. The layout of its heap differs from the newest known version.
    pub fn unknown() -> Release {
        let root = folder().join("unknown");
        let directory = root.join("lib/x86_64-linux-gnu");
        let release = Release {
            name: "unknown".to_owned(),
            root,
        };
        let mut libc = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").expect("a C library");
        let words = b"stable release version 2.";
        let at = libc.windows(words.len()).position(|w| w == words);
        let digits = at.expect("a version") + words.len();
        libc[digits..digits + 2].copy_from_slice(b"99");
        std::fs::create_dir_all(&directory).expect("a directory in target/");
        std::fs::write(directory.join("libc.so.6"), libc).expect("written");
        release
    }

    fn directories(&self) -> [PathBuf; 2] {
        ["lib", "usr/lib"].map(|lib| self.root.join(lib).join("x86_64-linux-gnu"))
    }

    /// Returns N for glibc 2.N.
    pub fn glibc_minor(&self) -> u32 {
        let libc = |directory: &PathBuf| std::fs::read(directory.join("libc.so.6")).ok();
        let bytes = self
            .directories()
            .iter()
            .find_map(libc)
            .expect("a libc.so.6");
        let text = String::from_utf8_lossy(&bytes);
        let (_, version) = text
            .split_once("stable release version 2.")
            .expect("a version");
        let digits = version.split(|c: char| !c.is_ascii_digit()).next();
        digits.and_then(|n| n.parse().ok()).expect("a number")
    }

    /// Returns the path of a file in the release.
    pub fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    /// Returns the path of a library in the release. Prints a message on standard error if it is
    /// missing.
    pub fn library(&self, name: &str) -> Option<PathBuf> {
        let directories = self.directories();
        let found = directories.iter().map(|directory| directory.join(name));
        let library = found.into_iter().find(|library| library.exists());
        if library.is_none() {
            let name = format!("{name} of Debian {}", self.name);
            not_run_here(&format!(
                "{name} is not installed: run cargo xtask debian-roots"
            ));
        }
        library
    }

    /// Returns a command that starts a program of the release with its libraries.
    pub fn command(&self, program: &Path) -> Command {
        let directories = self.directories();
        let loaders = directories
            .each_ref()
            .map(|d| d.join("ld-linux-x86-64.so.2"));
        let loader = loaders.iter().find(|loader| loader.exists());
        let mut command = Command::new(loader.expect("a loader"));
        let [lib, usr] = directories.map(|directory| directory.display().to_string());
        command.arg("--library-path").arg(format!("{lib}:{usr}"));
        command.arg(program);
        command
    }

    /// Builds `tests/targets/NAME.cc` into a program for the loader of this release.
    pub fn build_target(&self, name: &str, flags: &[&str]) -> PathBuf {
        build_for(Some(self), name, flags)
    }

    /// Returns the flags with which the compiler builds a program for the release.
    pub fn flags(&self) -> Vec<String> {
        let [lib, usr] = self.directories();
        let loader = [&lib, &usr].map(|d| d.join("ld-linux-x86-64.so.2"));
        let here = PathBuf::from("/lib64/ld-linux-x86-64.so.2");
        let loader = loader.iter().find(|l| l.exists()).unwrap_or(&here);
        let mut flags = vec![
            format!("-Wl,--dynamic-linker={}", loader.display()),
            format!(
                "-Wl,--disable-new-dtags,-rpath={}:{}",
                lib.display(),
                usr.display()
            ),
        ];
        // An older release lacks newer versions of symbols, so the program is linked against its
        // libraries.
        if self.name == "bullseye" {
            let with = |before: &str, path: &Path| format!("{before}{}", path.display());
            flags.extend([
                with("--sysroot=", &self.root),
                with("-B", &usr),
                with("-Wl,-rpath-link,", &lib),
                "-isystem/usr/include/x86_64-linux-gnu".to_owned(),
                "-isystem/usr/include".to_owned(),
                with("-L", &lib),
                with("-L", &usr),
                with("", &source("before_glibc_2.32.cc")),
                // libstdc++ references libpthread only weakly, so the linker would drop the
                // library.
                "-Wl,--no-as-needed".to_owned(),
                with("", &lib.join("libpthread.so.0")),
                with("", &lib.join("libdl.so.2")),
                with("", &usr.join("libstdc++.so.6")),
            ]);
        }
        flags
    }
}
