//! Files that a package installs, and their destinations.

use super::archive::{File, gzip};
use super::binary::Split;
use super::dependencies::Dependency;
use super::{licences, output, root};
use anyhow::Context;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Directories in which each shell looks for completions, below the prefix.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/memhook-rs"),
    (
        "fish",
        "usr/share/fish/vendor_completions.d/memhook-rs.fish",
    ),
    ("zsh", "usr/share/zsh/site-functions/_memhook-rs"),
];
const DOCUMENTS: &str = "usr/share/doc/memhook-rs";
/// Files of the agent: source and destination. The unit is installed but not enabled.
const FLEET: [(&str, &str); 12] = [
    (
        "fleet/systemd/memhook-rs-agent.service",
        "usr/lib/systemd/system/memhook-rs-agent.service",
    ),
    (
        "fleet/agent.toml.example",
        "usr/share/doc/memhook-rs/agent.toml.example",
    ),
    (
        "fleet/agent-1.schema.json",
        "usr/share/doc/memhook-rs/agent-1.schema.json",
    ),
    (
        "fleet/prometheus/memhook.rules.yml",
        "usr/share/doc/memhook-rs/fleet/memhook.rules.yml",
    ),
    (
        "fleet/grafana/memhook.json",
        "usr/share/doc/memhook-rs/fleet/grafana.json",
    ),
    (
        "fleet/kubernetes/kustomization.yaml",
        "usr/share/doc/memhook-rs/fleet/kubernetes/kustomization.yaml",
    ),
    (
        "fleet/kubernetes/serviceaccount.yaml",
        "usr/share/doc/memhook-rs/fleet/kubernetes/serviceaccount.yaml",
    ),
    (
        "fleet/kubernetes/rbac.yaml",
        "usr/share/doc/memhook-rs/fleet/kubernetes/rbac.yaml",
    ),
    (
        "fleet/kubernetes/configmap.yaml",
        "usr/share/doc/memhook-rs/fleet/kubernetes/configmap.yaml",
    ),
    (
        "fleet/kubernetes/networkpolicy.yaml",
        "usr/share/doc/memhook-rs/fleet/kubernetes/networkpolicy.yaml",
    ),
    (
        "fleet/kubernetes/daemonset.yaml",
        "usr/share/doc/memhook-rs/fleet/kubernetes/daemonset.yaml",
    ),
    ("docs/fleet.md", "usr/share/doc/memhook-rs/fleet.md"),
];

/// Returns all files of an installation, below `usr`.
pub fn files(binary: &[u8], dependencies: &[Dependency]) -> anyhow::Result<Vec<File>> {
    let work = Scratch::new()?;
    let program = work.0.join("memhook-rs");
    fs::write(&program, binary)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;

    let mut files = vec![File {
        path: "usr/bin/memhook-rs".to_owned(),
        mode: 0o755,
        bytes: binary.to_vec(),
    }];
    for (shell, path) in COMPLETIONS {
        let script = output(Command::new(&program).args(["completions", shell]))?;
        files.push(File::new(path, script));
    }
    let pages = work.0.join("man");
    output(Command::new(&program).arg("man").arg(&pages))?;
    for page in fs::read_dir(&pages)? {
        let page = page?;
        let name = page.file_name();
        let path = format!("usr/share/man/man1/{}.gz", name.display());
        files.push(File::new(path, gzip(&fs::read(page.path())?)?));
    }
    for document in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        let bytes = fs::read(root().join(document)).context(document)?;
        files.push(File::new(format!("{DOCUMENTS}/{document}"), bytes));
    }
    for (source, path) in FLEET {
        let bytes = fs::read(root().join(source)).context(source)?;
        files.push(File::new(path, bytes));
    }
    files.push(File::new(
        format!("{DOCUMENTS}/copyright"),
        licences::summary()?,
    ));
    let texts = licences::of_dependencies(dependencies)?;
    files.push(File::new(
        format!("{DOCUMENTS}/LICENSES-DEPENDENCIES.gz"),
        gzip(texts.as_bytes())?,
    ));
    Ok(files)
}

/// Returns the debug information as a file at the path where debuggers look for the build-id.
pub fn debug_file(binary: &Split) -> File {
    let (directory, rest) = binary.build_id.split_at(2);
    let path = format!("usr/lib/debug/.build-id/{directory}/{rest}.debug");
    File::new(path, binary.debug.clone())
}

/// Returns the same files, with one of their directories renamed.
pub fn renamed(files: &[File], from: &str, to: &str) -> Vec<File> {
    let moved = |file: &File| File {
        path: file.path.replacen(from, to, 1),
        ..file.clone()
    };
    files.iter().map(moved).collect()
}

/// Temporary directory of this process, removed on drop.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Scratch> {
        let name = format!("memhook-dist-{}", std::process::id());
        let path: &Path = &std::env::temp_dir().join(name);
        fs::create_dir(path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Scratch(path.to_owned()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
