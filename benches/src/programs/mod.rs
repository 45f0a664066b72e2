//! Programs of distributions under load, timed by their responses.
//!
//! Each program runs on the target's processor; its load generator shares the other processor with
//! the attacher.

mod compiler;
mod memcached;
mod nginx;
mod pump;
mod redis;
mod sqlite;
mod stockfish;

pub use compiler::compiler;

use crate::Subject;
use crate::processors::Placement;
use std::path::{Path, PathBuf};

/// A program of a distribution, with its workloads.
pub struct Program {
    /// Names of the workloads, in the order of a round's figures.
    pub works: &'static [&'static str],
    /// Number of cycles. Many short rounds spread other load of the machine evenly over all tools.
    pub cycles: usize,
    /// True if one process serves all rounds while tools attach and detach. False if each round
    /// starts a new process.
    pub stands: bool,
    /// Starts the program. The error names the missing package.
    pub start: fn(&Placement) -> Result<Box<dyn Subject>, String>,
}

/// redis-server, for comparisons with other tools.
pub const REDIS: Program = redis::PROGRAM;
/// sqlite3, for comparisons with other tools.
pub const SQLITE: Program = sqlite::PROGRAM;

/// All programs.
pub const PROGRAMS: &[Program] = &[
    redis::PROGRAM,
    memcached::PROGRAM,
    nginx::PROGRAM,
    sqlite::PROGRAM,
    stockfish::PROGRAM,
    compiler::PROGRAM,
];

/// Returns the path of an installed program; the error names the package.
pub fn find(name: &str, package: &str) -> Result<PathBuf, String> {
    ["/usr/bin", "/usr/sbin", "/usr/games", "/usr/local/bin"]
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| format!("{name} is not installed: apt-get install {package}"))
}
