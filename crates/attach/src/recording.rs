//! A recording from the creation of its file to the first event.

pub(crate) mod run_facts;

use crate::config::TraceConfig;
use crate::drain::consumer::Consumer;
use crate::drain::recorder::Recorder;
use crate::drain::state::Memory;
use crate::error::Error;
use crate::session::Session;
use memhook_ledger::Observer;
use memhook_recording::{HEAP_NOTE, Options, Writer, path_of_heap, path_of_mappings};
use run_facts::{Facts, meta};
use std::path::{Path, PathBuf};

/// File of a run that has not begun.
pub struct Recording {
    path: PathBuf,
    recorder: Recorder,
    facts: Facts,
    /// True if the file replaced an earlier file, which is lost.
    has_replaced: bool,
    /// Recordings of other memory in the same run: mappings, heaps of described allocators.
    beside: Vec<Recording>,
}

impl Recording {
    /// Creates the file. This happens before the target is touched, so a full disk cannot affect the target.
    pub fn create(
        path: &Path,
        options: &Options,
        pid: i32,
        config: &TraceConfig,
    ) -> Result<Recording, Error> {
        let mut recording = Recording::of_memory(path, options, pid, config, Memory::Heap)?;
        let of_mappings = config
            .mappings
            .then(|| (path_of_mappings(path), Memory::Mappings));
        let names = config
            .allocators
            .iter()
            .map(|a| a.name.as_str())
            .enumerate();
        let of_heaps = names.map(|(n, name)| (path_of_heap(path, name), Memory::Described(n)));
        for (beside, memory) in of_mappings.into_iter().chain(of_heaps) {
            let is_taken = recording.beside.iter().any(|other| other.path == beside);
            let created = if is_taken {
                let name = beside.display();
                Err(Error::Refused(format!(
                    "two heaps would be recorded as {name}: rename one of them"
                )))
            } else {
                Recording::of_memory(&beside, options, pid, config, memory)
            };
            match created {
                Ok(created) => recording.beside.push(created),
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
            // Mappings are never sampled or filtered.
            meta.sample_bytes = 0;
            meta.flags = 0;
        }
        if let Memory::Described(heap) = memory {
            meta.notes.push(("memory".into(), "heap".into()));
            let name = config.allocators.get(heap).map(|a| a.name.clone());
            meta.notes
                .push((HEAP_NOTE.into(), name.unwrap_or_default()));
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
            beside: Vec::new(),
        })
    }

    /// Returns the path for another process or program of the same run. `other_process` is set unless it is the first
    /// process, and `program` is the number of the program that the process executes.
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

    /// Removes the empty file after a failed attach.
    pub fn abandon(self) {
        self.beside.into_iter().for_each(Recording::abandon);
        drop(self.recorder);
        if !self.has_replaced {
            let _ = std::fs::remove_file(self.path);
        }
    }

    /// Begins the run: passes its recorders to the drain thread.
    pub(crate) fn begin<O: Observer + Send>(
        self,
        session: &Session,
        consumer: &Consumer<O>,
    ) -> Vec<Facts> {
        let mut all = vec![(self.facts, self.recorder)];
        for beside in self.beside {
            if beside.facts.memory() == Memory::Mappings
                && let Some(ledger) = &mut consumer.lock().mappings
            {
                ledger.keep_changes();
            }
            all.push((beside.facts, beside.recorder));
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
