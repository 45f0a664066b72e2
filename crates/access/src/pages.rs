//! Determines the last write to each page by write protection.
//!
//! A page is either guarded (protected, and not written since) or open (written since it was
//! protected, or never protected). The time after which an open page is guarded again follows
//! Memcov's monitoring thresholds (Callanan et al., Model predictive control for memory profiling,
//! figure 3). A page that is written soon after it was guarded is left alone for longer the next
//! time, and other pages for a shorter time.

use std::ops::Range;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// The monitoring thresholds.
pub const THRESHOLDS_MS: [u32; 4] = [1000, 2000, 5000, 10_000];
/// Value of `written_ms` if no write is known.
const NEVER: u32 = u32::MAX;

/// One page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// For a guarded page, the time since which it is guarded. For an open page, the time at which
    /// to guard it again.
    pub at_ms: u32,
    /// Time at which the page was last found written.
    written_ms: u32,
    /// Index of the page's threshold.
    pub level: u8,
    /// True if the page is guarded.
    pub is_guarded: bool,
}

impl Page {
    fn new(now_ms: u32) -> Page {
        Page {
            at_ms: now_ms,
            written_ms: NEVER,
            level: 0,
            is_guarded: false,
        }
    }

    /// Records a write. The threshold is lowered by one level each time that it has passed without
    /// a write.
    fn written(&mut self, now_ms: u32) {
        let mut idle_ms = now_ms.saturating_sub(self.at_ms);
        if idle_ms <= THRESHOLDS_MS[usize::from(self.level)] {
            self.level = (self.level + 1).min(THRESHOLDS_MS.len() as u8 - 1);
        }
        while self.level > 0 && idle_ms > THRESHOLDS_MS[usize::from(self.level)] {
            idle_ms -= THRESHOLDS_MS[usize::from(self.level)];
            self.level -= 1;
        }
        self.is_guarded = false;
        self.written_ms = now_ms;
        self.at_ms = now_ms + THRESHOLDS_MS[usize::from(self.level)];
    }
}

/// Known writes to a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// No write was found since this moment.
    NoneSince(u32),
    /// A write was found at this moment, and only in pages of this range. The write happened at
    /// most one look earlier.
    At(u32),
    /// The pages are shared with other ranges that were written, or were not watched for long
    /// enough.
    Unknown,
}

#[derive(Clone, Debug)]
struct Area {
    start: u64,
    pages: Vec<Page>,
}

impl Area {
    fn end(&self) -> u64 {
        self.start + self.pages.len() as u64 * PAGE_BYTES
    }
}

/// Pages of the watched areas.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    areas: Vec<Area>,
    looked_ms: u32,
    guarded: usize,
}

impl Pages {
    /// Watches these sorted, disjoint areas. Knowledge about pages in them is kept.
    pub fn set_areas(&mut self, areas: &[Range<u64>], now_ms: u32) {
        let are_same = self.areas.len() == areas.len()
            && self
                .areas
                .iter()
                .zip(areas)
                .all(|(old, new)| (old.start, old.end()) == (new.start, new.end));
        if are_same {
            return;
        }
        let new = areas.iter().map(|range| {
            let count = (range.end - range.start) / PAGE_BYTES;
            let mut pages = vec![Page::new(now_ms); count as usize];
            let first = self.areas.partition_point(|old| old.end() <= range.start);
            for old in self.areas[first..]
                .iter()
                .take_while(|old| old.start < range.end)
            {
                let start = old.start.max(range.start);
                let length = ((old.end().min(range.end) - start) / PAGE_BYTES) as usize;
                let from = ((start - old.start) / PAGE_BYTES) as usize;
                let to = ((start - range.start) / PAGE_BYTES) as usize;
                pages[to..to + length].copy_from_slice(&old.pages[from..from + length]);
            }
            Area {
                start: range.start,
                pages,
            }
        });
        self.areas = new.collect();
        self.guarded = self.iter().filter(|(_, page)| page.is_guarded).count();
    }

    /// Returns the areas.
    pub fn areas(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.areas.iter().map(|area| area.start..area.end())
    }

    /// Iterates over all pages with their addresses.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Page)> {
        self.areas.iter().flat_map(|area| {
            let addresses = (area.start..).step_by(PAGE_BYTES as usize);
            addresses.zip(&area.pages)
        })
    }

    /// Returns the number of guarded pages.
    pub fn guarded(&self) -> usize {
        self.guarded
    }

    /// Returns the number of pages.
    pub fn len(&self) -> usize {
        self.areas.iter().map(|area| area.pages.len()).sum()
    }

    /// Returns true if there are no pages.
    pub fn is_empty(&self) -> bool {
        self.areas.is_empty()
    }

    fn each_of(&mut self, runs: &[Range<u64>], mut change: impl FnMut(&mut Page)) {
        for run in runs {
            let first = self.areas.partition_point(|area| area.end() <= run.start);
            for area in self.areas[first..].iter_mut() {
                if area.start >= run.end {
                    break;
                }
                let from = run.start.max(area.start) - area.start;
                let to = run.end.min(area.end()) - area.start;
                let range = (from / PAGE_BYTES) as usize..to.div_ceil(PAGE_BYTES) as usize;
                area.pages[range].iter_mut().for_each(&mut change);
            }
        }
    }

    /// Processes the result of a look. The pages of these runs are not protected, and all other
    /// pages still are. Returns the number of guarded pages that were written. Each of these writes
    /// cost a fault.
    pub fn looked(&mut self, runs: &[Range<u64>], now_ms: u32) -> usize {
        let mut faults = 0;
        self.each_of(runs, |page| {
            if page.is_guarded {
                faults += 1;
                page.written(now_ms);
            }
        });
        self.looked_ms = now_ms;
        self.guarded -= faults;
        faults
    }

    /// Records that the pages of these runs were protected.
    pub fn guard(&mut self, runs: &[Range<u64>], now_ms: u32) {
        let mut more = 0;
        self.each_of(runs, |page| {
            if !page.is_guarded {
                (page.is_guarded, page.at_ms) = (true, now_ms);
                more += 1;
            }
        });
        self.guarded += more;
    }

    /// Records that the protection of these runs was lifted, so that other pages may be guarded.
    pub fn lift(&mut self, runs: &[Range<u64>], now_ms: u32) {
        let mut less = 0;
        self.each_of(runs, |page| {
            if page.is_guarded {
                (page.is_guarded, page.at_ms) = (false, now_ms);
                less += 1;
            }
        });
        self.guarded -= less;
    }

    /// Returns the known writes to a range of memory within the last `older_ms`.
    pub fn writes(&self, range: Range<u64>, older_ms: u32) -> Writes {
        let index = self.areas.partition_point(|area| area.end() <= range.start);
        let Some(area) = self.areas.get(index) else {
            return Writes::Unknown;
        };
        if range.start < area.start || range.end > area.end() || range.is_empty() {
            return Writes::Unknown;
        }
        let offset = |address: u64| address - area.start;
        let first = (offset(range.start) / PAGE_BYTES) as usize;
        let last = offset(range.end).div_ceil(PAGE_BYTES) as usize;
        let pages = &area.pages[first..last];
        let horizon_ms = self.looked_ms.saturating_sub(older_ms);
        if pages.iter().all(|page| page.is_guarded) {
            let since = pages.iter().map(|page| page.at_ms).max().unwrap_or(0);
            if self.looked_ms.saturating_sub(since) >= older_ms {
                return Writes::NoneSince(since);
            }
        }
        // Only pages that belong entirely to this range count.
        let own_first = offset(range.start).div_ceil(PAGE_BYTES) as usize - first;
        let own_last = (offset(range.end) / PAGE_BYTES) as usize;
        let own = pages.get(own_first..own_last.saturating_sub(first));
        let written = own.unwrap_or_default().iter().map(|page| page.written_ms);
        match written.filter(|&ms| ms != NEVER).max() {
            Some(ms) if ms > horizon_ms => Writes::At(ms),
            _ => Writes::Unknown,
        }
    }

    /// Returns the last moment at which a range of memory may have been written, judged by its
    /// pages: all of them were guarded from then on. A page may be shared with other ranges.
    pub fn may_be_written(&self, range: Range<u64>) -> u32 {
        let index = self.areas.partition_point(|area| area.end() <= range.start);
        let area = self.areas.get(index);
        let area = area.filter(|area| area.start <= range.start && range.end <= area.end());
        let Some(area) = area.filter(|_| !range.is_empty()) else {
            return self.looked_ms;
        };
        let first = ((range.start - area.start) / PAGE_BYTES) as usize;
        let last = (range.end - area.start).div_ceil(PAGE_BYTES) as usize;
        let pages = area.pages[first..last].iter();
        let each = pages.map(|page| {
            if page.is_guarded {
                page.at_ms
            } else {
                self.looked_ms
            }
        });
        each.max().unwrap_or(self.looked_ms)
    }

    /// Returns the number of pages at each threshold.
    pub fn thresholds(&self) -> [u64; THRESHOLDS_MS.len()] {
        let mut counts = [0; THRESHOLDS_MS.len()];
        for (_, page) in self.iter() {
            counts[usize::from(page.level)] += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_looked_at_less_the_more_it_is_written() {
        let mut pages = Pages::default();
        let all = 0..4 * PAGE_BYTES;
        pages.set_areas(std::slice::from_ref(&all), 0);
        assert_eq!(pages.writes(0..8, 1000), Writes::Unknown);
        pages.guard(std::slice::from_ref(&all), 0);
        let hot = 0..PAGE_BYTES;
        let mut now = 0;
        for threshold in [2000, 5000, 10_000, 10_000] {
            now += 500;
            assert_eq!(pages.looked(std::slice::from_ref(&hot), now), 1);
            assert_eq!(pages.iter().next().unwrap().1.at_ms, now + threshold);
            now += threshold;
            assert_eq!(
                pages.looked(std::slice::from_ref(&hot), now),
                0,
                "open already"
            );
            pages.guard(std::slice::from_ref(&hot), now);
        }
        assert_eq!(pages.thresholds(), [3, 0, 0, 1]);
        // After a time without writes that exceeds every threshold, the page is back in its initial
        // state.
        pages.looked(std::slice::from_ref(&hot), now + 40_000);
        assert_eq!(pages.thresholds(), [4, 0, 0, 0]);
    }

    #[test]
    fn what_pages_tell_of_blocks() {
        let mut pages = Pages::default();
        pages.set_areas(&[0x10000..0x14000], 0);
        pages.guard(&[0x10000..0x14000], 1000);
        pages.looked(&[0x11000..0x12000], 6000);
        let writes = |range, older| pages.writes(range, older);
        assert_eq!(writes(0x10010..0x10020, 5000), Writes::NoneSince(1000));
        assert_eq!(writes(0x10010..0x10020, 5001), Writes::Unknown, "too early");
        assert_eq!(
            writes(0x11010..0x11020, 5000),
            Writes::Unknown,
            "a neighbour, perhaps"
        );
        assert_eq!(writes(0x11000..0x12000, 5000), Writes::At(6000));
        assert_eq!(writes(0x10ff0..0x12010, 5000), Writes::At(6000));
        assert_eq!(writes(0x11ff0..0x13010, 5000), Writes::Unknown);
        assert_eq!(
            writes(0x13ff0..0x14010, 5000),
            Writes::Unknown,
            "not all of it"
        );
        assert_eq!(writes(0xf000..0xf010, 5000), Writes::Unknown);
        let ranges = [0x10010..0x10020, 0x10010..0x11020, 0x13ff0..0x14010];
        let moments = ranges.map(|range| pages.may_be_written(range));
        assert_eq!(moments, [1000, 6000, 6000]);
    }

    #[test]
    fn areas_that_change_keep_what_is_known() {
        let mut pages = Pages::default();
        pages.set_areas(&[0x10000..0x14000], 0);
        pages.guard(&[0x10000..0x14000], 0);
        pages.set_areas(&[0x12000..0x16000], 1000);
        pages.looked(&[], 9000);
        assert_eq!(pages.guarded(), 2);
        assert_eq!(pages.writes(0x13000..0x13100, 9000), Writes::NoneSince(0));
        assert_eq!(pages.writes(0x14000..0x14100, 9000), Writes::Unknown);
        assert_eq!(pages.len(), 4);
        pages.lift(&[0x12000..0x13000], 9000);
        assert_eq!(pages.guarded(), 1);
        assert_eq!(pages.writes(0x12000..0x12100, 1000), Writes::Unknown);
    }
}
