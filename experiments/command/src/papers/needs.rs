//! What an experiment cannot do without.

use memhook_measurements::programs::find;
use std::path::Path;

/// Something that not every machine has.
pub enum Need {
    /// User probes of the kernel and other users' processes.
    Root,
    /// A program, and the package that has it.
    Program(&'static str, &'static str),
    /// A file, and the package that has it.
    File(&'static str, &'static str),
    /// A program of PostgreSQL, which Debian keeps in a directory for each version.
    Postgresql,
    /// Two processors: one for the target, one for everything else.
    TwoProcessors,
}

impl Need {
    /// Why the experiment cannot run, in one line.
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

/// A program of the newest PostgreSQL that is installed.
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
