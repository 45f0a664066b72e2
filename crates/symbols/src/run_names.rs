//! Names shared by the symbolizers of one run.
//!
//! A test suite runs the same programs and libraries again and again, and for a process that ends
//! immediately, reading debug information takes longer than all other work. Files are identified by
//! their open descriptors, as in [`readers`](crate::readers).

use crate::readers::Identity;
use crate::{Frame, Source};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of addresses. When it is exceeded, all names are dropped.
const MOST_ADDRESSES: usize = 1 << 20;

/// Names by file, shared by all clones of this value.
#[derive(Clone, Debug, Default)]
pub struct RunNames(Arc<Mutex<HashMap<Identity, FileNames>>>);

/// Names in one file by svma.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileNames {
    pub source: Source,
    pub frames: HashMap<u64, Vec<Frame>>,
}

impl RunNames {
    /// Returns the number of addresses with names.
    pub fn count(&self) -> usize {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().map(|names| names.frames.len()).sum()
    }

    /// Returns the names known so far.
    pub(crate) fn of(&self, files: &Identity) -> FileNames {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(files).cloned().unwrap_or_default()
    }

    /// Adds names.
    pub(crate) fn keep(&self, files: &Identity, source: Source, frames: &[(u64, Vec<Frame>)]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses: usize = all.values().map(|names| names.frames.len()).sum();
        if addresses + frames.len() > MOST_ADDRESSES {
            all.clear();
        }
        let names = all.entry(*files).or_default();
        names.source = source;
        names.frames.extend(frames.iter().cloned());
    }
}
