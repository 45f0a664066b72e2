//! A recording between the creation of its file and the first event.

use super::{Args, Facts, Recorder, facts};
use crate::attach::Tracing;
use crate::consumer::Consumer;
use crate::session::Session;
use memhook_stream::Config;
use std::path::{Path, PathBuf};

/// A file that is there, of a run that has not begun.
pub struct Recording {
    path: PathBuf,
    recorder: Recorder,
    facts: Facts,
    /// It has replaced a file: nothing brings that back.
    replaced: bool,
}

/// What the options ask for.
pub struct Wish<'a> {
    pub options: &'a Args,
    pub tracing: &'a Tracing,
    /// Overwrite the file.
    pub force: bool,
    /// Say nothing about it.
    pub quiet: bool,
}

impl Recording {
    /// Creates the file. Before the target is touched: a disk that is full costs nothing then.
    pub fn create(
        wish: &Wish<'_>,
        pid: i32,
        config: &Config,
        path: &Path,
    ) -> anyhow::Result<Recording> {
        let meta = facts::meta(pid, wish.tracing, config);
        let replaced = path.exists();
        let recorder = wish.options.create(path, wish.force, wish.tracing, &meta)?;
        Ok(Recording {
            path: path.to_owned(),
            recorder,
            facts: Facts::new(path, meta, wish.quiet),
            replaced,
        })
    }

    /// The attach failed: takes the empty file away again.
    pub fn abandon(self) {
        drop(self.recorder);
        if !self.replaced {
            let _ = std::fs::remove_file(self.path);
        }
    }

    /// The run begins: hands the recorder to the drain thread.
    pub fn begin(self, session: &Session, consumer: &Consumer) -> Facts {
        let Recording {
            recorder,
            mut facts,
            ..
        } = self;
        consumer.lock().recorder = Some(recorder);
        facts.begin(session, consumer);
        facts
    }
}
