//! Packages of other Debian releases and architectures, unpacked into a directory without changing this system.

use std::path::{Path, PathBuf};
use std::process::Command;

/// An archive of packages, with its own directory for apt's state.
pub struct DebianPackages {
    state: PathBuf,
    options: Vec<String>,
}

impl DebianPackages {
    /// Fetches the package lists of these suites for an architecture (`amd64`, `arm64`). If there are several suites,
    /// the last takes precedence. `state` must be a new directory.
    ///
    /// # Errors
    /// Returns the command that failed, or a message that no Debian mirror is configured.
    pub fn new(state: &Path, suites: &[&str], processor: &str) -> Result<Self, String> {
        let failed = |e: std::io::Error| format!("{}: {e}", state.display());
        for folder in ["state/lists/partial", "cache/archives/partial", "debs"] {
            std::fs::create_dir_all(state.join(folder)).map_err(failed)?;
        }
        let state = state.canonicalize().map_err(failed)?;
        let sources = state.join("sources.list");
        let mirror = mirror()?;
        let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let line = |suite: &&str| format!("deb [signed-by={keys}] {mirror} {suite} main\n");
        let lines: String = suites.iter().map(line).collect();
        std::fs::write(&sources, lines).map_err(failed)?;
        let mut options = vec![
            format!("Dir::State={}", state.join("state").display()),
            format!("Dir::Cache={}", state.join("cache").display()),
            format!("Dir::Etc::sourcelist={}", sources.display()),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            "Dir::State::status=/dev/null".to_owned(),
            // Without this, apt warns that its own user cannot write there.
            "APT::Sandbox::User=root".to_owned(),
            format!("APT::Architecture={processor}"),
            format!("APT::Architectures={processor}"),
        ];
        let preferred = suites
            .last()
            .map(|suite| format!("APT::Default-Release={suite}"));
        options.extend(preferred);
        let packages = DebianPackages { state, options };
        complete(packages.apt("apt-get").arg("update"))?;
        Ok(packages)
    }

    /// Fetches packages and unpacks them.
    ///
    /// # Errors
    /// Returns the command that failed.
    pub fn unpack(&self, names: &[&str], into: &Path) -> Result<(), String> {
        let debs = self.state.join("debs");
        let failed = |e: std::io::Error| format!("{}: {e}", debs.display());
        complete(
            self.apt("apt-get")
                .arg("download")
                .args(names)
                .current_dir(&debs),
        )?;
        for package in std::fs::read_dir(&debs).map_err(failed)? {
            let package = package.map_err(failed)?.path();
            complete(Command::new("dpkg").arg("-x").arg(&package).arg(into))?;
            std::fs::remove_file(package).map_err(failed)?;
        }
        Ok(())
    }

    /// Returns the dependency of a metapackage.
    ///
    /// # Errors
    /// Returns the metapackage if it has no dependency.
    pub fn dependency_of(&self, name: &str) -> Result<String, String> {
        let output = self.apt("apt-cache").args(["depends", name]).output();
        let output = output.map_err(|e| format!("apt-cache: {e}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let found = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Depends: "));
        found
            .map(str::to_owned)
            .ok_or_else(|| format!("Debian has no package {name} for this processor"))
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command.arg("-qq");
        command
    }
}

/// Returns this system's Debian mirror (after `apt-get update`).
fn mirror() -> Result<String, String> {
    let output = Command::new("apt-get")
        .args([
            "indextargets",
            "--format",
            "$(REPO_URI) $(LABEL)",
            "Created-By: Packages",
        ])
        .output()
        .map_err(|e| format!("apt-get: {e}"))?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_suffix(" Debian").map(str::to_owned))
        .ok_or_else(|| "this system has no Debian mirror: needs Debian and apt-get update".into())
}

fn complete(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
