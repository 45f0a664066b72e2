//! Progress of reading a recording, for users who wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Progress of one open recording, which any thread can read.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<State>);

#[derive(Debug, Default)]
struct State {
    position: AtomicU64,
    bytes: AtomicU64,
    is_read: AtomicBool,
}

impl Meter {
    /// Creates a meter for a file of this size.
    pub(crate) fn of(bytes: u64) -> Meter {
        let meter = Meter::default();
        meter.0.bytes.store(bytes, Relaxed);
        meter
    }

    /// Sets how many bytes of the file have been read.
    pub(crate) fn set(&self, position: u64) {
        self.0.position.store(position, Relaxed);
    }

    /// Records that the whole request has been read.
    pub(crate) fn end(&self) {
        self.0.is_read.store(true, Relaxed);
    }

    /// Returns the bytes read and the bytes of the file; `None` after the whole request has been
    /// read.
    pub fn position(&self) -> Option<(u64, u64)> {
        let State {
            position,
            bytes,
            is_read,
        } = &*self.0;
        (!is_read.load(Relaxed)).then(|| (position.load(Relaxed), bytes.load(Relaxed)))
    }
}
