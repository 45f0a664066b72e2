//! What a trim would give back, and what it gave back, as text and JSON.

use crate::units::bytes;
use crate::{Document, Style};
use memhook_heap::{Trimmed, Trimmer};
use serde::Serialize;

/// Name of the JSON schema.
const SCHEMA: &str = "memhook-rs/trim/1";

/// One trim.
#[derive(Clone, Debug, Serialize)]
pub struct TrimReport {
    /// Name of the schema.
    pub schema: &'static str,
    /// Process id.
    pub pid: i32,
    /// Nothing was done; the figures say what would come back.
    pub dry_run: bool,
    /// What a malloc_trim was predicted to give back.
    pub predicted_bytes: u64,
    /// What it was estimated to take, in ms.
    pub estimated_ms: f64,
    /// How long all threads were held to copy the memory, in ms.
    pub snapshot_held_ms: f64,
    /// Resident bytes before.
    pub rss_before_bytes: u64,
    /// Resident bytes after it, if it was done.
    pub rss_after_bytes: Option<u64>,
    /// How long one thread was held for it, in ms.
    pub held_ms: Option<f64>,
    /// How long the call of malloc_trim took, in ms.
    pub call_ms: Option<f64>,
}

impl TrimReport {
    /// What a trim would do.
    pub fn dry(trimmer: &Trimmer) -> TrimReport {
        let meta = trimmer.meta();
        TrimReport {
            schema: SCHEMA,
            pid: meta.pid,
            dry_run: true,
            predicted_bytes: trimmer.account.trim_bytes,
            estimated_ms: trimmer.estimate.as_secs_f64() * 1e3,
            snapshot_held_ms: meta.held_ms,
            rss_before_bytes: trimmer.account.memory.rss,
            rss_after_bytes: None,
            held_ms: None,
            call_ms: None,
        }
    }

    /// What it has done.
    pub fn done(trimmer: &Trimmer, done: &Trimmed) -> TrimReport {
        TrimReport {
            dry_run: false,
            rss_before_bytes: done.rss.0,
            rss_after_bytes: Some(done.rss.1),
            held_ms: Some(done.held.as_secs_f64() * 1e3),
            call_ms: Some(done.call.as_secs_f64() * 1e3),
            ..TrimReport::dry(trimmer)
        }
    }
}

impl Document for TrimReport {
    fn text(&self, _: Style) -> String {
        let before = bytes(self.rss_before_bytes);
        let predicted = bytes(self.predicted_bytes);
        let Some(after) = self.rss_after_bytes else {
            return format!(
                "Process {}: {before} resident; malloc_trim would give back {predicted} in about {:.1} ms (all threads \
                 held {:.2} ms to find out); nothing was done\n",
                self.pid, self.estimated_ms, self.snapshot_held_ms
            );
        };
        format!(
            "Process {}: {before} resident before malloc_trim, {} after it ({predicted} predicted); one thread held {:.2} \
             ms, {:.2} ms of it in the call (all threads held {:.2} ms to predict it)\n",
            self.pid,
            bytes(after),
            self.held_ms.unwrap_or(0.0),
            self.call_ms.unwrap_or(0.0),
            self.snapshot_held_ms
        )
    }
}
