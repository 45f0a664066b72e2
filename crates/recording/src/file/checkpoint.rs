//! The live heap at one moment.
//!
//! The drain thread only makes a copy ([`Checkpoint::take`]). The writing thread sorts, encodes and
//! compresses it.

use crate::Error;
use crate::file::varint::{Cursor, put, zigzag};
use memhook_ledger::{Ledger, LiveBlock, Observer, SiteTotals, Totals};

/// Number of blocks in one chunk.
pub(crate) const PART_BLOCKS: usize = 1 << 18;

/// State of a ledger at the end of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub time_ns: u64,
    pub totals: Totals,
    /// Sums by site, sorted by stack.
    pub sites: Vec<SiteTotals>,
    /// Stack, blocks and bytes of releases; sorted by stack.
    pub release_sites: Vec<(u32, u64, u64)>,
    pub blocks: Vec<LiveBlock>,
}

impl Checkpoint {
    pub fn take(ledger: &Ledger<impl Observer>, time_ns: u64) -> Self {
        let totals = ledger.totals();
        let mut blocks = Vec::with_capacity(totals.live_blocks as usize);
        blocks.extend(ledger.live_blocks());
        Self {
            time_ns,
            totals,
            sites: ledger.sites(),
            release_sites: ledger.release_sites(),
            blocks,
        }
    }

    /// Replaces the stack ids of sites and blocks with those that `id_of` returns for a stack and a
    /// level.
    pub fn tell_samples(
        &mut self,
        ledger: &Ledger<impl Observer>,
        mut id_of: impl FnMut(u32, u8) -> u32,
    ) {
        self.sites = ledger.sites_by_sampling();
        for site in &mut self.sites {
            site.stack = id_of(site.stack, site.sampling);
        }
        self.sites.sort_unstable_by_key(|site| site.stack);
        for block in &mut self.blocks {
            block.stack = id_of(block.stack, block.sampling);
        }
    }

    /// Passes on the payloads of the chunks, with the number of blocks in each. The first payload
    /// contains the sums.
    pub fn write(&mut self, mut chunk: impl FnMut(Vec<u8>, usize)) {
        self.blocks.sort_unstable_by_key(|block| block.address);
        let parts = self.blocks.len().div_ceil(PART_BLOCKS).max(1);
        for part in 0..parts {
            let mut out = Vec::new();
            put(&mut out, part as u64);
            put(&mut out, parts as u64);
            if part == 0 {
                self.write_sums(&mut out);
            }
            let start = part * PART_BLOCKS;
            let end = self.blocks.len().min(start + PART_BLOCKS);
            write_blocks(&self.blocks[start..end], &mut out);
            chunk(out, end - start);
        }
    }

    fn write_sums(&self, out: &mut Vec<u8>) {
        write_totals(&self.totals, out);
        put(out, self.sites.len() as u64);
        let mut stack = 0;
        for site in &self.sites {
            put(out, zigzag(i64::from(site.stack) - i64::from(stack)));
            stack = site.stack;
            for value in [
                site.allocated_blocks,
                site.allocated_bytes,
                site.released_blocks,
                site.released_bytes,
                site.min_size,
                site.max_size,
                site.oldest_ns,
            ] {
                put(out, value);
            }
        }
        put(out, self.release_sites.len() as u64);
        for (stack, blocks, bytes) in &self.release_sites {
            put(out, u64::from(*stack));
            put(out, *blocks);
            put(out, *bytes);
        }
    }

    /// Reads one chunk into `self`. Returns true if more parts follow.
    pub fn read(&mut self, payload: &[u8], part: u64) -> Result<bool, Error> {
        let mut cursor = Cursor::new(payload);
        let (found, parts) = (cursor.varint()?, cursor.varint()?);
        if found != part || part >= parts {
            return Err(Error::damaged("the parts of a checkpoint are out of order"));
        }
        if part == 0 {
            self.read_sums(&mut cursor)?;
        }
        read_blocks(&mut cursor, &mut self.blocks)?;
        Ok(part + 1 < parts)
    }

    fn read_sums(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Error> {
        self.totals = read_totals(cursor)?;
        let mut stack = 0i64;
        for _ in 0..cursor.count(8)? {
            stack = stack.wrapping_add(cursor.signed()?);
            let mut site = SiteTotals {
                stack: u32::try_from(stack).map_err(|_| Error::damaged("a stack id"))?,
                sampling: 0,
                bytes: 0,
                blocks: 0,
                allocated_blocks: cursor.varint()?,
                allocated_bytes: cursor.varint()?,
                released_blocks: cursor.varint()?,
                released_bytes: cursor.varint()?,
                min_size: cursor.varint()?,
                max_size: cursor.varint()?,
                oldest_ns: cursor.varint()?,
            };
            let live = (
                site.allocated_blocks.checked_sub(site.released_blocks),
                site.allocated_bytes.checked_sub(site.released_bytes),
            );
            let (Some(blocks), Some(bytes)) = live else {
                return Err(Error::damaged("a site released more than it allocated"));
            };
            (site.blocks, site.bytes) = (blocks, bytes);
            self.sites.push(site);
        }
        for _ in 0..cursor.count(3)? {
            let stack = cursor.u32()?;
            let sums = (cursor.varint()?, cursor.varint()?);
            self.release_sites.push((stack, sums.0, sums.1));
        }
        Ok(())
    }
}

pub(crate) fn write_totals(totals: &Totals, out: &mut Vec<u8>) {
    for value in [
        totals.allocations,
        totals.releases,
        totals.allocated_bytes,
        totals.released_bytes,
        totals.live_bytes,
        totals.live_blocks,
        totals.unknown_releases,
        totals.unhooked_releases,
        totals.peak_live_bytes,
    ] {
        put(out, value);
    }
}

pub(crate) fn read_totals(cursor: &mut Cursor<'_>) -> Result<Totals, Error> {
    Ok(Totals {
        allocations: cursor.varint()?,
        releases: cursor.varint()?,
        allocated_bytes: cursor.varint()?,
        released_bytes: cursor.varint()?,
        live_bytes: cursor.varint()?,
        live_blocks: cursor.varint()?,
        unknown_releases: cursor.varint()?,
        unhooked_releases: cursor.varint()?,
        peak_live_bytes: cursor.varint()?,
    })
}

/// Writes five columns: address, stack, size, time, thread. Each value is the difference from the
/// previous block.
fn write_blocks(blocks: &[LiveBlock], out: &mut Vec<u8>) {
    put(out, blocks.len() as u64);
    let mut column = |value: &dyn Fn(&LiveBlock) -> u64| {
        let mut last = 0u64;
        for block in blocks {
            let next = value(block);
            put(out, zigzag(next.wrapping_sub(last) as i64));
            last = next;
        }
    };
    column(&|block| block.address >> 3);
    column(&|block| u64::from(block.stack));
    column(&|block| block.size);
    column(&|block| block.time_ns / 1_000_000);
    column(&|block| u64::from(block.tid));
}

fn read_blocks(cursor: &mut Cursor<'_>, blocks: &mut Vec<LiveBlock>) -> Result<(), Error> {
    let count = cursor.count(5)?;
    let start = blocks.len();
    let empty = LiveBlock {
        address: 0,
        size: 0,
        stack: 0,
        time_ns: 0,
        tid: 0,
        sampling: 0,
    };
    blocks.resize(start + count, empty);
    let blocks = &mut blocks[start..];
    let mut column = |store: &dyn Fn(&mut LiveBlock, u64)| -> Result<(), Error> {
        let mut last = 0u64;
        for block in &mut *blocks {
            last = last.wrapping_add(cursor.signed()? as u64);
            store(block, last);
        }
        Ok(())
    };
    column(&|block, value| block.address = value << 3)?;
    column(&|block, value| block.stack = value as u32)?;
    column(&|block, value| block.size = value)?;
    column(&|block, value| block.time_ns = value.saturating_mul(1_000_000))?;
    column(&|block, value| block.tid = value as u32)
}
