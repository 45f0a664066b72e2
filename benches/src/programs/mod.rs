//! Programs of distributions under load, timed by what they answer.
//!
//! Each runs on the target's processor; its load generator shares the other one with the attacher.

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

/// A program and what it can be asked to do.
pub struct Program {
    /// Its works, in the order of a round's figures.
    pub works: &'static [&'static str],
    /// Rounds: many short ones, so that what else the machine does hits all alike.
    pub cycles: usize,
    /// Whether it is one process that tools come to and leave; otherwise each round is a process of its own.
    pub stands: bool,
    /// Starts it; the error says what is missing.
    pub start: fn(&Placement) -> Result<Box<dyn Subject>, String>,
}

/// redis-server, for comparisons with other tools.
pub const REDIS: Program = redis::PROGRAM;
/// sqlite3, likewise.
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

/// The path of an installed program.
pub fn find(name: &str, package: &str) -> Result<PathBuf, String> {
    ["/usr/bin", "/usr/sbin", "/usr/games", "/usr/local/bin"]
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| format!("{name} is not installed: apt-get install {package}"))
}
