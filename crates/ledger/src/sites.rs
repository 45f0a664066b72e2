//! Sums by stack id.

/// Everything that was ever allocated with one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Stack id.
    pub stack: u32,
    /// Live bytes.
    pub bytes: u64,
    /// Live blocks.
    pub blocks: u64,
    /// Bytes ever allocated.
    pub allocated_bytes: u64,
    /// Blocks ever allocated.
    pub allocated_blocks: u64,
}

/// Live blocks of a site that pass a filter on age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteLive {
    /// Stack id.
    pub stack: u32,
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// Allocation time of the oldest block, in ms since the attach.
    pub oldest_ms: u32,
}

/// Sites by stack id. Ids are granule numbers of the stack arena, so they are dense enough for a
/// direct index.
#[derive(Default)]
pub(crate) struct Sites {
    index: Vec<u32>,
    sites: Vec<Site>,
}

impl Sites {
    #[inline]
    pub fn of(&mut self, stack: u32) -> &mut Site {
        let at = stack as usize;
        if at >= self.index.len() {
            self.index.resize((at + 1).next_power_of_two(), 0);
        }
        if self.index[at] == 0 {
            self.sites.push(Site {
                stack,
                ..Site::default()
            });
            self.index[at] = self.sites.len() as u32;
        }
        &mut self.sites[self.index[at] as usize - 1]
    }

    pub fn all(&self) -> &[Site] {
        &self.sites
    }
}
