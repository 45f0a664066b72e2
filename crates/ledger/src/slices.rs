//! Walks over the live blocks in slices. Who keeps a ledger under a lock lets go of it between two of
//! them: a walk over millions of blocks takes longer than a thread of the target should wait for room in
//! its ring.
//!
//! Every block that lives from the beginning of a walk to its end is seen exactly once, because a block
//! stays in the segment of the table that its address belongs to. One that comes or goes meanwhile may be
//! seen or not.

use crate::live_map::Entry;
use crate::{Ledger, LiveBlock, Observer, Site, SiteLive};

/// Places of the table that one slice looks at; a single segment may have more.
const SLICE_PLACES: usize = 1 << 16;

/// How far a walk has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveWalk {
    next_segment: usize,
}

/// A walk that sums up what each site has live.
#[derive(Clone, Debug, Default)]
pub struct SiteWalk {
    walk: LiveWalk,
    older_than_ns: Option<u64>,
    has_begun: bool,
    /// By the dense index of the site, as of the first slice.
    sites: Vec<Site>,
}

impl SiteWalk {
    /// A walk over the blocks allocated before `older_than_ns` (nanoseconds since the attach), or over all.
    pub fn new(older_than_ns: Option<u64>) -> SiteWalk {
        SiteWalk {
            older_than_ns,
            ..SiteWalk::default()
        }
    }

    /// Every site that was ever seen, ordered by stack id; `bytes` and `blocks` are of the blocks walked over.
    pub fn into_sites(mut self) -> Vec<Site> {
        for site in &mut self.sites {
            if site.oldest_ns == u64::MAX {
                site.oldest_ns = 0;
            }
        }
        self.sites.sort_unstable_by_key(|site| site.stack);
        self.sites
    }

    /// The sites that have live blocks, ordered by stack id.
    pub fn into_live(self) -> Vec<SiteLive> {
        let sites = self.into_sites().into_iter();
        sites
            .filter(|site| site.blocks > 0)
            .map(|site| SiteLive {
                stack: site.stack,
                bytes: site.bytes,
                blocks: site.blocks,
                oldest_ns: site.oldest_ns,
            })
            .collect()
    }
}

impl<O: Observer> Ledger<O> {
    /// Hands the blocks of the next slice to `each`. Returns whether there are more slices.
    pub fn walk_blocks(&self, walk: &mut LiveWalk, mut each: impl FnMut(LiveBlock)) -> bool {
        self.walk(walk, |entry| each(self.live_block(entry)))
    }

    /// Takes the next slice. Returns whether there are more.
    ///
    /// Without an age, blocks and bytes of each site are those of one moment, that of the first slice.
    pub fn walk_sites(&self, walk: &mut SiteWalk) -> bool {
        let SiteWalk {
            walk: place,
            older_than_ns,
            has_begun,
            sites,
        } = walk;
        if !std::mem::replace(has_begun, true) {
            let counts_all = older_than_ns.is_none();
            sites.extend(self.sites.all().iter().map(|site| {
                let live = |now: u64, gone: u64| if counts_all { now - gone } else { 0 };
                Site {
                    stack: site.stack,
                    bytes: live(site.allocated_bytes, site.released_bytes),
                    blocks: live(site.allocated_blocks, site.released_blocks),
                    oldest_ns: u64::MAX,
                    allocated_blocks: site.allocated_blocks,
                    allocated_bytes: site.allocated_bytes,
                    released_blocks: site.released_blocks,
                    released_bytes: site.released_bytes,
                    min_size: site.min_size,
                    max_size: site.max_size,
                }
            }));
        }
        self.walk(place, |entry| {
            let time_ns = entry.time_ns();
            // A site that is younger than the walk is not in it.
            let Some(site) = sites.get_mut(entry.site() as usize) else {
                return;
            };
            match *older_than_ns {
                Some(limit) if time_ns >= limit => return,
                Some(_) => {
                    site.bytes += self.map.size_of(entry);
                    site.blocks += 1;
                }
                None => {}
            }
            site.oldest_ns = site.oldest_ns.min(time_ns);
        })
    }

    fn walk(&self, walk: &mut LiveWalk, mut each: impl FnMut(Entry)) -> bool {
        let mut places = 0;
        while places < SLICE_PLACES {
            let Some((segment_places, entries)) = self.map.live_of_segment(walk.next_segment)
            else {
                return false;
            };
            entries.for_each(&mut each);
            places += segment_places;
            walk.next_segment += 1;
        }
        walk.next_segment < self.map.segments()
    }
}
