//! What changed between two reports.

use crate::sites::SiteSums;

/// The sums of all sites at one moment; 64 bytes a site.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// By the ledger's index of the site, which never changes.
    pub(crate) sites: Vec<SiteSums>,
}

/// What one site did between a snapshot and now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteGrowth {
    /// Stack id of the allocations.
    pub stack: u32,
    /// Blocks allocated.
    pub allocated_blocks: u64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Blocks released; negative if a failed `realloc` gave back more than were released.
    pub released_blocks: i64,
    /// Bytes released; negative if a failed `realloc` gave back more.
    pub released_bytes: i64,
}

impl SiteGrowth {
    pub(crate) fn between(then: Option<&SiteSums>, now: &SiteSums) -> Self {
        let zero = SiteSums::new(now.stack, now.level);
        let then = then.unwrap_or(&zero);
        Self {
            stack: now.stack,
            allocated_blocks: now.allocated_blocks - then.allocated_blocks,
            allocated_bytes: now.allocated_bytes - then.allocated_bytes,
            released_blocks: now.released_blocks as i64 - then.released_blocks as i64,
            released_bytes: now.released_bytes as i64 - then.released_bytes as i64,
        }
    }

    /// Change of the live blocks.
    pub fn blocks(&self) -> i64 {
        self.allocated_blocks as i64 - self.released_blocks
    }

    /// Change of the live bytes.
    pub fn bytes(&self) -> i64 {
        self.allocated_bytes as i64 - self.released_bytes
    }
}
