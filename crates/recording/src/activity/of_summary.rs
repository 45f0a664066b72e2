//! The activity in a recording that holds sums of intervals.

use crate::activity::{Activity, HeapAt, SiteActivity, SiteChange};
use crate::{Error, Interval, Recording};
use memhook_ledger::Estimate;
use memhook_stream::Gap;
use rustc_hash::FxHashMap;

#[derive(Default)]
struct Sums {
    activity: Activity,
    index: FxHashMap<u32, u32>,
    /// Live sums at the interval end with the most live bytes.
    peak: Vec<Estimate>,
}

impl Sums {
    /// Adds memory that was live before to the first point.
    fn begin(&mut self) {
        let sites = self.activity.sites.iter().enumerate();
        let changes = sites.map(|(index, site)| SiteChange {
            point: 0,
            site: index as u32,
            live: site.live,
            allocated: Estimate::default(),
        });
        self.activity.changes.extend(changes);
    }

    /// Adds the activity of each site in the interval.
    fn add(&mut self, interval: &Interval, in_window: bool) {
        for of_site in &interval.sites {
            let sites = &mut self.activity.sites;
            let next = sites.len() as u32;
            let index = *self.index.entry(of_site.stack).or_insert(next);
            if index == next {
                sites.push(SiteActivity {
                    stack: of_site.stack,
                    oldest_ns: u64::MAX,
                    ..SiteActivity::default()
                });
            }
            let site = &mut sites[index as usize];
            let allocated = Estimate::exact(of_site.allocated_blocks, of_site.allocated_bytes);
            let released = Estimate::exact(of_site.released_blocks, of_site.released_bytes);
            site.live += allocated;
            site.live -= released;
            if !in_window {
                site.before = site.live;
                continue;
            }
            site.allocated += allocated;
            site.released += released;
            for &(bucket, blocks) in &of_site.sizes {
                match site.sizes.iter_mut().find(|(known, _)| *known == bucket) {
                    Some((_, sum)) => *sum += blocks as f64,
                    None => site.sizes.push((bucket, blocks as f64)),
                }
            }
            let change = SiteChange {
                point: self.activity.timeline.len() as u32,
                site: index,
                live: site.live,
                allocated: site.allocated,
            };
            self.activity.changes.push(change);
        }
    }

    fn end(&mut self, interval: &Interval) {
        let activity = &mut self.activity;
        let (now, before) = (&interval.totals, &activity.totals_before);
        activity.timeline.push(HeapAt {
            time_ns: interval.to_ns,
            live: Estimate::exact(now.live_blocks, now.live_bytes),
            allocated: Estimate::exact(
                now.allocations.saturating_sub(before.allocations),
                now.allocated_bytes.saturating_sub(before.allocated_bytes),
            ),
            temporary: Estimate::default(),
        });
        activity.totals = interval.totals;
        activity.to_ns = interval.to_ns;
        if now.live_bytes > activity.peak_bytes || self.peak.is_empty() {
            activity.peak_bytes = now.live_bytes;
            activity.peak_ns = interval.to_ns;
            self.peak = activity.sites.iter().map(|site| site.live).collect();
        }
    }
}

/// Returns the smaller of two exact amounts.
fn smaller(one: Estimate, other: Estimate) -> Estimate {
    Estimate {
        blocks: one.blocks.min(other.blocks),
        bytes: one.bytes.min(other.bytes),
        ..Estimate::default()
    }
}

impl Recording {
    /// Returns the activity of a recording of sums. It lacks temporary allocations, lifetimes,
    /// threads and exact sizes. The peak of the sites is the largest value at the end of an
    /// interval.
    pub(crate) fn summary_activity(
        &self,
        from_ns: Option<u64>,
        to_ns: Option<u64>,
    ) -> Result<Activity, Error> {
        let (from_ns, to_ns) = (from_ns.unwrap_or(0), to_ns.unwrap_or(u64::MAX));
        let mut sums = Sums::default();
        let end_ns = to_ns.min(self.span_ns().1);
        let unseen_before = Gap::unseen_before(self.gaps(), end_ns).unwrap_or(0);
        for interval in self.intervals() {
            let interval = interval?;
            // An interval belongs to the part that contains its middle.
            let middle_ns = interval.from_ns.midpoint(interval.to_ns);
            let in_window = middle_ns >= from_ns;
            if middle_ns >= to_ns {
                break;
            }
            if in_window && sums.activity.timeline.is_empty() {
                sums.activity.from_ns = interval.from_ns;
                sums.begin();
            }
            sums.add(&interval, in_window);
            if interval.from_ns < unseen_before {
                // Memory that was live before the gap may only seem to be live still, so all of it
                // counts as unseen.
                let sites = sums.activity.sites.iter_mut();
                sites.for_each(|site| site.unseen = site.live);
            }
            if in_window {
                sums.end(&interval)
            } else {
                sums.activity.totals_before = interval.totals
            }
        }
        let Sums {
            mut activity, peak, ..
        } = sums;
        if activity.timeline.is_empty() {
            let (start_ns, end_ns) = self.span_ns();
            return Err(Error::Window {
                from_ns,
                to_ns,
                start_ns,
                end_ns,
            });
        }
        for site in &mut activity.sites {
            site.unseen = smaller(site.unseen, site.live);
        }
        for (site, peak) in activity.sites.iter_mut().zip(peak) {
            site.peak = peak;
            site.sizes.sort_unstable_by_key(|(bucket, _)| *bucket);
        }
        activity.add_up();
        Ok(activity)
    }
}
