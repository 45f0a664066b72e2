//! Builds the projects, and keeps the builds for the next run.

use super::projects::{PRELUDE, Project};
use memhook_tests::debian_source;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Kind of build.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// Ordinary debug build.
    Plain,
    /// With AddressSanitizer, which includes LeakSanitizer.
    Sanitized,
}

impl Flavour {
    fn name(self) -> &'static str {
        match self {
            Flavour::Plain => "plain",
            Flavour::Sanitized => "sanitized",
        }
    }

    fn flags(self) -> &'static str {
        match self {
            Flavour::Plain => "-g -O1",
            Flavour::Sanitized => "-g -O1 -fsanitize=address",
        }
    }
}

/// Directory with all builds.
pub struct Builds {
    directory: PathBuf,
}

impl Builds {
    /// Uses this directory. Creates it if necessary.
    pub fn new(directory: PathBuf) -> Result<Builds, String> {
        let fail = |e: std::io::Error| format!("{}: {e}", directory.display());
        std::fs::create_dir_all(&directory).map_err(fail)?;
        let directory = directory.canonicalize().map_err(fail)?;
        Ok(Builds { directory })
    }

    /// Returns the path of a file next to the builds.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the directory of this build of the project. Builds it if necessary.
    pub fn of(&self, project: &Project, flavour: Flavour) -> Result<PathBuf, String> {
        let folder = self.directory.join(project.name);
        let place = folder.join(flavour.name());
        let done = place.with_extension("done");
        if done.exists() {
            return Ok(place);
        }
        eprintln!("{}: builds ({})", project.name, flavour.name());
        let fail = |e: std::io::Error| format!("{}: {e}", place.display());
        let source = debian_source(project.name)
            .ok_or_else(|| format!("the source of {} cannot be fetched", project.name))?;
        std::fs::create_dir_all(&folder).map_err(fail)?;
        if place.exists() {
            std::fs::remove_dir_all(&place).map_err(fail)?;
        }
        complete(Command::new("cp").arg("-a").arg(source).arg(&place))?;
        let log = place.with_extension("log");
        let out = File::create(&log).map_err(fail)?;
        let err = out.try_clone().map_err(fail)?;
        let flags = format!("{} -w", flavour.flags());
        let links = format!(
            "{} -Wl,{}",
            flavour.flags(),
            self.planted(flavour)?.display()
        );
        let status = Command::new("nice")
            .args(["sh", "-c", &format!("{PRELUDE}{}", project.build)])
            .current_dir(&place)
            .envs([("CC", "cc"), ("CXX", "c++"), ("LDFLAGS", &links)])
            .envs([("CFLAGS", &flags), ("CXXFLAGS", &flags)])
            // Some build scripts run programs that they have just built.
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .status();
        let status = status.map_err(|e| format!("nice: {e}"))?;
        if !status.success() {
            let log = log.display();
            return Err(format!("{} cannot be built: see {log}", project.name));
        }
        File::create(done).map_err(fail)?;
        Ok(place)
    }

    /// Returns the object file with the planted leak.
    fn planted(&self, flavour: Flavour) -> Result<PathBuf, String> {
        let source = self.file("planted.c");
        let object = self.file(&format!("planted-{}.o", flavour.name()));
        std::fs::write(&source, include_str!("planted.c")).map_err(|e| e.to_string())?;
        let flags = flavour.flags().split(' ');
        // The object is position-independent because it is also linked into libraries.
        complete(
            Command::new("cc")
                .args(flags)
                .args(["-fPIC", "-c", "-o"])
                .args([&object, &source]),
        )?;
        Ok(object)
    }
}

fn complete(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Returns the working directory of a build's tests.
pub fn directory_of_tests(build: &Path, project: &Project) -> PathBuf {
    build.join(project.directory)
}
