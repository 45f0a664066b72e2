//! A recording between the creation of its file and the first event.

use crate::config::TraceConfig;
use crate::consumer::Consumer;
use crate::error::Error;
use crate::recorder::Recorder;
use crate::run_facts::{Facts, meta};
use crate::session::Session;
use memhook_ledger::Observer;
use memhook_recording::{Options, Writer};
use std::path::{Path, PathBuf};

/// The file of a run that has not begun.
pub struct Recording {
    path: PathBuf,
    recorder: Recorder,
    facts: Facts,
    /// It has overwritten a file, which cannot be brought back.
    has_replaced: bool,
}

impl Recording {
    /// Creates the file. Do that before the target is touched: then a full disk costs nothing.
    pub fn create(
        path: &Path,
        options: &Options,
        pid: i32,
        config: &TraceConfig,
    ) -> Result<Recording, Error> {
        let meta = meta(pid, config);
        let has_replaced = path.exists();
        let writer = Writer::create(path, &meta, options).map_err(|error| match error {
            memhook_recording::Error::Output(error) => Error::Output(error),
            error => Error::Recording(error),
        })?;
        Ok(Recording {
            path: path.to_owned(),
            recorder: Recorder::new(writer),
            facts: Facts::new(path, meta),
            has_replaced,
        })
    }

    /// The file beside that of a run's first program: of another process than the first, if there is one, and of
    /// the `program`th program that it executes.
    pub fn path_of(first: &Path, other_process: Option<i32>, program: u32) -> PathBuf {
        let of_process = match other_process {
            Some(pid) => inserted(first, &pid.to_string()),
            None => first.to_owned(),
        };
        match program {
            1 => of_process,
            n => inserted(&of_process, &format!("exec{}", n - 1)),
        }
    }

    /// The attach failed: removes the empty file.
    pub fn abandon(self) {
        drop(self.recorder);
        if !self.has_replaced {
            let _ = std::fs::remove_file(self.path);
        }
    }

    /// The run begins: hands the recorder to the drain thread.
    pub(crate) fn begin<O: Observer + Send>(
        self,
        session: &Session,
        consumer: &Consumer<O>,
    ) -> Facts {
        let mut facts = self.facts;
        consumer.lock().recorder = Some(self.recorder);
        facts.begin(session, consumer);
        facts
    }
}

/// `run.mhk` and `17`: `run.17.mhk`.
fn inserted(path: &Path, word: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = match path.extension() {
        Some(extension) => format!("{stem}.{word}.{}", extension.to_string_lossy()),
        None => format!("{stem}.{word}"),
    };
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_a_file_of_its_own() {
        let path = |first, other, program| Recording::path_of(Path::new(first), other, program);
        assert_eq!(path("a/run.mhk", None, 1), Path::new("a/run.mhk"));
        assert_eq!(path("a/run.mhk", None, 3), Path::new("a/run.exec2.mhk"));
        let second = path("a/run.mhk", Some(17), 2);
        assert_eq!(second, Path::new("a/run.17.exec1.mhk"));
        assert_eq!(path("run", Some(17), 1), Path::new("run.17"));
    }
}
