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
