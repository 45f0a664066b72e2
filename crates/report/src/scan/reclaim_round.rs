//! Result of one round of reclaiming, as text and JSON.

use crate::units::{bytes, counted};
use crate::{Document, Style};
use memhook_heap::{Candidates, Released};
use serde::Serialize;

/// Name of the JSON schema.
const SCHEMA: &str = "memhook-rs/reclaim/1";

/// Result of one round.
#[derive(Serialize)]
pub struct ReclaimRound {
    /// Name of the schema.
    pub schema: &'static str,
    /// Process id.
    pub pid: i32,
    /// Number of the round; 1 is the first.
    pub round: u64,
    /// True if nothing was released. The figures are predictions in that case.
    pub dry_run: bool,
    /// Usable bytes of the blocks released.
    pub released_bytes: u64,
    /// Number of blocks released.
    pub released_blocks: u64,
    /// Leaked blocks that were kept. They are new, were written to since the previous scan, or are
    /// reachable from such a block.
    pub kept_blocks: u64,
    /// Number of blocks in the verdict that was passed to the round, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict_blocks: Option<u64>,
    /// Number of times that a thread was held to release blocks.
    pub holds: u64,
    /// Milliseconds of the longest of these holds.
    pub longest_hold_ms: f64,
    /// Method of the snapshot.
    pub snapshot_method: &'static str,
    /// How long all threads were held for the snapshot, in milliseconds.
    pub snapshot_held_ms: f64,
    /// Reason why nothing, or not everything, was released.
    pub refused: Option<String>,
}

impl ReclaimRound {
    /// Reports the expected effect of a round.
    pub fn dry(candidates: &Candidates, number: u64) -> ReclaimRound {
        let meta = &candidates.captured.snapshot.meta;
        let chosen = candidates.chosen.len();
        ReclaimRound {
            schema: SCHEMA,
            pid: meta.pid,
            round: number,
            dry_run: true,
            released_bytes: candidates.bytes(&candidates.chosen),
            released_blocks: chosen as u64,
            kept_blocks: (candidates.scan.leaks.len() - chosen) as u64,
            verdict_blocks: candidates.verdict_blocks.map(|blocks| blocks as u64),
            holds: 0,
            longest_hold_ms: candidates.asked.as_secs_f64() * 1e3,
            snapshot_method: meta.method.name(),
            snapshot_held_ms: meta.held_ms,
            refused: candidates.refused.as_ref().map(ToString::to_string),
        }
    }

    /// Reports the effect of a round.
    pub fn done(candidates: &Candidates, number: u64, done: &Released) -> ReclaimRound {
        let would = ReclaimRound::dry(candidates, number);
        let failed = done.failed.as_ref().map(ToString::to_string);
        ReclaimRound {
            dry_run: false,
            released_blocks: done.released.len() as u64,
            released_bytes: candidates.bytes(&done.released),
            holds: done.holds,
            longest_hold_ms: done.longest.max(candidates.asked).as_secs_f64() * 1e3,
            refused: would.refused.or(failed),
            ..would
        }
    }
}

impl Document for ReclaimRound {
    fn text(&self, _: Style) -> String {
        let verb = if self.dry_run {
            "would be released"
        } else {
            "released"
        };
        let mut out = format!(
            "Process {}: {} in {} {verb}",
            self.pid,
            bytes(self.released_bytes),
            counted(self.released_blocks, "block")
        );
        if let Some(blocks) = self.verdict_blocks {
            out += &format!(", of {blocks} in the verdict");
        }
        if self.holds > 0 {
            out += &format!(
                ", one thread held {} for at most {:.2} ms",
                counted(self.holds, "time"),
                self.longest_hold_ms
            );
        }
        out += &format!(
            " (snapshot by {}: all held {:.2} ms)",
            self.snapshot_method, self.snapshot_held_ms
        );
        if self.kept_blocks > 0 {
            let before = match self.verdict_blocks {
                Some(_) => "not in the verdict, changed since",
                None => "new, changed since the scan before",
            };
            out += &format!(
                "; {} leaked blocks kept: {before}, or in reach of such",
                self.kept_blocks
            );
        }
        if let Some(why) = &self.refused {
            out += &format!("; {why}");
        }
        if self.dry_run && self.released_blocks > 0 {
            out += "; nothing was done (--yes)";
        }
        out + "\n"
    }
}
