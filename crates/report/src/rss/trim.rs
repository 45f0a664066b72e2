//! Predicted and actual effect of a trim, as text and JSON.

use crate::units::bytes;
use crate::{Document, Style};
use memhook_heap::{AllocatorStatistics, KnownAllocator, Trimmer};
use serde::Serialize;
use std::time::Duration;

/// Name of the JSON schema.
const SCHEMA: &str = "memhook-rs/trim/1";

/// One trim.
#[derive(Clone, Debug, Serialize)]
pub struct TrimReport {
    /// Name of the schema.
    pub schema: &'static str,
    /// Process id.
    pub pid: i32,
    /// The allocator that returns memory: glibc, jemalloc, tcmalloc or mimalloc.
    pub allocator: &'static str,
    /// The call that returns the memory.
    pub call: &'static str,
    /// True if nothing was done. The figures are then a prediction.
    pub dry_run: bool,
    /// Predicted bytes, if a prediction is possible.
    pub predicted_bytes: Option<u64>,
    /// Estimated milliseconds if a processor is otherwise idle. The call takes longer if threads
    /// compete for processors or locks.
    pub estimated_ms: f64,
    /// How long threads were held for the prediction, in milliseconds.
    pub snapshot_held_ms: f64,
    /// Resident bytes before the trim.
    pub rss_before_bytes: u64,
    /// Resident bytes after the trim, if it was done.
    pub rss_after_bytes: Option<u64>,
    /// How long one thread was held for the trim, in milliseconds.
    pub held_ms: Option<f64>,
    /// Milliseconds that the call took.
    pub call_ms: Option<f64>,
}

impl TrimReport {
    /// Reports the expected effect of a trim.
    pub fn dry(trimmer: &Trimmer) -> TrimReport {
        let meta = trimmer.meta();
        TrimReport {
            schema: SCHEMA,
            pid: meta.pid,
            allocator: "glibc",
            call: "malloc_trim()",
            dry_run: true,
            predicted_bytes: Some(trimmer.account.trim_bytes),
            estimated_ms: trimmer.estimate.as_secs_f64() * 1e3,
            snapshot_held_ms: meta.held_ms,
            rss_before_bytes: trimmer.account.memory.rss,
            rss_after_bytes: None,
            held_ms: None,
            call_ms: None,
        }
    }

    /// Describes the expected effect for another allocator. `said` contains the allocator's own
    /// figures, if available.
    pub fn dry_of(
        pid: i32,
        allocator: &KnownAllocator,
        said: Option<&AllocatorStatistics>,
        estimate: Duration,
        rss_bytes: u64,
    ) -> TrimReport {
        TrimReport {
            schema: SCHEMA,
            pid,
            allocator: allocator.name,
            call: allocator.release_name(),
            dry_run: true,
            predicted_bytes: said.map(|said| said.releasable_bytes),
            estimated_ms: estimate.as_secs_f64() * 1e3,
            snapshot_held_ms: said.map_or(0.0, |said| said.held.as_secs_f64() * 1e3),
            rss_before_bytes: rss_bytes,
            rss_after_bytes: None,
            held_ms: None,
            call_ms: None,
        }
    }

    /// Returns the result of the trim, which replaces the prediction.
    pub fn with(self, rss: (u64, u64), held: Duration, call: Duration) -> TrimReport {
        TrimReport {
            dry_run: false,
            rss_before_bytes: rss.0,
            rss_after_bytes: Some(rss.1),
            held_ms: Some(held.as_secs_f64() * 1e3),
            call_ms: Some(call.as_secs_f64() * 1e3),
            ..self
        }
    }
}

impl Document for TrimReport {
    fn text(&self, _: Style) -> String {
        let before = bytes(self.rss_before_bytes);
        let held = match self.allocator {
            "glibc" => "all threads",
            _ => "one thread",
        };
        let looked = match self.snapshot_held_ms {
            0.0 => String::new(),
            ms => format!(" ({held} held {ms:.2} ms to predict it)"),
        };
        let Some(after) = self.rss_after_bytes else {
            let predicted = match self.predicted_bytes {
                Some(predicted) => format!("would give back {}", bytes(predicted)),
                None => "may give something back (how much cannot be predicted)".to_owned(),
            };
            return format!(
                "Process {}: {before} resident; {} {predicted} in about {:.1} ms, longer on a busy machine{looked}; \
                 nothing was done\n",
                self.pid, self.call, self.estimated_ms
            );
        };
        let predicted = self
            .predicted_bytes
            .map_or("how much could not be predicted".to_owned(), |predicted| {
                format!("{} were predicted to come back", bytes(predicted))
            });
        format!(
            "Process {}: {before} resident before {}, {} after it ({predicted}); one thread held {:.2} ms, {:.2} ms of it in \
             the call{looked}\n",
            self.pid,
            self.call,
            bytes(after),
            self.held_ms.unwrap_or(0.0),
            self.call_ms.unwrap_or(0.0),
        )
    }
}
