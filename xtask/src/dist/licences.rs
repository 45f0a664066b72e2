//! Licence texts of everything that is linked into the binary.

use super::dependencies::Dependency;
use super::root;
use anyhow::Context;
use std::fs;
use std::path::{Path, PathBuf};

/// Prefixes of the names of licence files, in lower case.
const NAMES: [&str; 5] = ["licen", "copying", "copyright", "notice", "unlicense"];
/// Directory of texts for packages that are published without them, by the name of the package.
const KEPT: &str = "xtask/licences";
const SYSTEM: &str = "\
memhook-rs is linked statically with the Rust standard library (MIT OR Apache-2.0, The Rust
Project Developers), with the run-time library of GCC (GPL-3.0-or-later WITH GCC-exception-3.1),
and with the GNU C library (LGPL-2.1-or-later, Free Software Foundation). Its own sources and the
recipe to build it are public, so that anybody can link it with another version of these.
";

/// Returns the copyright file that Debian's policy requires (12.5). All packages use it.
pub fn summary() -> anyhow::Result<String> {
    let mit = fs::read_to_string(root().join("LICENSE-MIT")).context("LICENSE-MIT")?;
    Ok(format!(
        "memhook-rs may be used under the terms of the MIT licence, below, or of the Apache licence 2.0\n\
         (LICENSE-APACHE beside this file; /usr/share/common-licenses/Apache-2.0 on Debian), at your\n\
         choice. LICENSES-DEPENDENCIES.gz has the licences of all that it is linked with.\n\n{mit}"
    ))
}

/// Returns one text with a section for each package.
pub fn of_dependencies(dependencies: &[Dependency]) -> anyhow::Result<String> {
    let mut all = format!("{SYSTEM}\n");
    for dependency in dependencies.iter().filter(|dependency| !dependency.is_ours) {
        let Dependency {
            name,
            version,
            licence,
            directory,
            ..
        } = dependency;
        all += &format!("{}\n{name} {version}: {licence}\n", "=".repeat(100));
        let mut files = Vec::new();
        collect(directory, 0, &mut files)?;
        files.sort();
        let mut from = directory.clone();
        if files.is_empty() {
            from = root().join(KEPT);
            files.push(from.join(format!("{name}.txt")));
        }
        for file in files {
            let bytes = fs::read(&file).with_context(|| {
                format!(
                    "{name} {version} has no licence text ({licence}): {}",
                    file.display()
                )
            })?;
            let name = file.strip_prefix(&from).expect("below it");
            let text = String::from_utf8_lossy(&bytes);
            all += &format!("\n--- {}\n\n{}\n", name.display(), text.trim_end());
        }
        all.push('\n');
    }
    Ok(all)
}

/// Collects the licence files of a package, and of bundled sources in its subdirectories.
fn collect(directory: &Path, depth: u32, into: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        let is_licence = NAMES.iter().any(|begin| name.starts_with(begin));
        let kind = entry.file_type()?;
        if kind.is_file() && is_licence && !name.ends_with(".rs") {
            into.push(entry.path());
        } else if kind.is_dir() && (depth == 0 || is_licence) {
            collect(&entry.path(), depth + 1, into)?;
        }
    }
    Ok(())
}
