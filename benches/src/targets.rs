//! Builds and starts the programs under `targets/`, and requests rounds from them.

use crate::Figure;
use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// Builds `targets/NAME.cc` with these flags, and returns the program's path.
pub fn build(name: &str, flags: &[&str]) -> PathBuf {
    build_as(name, name, &["-pthread"], flags)
}

/// Builds `targets/NAME.cc` into a shared library with another name.
pub fn build_library(name: &str, file: &str) -> PathBuf {
    build_as(name, file, &["-shared", "-fPIC"], &[])
}

fn build_as(name: &str, file: &str, base: &[&str], flags: &[&str]) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets");
    let source = sources.join(format!("{name}.cc"));
    let mut hasher = DefaultHasher::new();
    (base, flags).hash(&mut hasher);
    for file in [&source, &sources.join("measured.hpp")] {
        std::fs::read(file).expect("readable").hash(&mut hasher);
    }
    let folder = crate::output_folder().join("targets");
    std::fs::create_dir_all(&folder).expect("a folder for the targets");
    let path = folder.join(format!("{file}-{:016x}", hasher.finish()));
    if path.exists() {
        return path;
    }
    memhook_tests::compile(&source, base, flags, &path);
    path
}

/// A program that measures itself, waiting for the next request.
pub struct Measured {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Measured {
    /// Starts a program on the given processors, and waits until it is ready.
    pub fn start(program: &Path, args: &[&str], processors: &str) -> Measured {
        Self::run(
            Command::new("taskset")
                .args(["-c", processors])
                .arg(program)
                .args(args),
        )
    }

    /// Runs a command that ends by executing such a program.
    pub fn run(command: &mut Command) -> Measured {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let mut measured = Measured {
            input: child.stdin.take().expect("piped"),
            output: BufReader::new(child.stdout.take().expect("piped")),
            child,
        };
        // A tool that starts the program may print its own lines first.
        loop {
            let line = measured.line().expect("the program starts");
            if line == "ready" {
                return measured;
            }
        }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends one number.
    pub fn send(&mut self, number: f64) -> Result<(), String> {
        writeln!(self.input, "{number}").map_err(|e| format!("the target does not listen: {e}"))
    }

    /// Reads the figures of one answer.
    pub fn figures(&mut self) -> Result<Vec<f64>, String> {
        let line = self.line()?;
        let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        numbers.map_err(|_| format!("the target answers {line:?}"))
    }

    /// Requests a round from the program.
    pub fn round(&mut self, number: f64) -> Result<Vec<Figure>, String> {
        self.send(number)?;
        Ok(self.figures()?.into_iter().map(Figure::from).collect())
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) => Err("the target has ended".into()),
            Ok(_) => Ok(line.trim().to_owned()),
            Err(error) => Err(format!("the target: {error}")),
        }
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
