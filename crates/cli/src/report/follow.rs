//! `report --follow`: reports of a recording that is still being written, or comes through a pipe.

use super::target::open;
use anyhow::Context;
use memhook_foreign::{own_name, unnamed_file};
use memhook_recording::Recording;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two checks for the first complete chunk of a recording.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Source of the recording.
struct Source {
    path: PathBuf,
    /// Thread that copies the pipe into a file without a name.
    copier: Option<JoinHandle<std::io::Result<u64>>>,
    /// Channel that is closed when the pipe has ended.
    end: Option<Receiver<()>>,
}

impl Source {
    fn of(path: &Path) -> anyhow::Result<Source> {
        if path != Path::new("-") {
            return Ok(Source {
                path: path.to_owned(),
                copier: None,
                end: None,
            });
        }
        let mut file = unnamed_file().context("cannot keep what comes through standard input")?;
        let name = own_name(&file);
        let (alive, end) = channel::<()>();
        let copier = std::thread::Builder::new()
            .name("copier".into())
            .spawn(move || {
                let copied = std::io::copy(&mut std::io::stdin().lock(), &mut file);
                drop(alive);
                // The name is valid for as long as the file is open.
                std::mem::forget(file);
                copied
            })?;
        Ok(Source {
            path: name,
            copier: Some(copier),
            end: Some(end),
        })
    }

    /// Waits. Returns true if no more data will arrive.
    fn wait(&self, time: Duration) -> bool {
        match &self.end {
            Some(end) => end.recv_timeout(time) == Err(RecvTimeoutError::Disconnected),
            None => {
                std::thread::sleep(time);
                false
            }
        }
    }

    /// Returns the error that ended the pipe, if there is one.
    fn finish(self) -> anyhow::Result<()> {
        if let Some(copier) = self.copier {
            let copied = copier.join().ok().context("the copying failed")?;
            copied.context("cannot read standard input")?;
        }
        Ok(())
    }
}

/// Passes on the recording after each interval in which it grew, and once more at its end.
pub fn follow(
    path: &Path,
    interval: Duration,
    show: &mut dyn FnMut(Arc<Recording>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let source = Source::of(path)?;
    let mut shown = None;
    loop {
        let wait = if shown.is_some() {
            interval
        } else {
            FIRST_PAUSE
        };
        let has_all = source.wait(wait);
        let recording = match open(&source.path) {
            Ok(recording) => recording,
            // The first chunk may not have arrived yet.
            Err(_) if !has_all && shown.is_none() && may_come(&source.path) => continue,
            Err(error) => return Err(error),
        };
        let is_last = has_all || recording.end().is_some();
        let recording = Arc::new(recording);
        let seen = (recording.span_ns(), is_last);
        if shown != Some(seen) && (recording.span_ns().1 > 0 || is_last) {
            show(recording)?;
            shown = Some(seen);
        }
        if is_last {
            break;
        }
    }
    source.finish()
}

/// Returns true if the file exists but is empty or incomplete.
fn may_come(path: &Path) -> bool {
    const BEGIN: u64 = 64 << 10;
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() < BEGIN)
}
