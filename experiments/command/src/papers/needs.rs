//! Requirements of an experiment.

use memhook_measurements::programs::find;
use std::path::Path;

/// Requirement that some machines do not meet.
pub enum Need {
    /// Root, for kernel user probes and processes of other users.
    Root,
    /// A program, and its package.
    Program(&'static str, &'static str),
    /// A file, and its package.
    File(&'static str, &'static str),
    /// A program of PostgreSQL. Debian installs each version in a separate directory.
    Postgresql,
    /// Two processors: one for the target, one for everything else.
    TwoProcessors,
}

impl Need {
    /// Returns in one line why the experiment cannot run, or `None` if the requirement is met.
    pub fn missing(&self) -> Option<String> {
        match self {
            Need::Root => (!is_root()).then(|| "it needs root, for user probes".to_owned()),
            Need::Program(name, package) => find(name, package).err(),
            Need::File(path, package) => (!Path::new(path).exists())
                .then(|| format!("{path} is missing: apt-get install {package}")),
            Need::Postgresql => postgresql("initdb").err(),
            Need::TwoProcessors => {
                let place = memhook_measurements::placement();
                (place.target == place.rest).then(|| "it needs two processors".to_owned())
            }
        }
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Returns a program of the newest installed PostgreSQL.
pub fn postgresql(name: &str) -> Result<std::path::PathBuf, String> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter();
    let mut found: Vec<_> = versions
        .flatten()
        .flatten()
        .map(|version| version.path().join("bin").join(name))
        .filter(|file| file.is_file())
        .collect();
    found.sort();
    found
        .pop()
        .ok_or_else(|| format!("{name} is not installed: apt-get install postgresql"))
}
