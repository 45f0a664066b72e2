//! A recording between the creation of its file and the first event.

use crate::config::TraceConfig;
use crate::consumer::{Consumer, Memory};
use crate::error::Error;
use crate::recorder::Recorder;
use crate::run_facts::{Facts, meta};
use crate::session::Session;
use memhook_ledger::Observer;
use memhook_recording::{Options, Writer, path_of_mappings};
use std::path::{Path, PathBuf};

/// The file of a run that has not begun.
pub struct Recording {
    path: PathBuf,
    recorder: Recorder,
    facts: Facts,
    /// It has overwritten a file, which cannot be brought back.
    has_replaced: bool,
    /// That of the mappings, if they are traced.
    mappings: Option<Box<Recording>>,
}

impl Recording {
    /// Creates the file. Do that before the target is touched: then a full disk costs nothing.
    pub fn create(
        path: &Path,
        options: &Options,
        pid: i32,
        config: &TraceConfig,
    ) -> Result<Recording, Error> {
        let mut recording = Recording::of_memory(path, options, pid, config, Memory::Heap)?;
        if config.mappings {
            let beside = path_of_mappings(path);
            match Recording::of_memory(&beside, options, pid, config, Memory::Mappings) {
                Ok(mappings) => recording.mappings = Some(Box::new(mappings)),
                Err(error) => {
                    recording.abandon();
                    return Err(error);
                }
            }
        }
        Ok(recording)
    }

    fn of_memory(
        path: &Path,
        options: &Options,
        pid: i32,
        config: &TraceConfig,
        memory: Memory,
    ) -> Result<Recording, Error> {
        let mut meta = meta(pid, config);
        if memory == Memory::Mappings {
            meta.notes.push(("memory".into(), "mappings".into()));
            // They are never sampled or filtered.
            meta.sample_bytes = 0;
            meta.flags = 0;
        }
        let has_replaced = path.exists();
        let writer = Writer::create(path, &meta, options).map_err(|error| match error {
            memhook_recording::Error::Output(error) => Error::Output(error),
            error => Error::Recording(error),
        })?;
        Ok(Recording {
            path: path.to_owned(),
            recorder: Recorder::new(writer),
            facts: Facts::new(path, meta, memory),
            has_replaced,
            mappings: None,
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
        if let Some(mappings) = self.mappings {
            mappings.abandon();
        }
        drop(self.recorder);
        if !self.has_replaced {
            let _ = std::fs::remove_file(self.path);
        }
    }

    /// The run begins: hands its recorders to the drain thread.
    pub(crate) fn begin<O: Observer + Send>(
        self,
        session: &Session,
        consumer: &Consumer<O>,
    ) -> Vec<Facts> {
        let mut all = vec![(self.facts, self.recorder)];
        if let Some(mappings) = self.mappings {
            all.push((mappings.facts, mappings.recorder));
            if let Some(ledger) = &mut consumer.lock().mappings {
                ledger.keep_changes();
            }
        }
        let begin = |(mut facts, recorder): (Facts, Recorder)| {
            *consumer.lock().recorder_of(facts.memory()) = Some(recorder);
            facts.begin(session, consumer);
            facts
        };
        all.into_iter().map(begin).collect()
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
