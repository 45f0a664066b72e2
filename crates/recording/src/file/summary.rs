//! Sums of an interval, for recordings without events.

use crate::Error;
use crate::file::checkpoint::{read_totals, write_totals};
use crate::file::varint::{Cursor, put, zigzag};
use memhook_ledger::{Ledger, Observer, SiteTotals, Totals};
use rustc_hash::FxHashMap;

/// Number of buckets of a histogram. Bucket *n* counts sizes with *n* significant bits, that is, 0,
/// 1, 2..4, 4..8, ... bytes.
pub const HISTOGRAM_BUCKETS: usize = 65;

/// Activity of one allocation site in an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteInterval {
    /// Stack id.
    pub stack: u32,
    /// Blocks allocated.
    pub allocated_blocks: u64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Number of released blocks of this site.
    pub released_blocks: u64,
    /// Bytes of the released blocks.
    pub released_bytes: u64,
    /// Allocations by size: (bucket, blocks), sorted by bucket; see [`HISTOGRAM_BUCKETS`].
    pub sizes: Vec<(u8, u64)>,
}

/// An interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Start in nanoseconds since the attach.
    pub from_ns: u64,
    /// End in nanoseconds since the attach.
    pub to_ns: u64,
    /// Sums of the whole run up to the end of the interval.
    pub totals: Totals,
    /// Active sites, sorted by stack id.
    pub sites: Vec<SiteInterval>,
}

/// Builds intervals from a ledger's sums and the sizes of the events.
#[derive(Default)]
pub(crate) struct Summarizer {
    /// Number of blocks by stack id and bucket.
    sizes: FxHashMap<(u32, u8), u64>,
    /// Sums at the end of the last interval.
    last: FxHashMap<u32, SiteTotals>,
    from_ns: u64,
}

/// Returns the bucket of a size in bytes.
pub fn bucket_of(size: u64) -> u8 {
    (u64::BITS - size.leading_zeros()) as u8
}

impl Summarizer {
    #[inline]
    pub fn allocated(&mut self, stack: u32, size: u64) {
        *self.sizes.entry((stack, bucket_of(size))).or_default() += 1;
    }

    /// Returns the start of the current interval.
    pub fn began_ns(&self) -> u64 {
        self.from_ns
    }

    pub fn interval(&mut self, ledger: &Ledger<impl Observer>, now_ns: u64) -> Interval {
        let mut sites = Vec::new();
        for site in ledger.sites() {
            let last = self.last.insert(site.stack, site);
            let before = |field: fn(&SiteTotals) -> u64| last.as_ref().map_or(0, field);
            let delta = |field: fn(&SiteTotals) -> u64| field(&site).saturating_sub(before(field));
            let interval = SiteInterval {
                stack: site.stack,
                allocated_blocks: delta(|s| s.allocated_blocks),
                allocated_bytes: delta(|s| s.allocated_bytes),
                released_blocks: delta(|s| s.released_blocks),
                released_bytes: delta(|s| s.released_bytes),
                sizes: Vec::new(),
            };
            if interval.allocated_blocks > 0 || interval.released_blocks > 0 {
                sites.push(interval);
            }
        }
        for ((stack, bucket), blocks) in self.sizes.drain() {
            if let Ok(at) = sites.binary_search_by_key(&stack, |site| site.stack) {
                sites[at].sizes.push((bucket, blocks));
            }
        }
        for site in &mut sites {
            site.sizes.sort_unstable();
        }
        Interval {
            from_ns: std::mem::replace(&mut self.from_ns, now_ns),
            to_ns: now_ns,
            totals: ledger.totals(),
            sites,
        }
    }
}

impl Interval {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.from_ns);
        put(&mut out, self.to_ns);
        write_totals(&self.totals, &mut out);
        put(&mut out, self.sites.len() as u64);
        let mut stack = 0;
        for site in &self.sites {
            put(&mut out, zigzag(i64::from(site.stack) - i64::from(stack)));
            stack = site.stack;
            put(&mut out, site.allocated_blocks);
            put(&mut out, site.allocated_bytes);
            put(&mut out, site.released_blocks);
            put(&mut out, site.released_bytes);
            put(&mut out, site.sizes.len() as u64);
            for (bucket, blocks) in &site.sizes {
                out.push(*bucket);
                put(&mut out, *blocks);
            }
        }
        out
    }

    pub(crate) fn read(payload: &[u8]) -> Result<Self, Error> {
        let mut cursor = Cursor::new(payload);
        let mut interval = Interval {
            from_ns: cursor.varint()?,
            to_ns: cursor.varint()?,
            totals: read_totals(&mut cursor)?,
            sites: Vec::new(),
        };
        let mut stack = 0i64;
        for _ in 0..cursor.count(6)? {
            stack = stack.wrapping_add(cursor.signed()?);
            let mut site = SiteInterval {
                stack: u32::try_from(stack).map_err(|_| Error::damaged("a stack id"))?,
                allocated_blocks: cursor.varint()?,
                allocated_bytes: cursor.varint()?,
                released_blocks: cursor.varint()?,
                released_bytes: cursor.varint()?,
                sizes: Vec::new(),
            };
            for _ in 0..cursor.count(2)? {
                site.sizes.push((cursor.byte()?, cursor.varint()?));
            }
            interval.sites.push(site);
        }
        Ok(interval)
    }
}
