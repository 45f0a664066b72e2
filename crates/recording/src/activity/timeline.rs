//! The heap over time, with the changes at each site, in bounded memory.

use crate::activity::{HeapAt, SiteChange};
use memhook_ledger::Estimate;
use rustc_hash::FxHashMap;

/// Maximum number of site changes (about 48 MB). Beyond it, every second point is dropped.
const MAX_CHANGES: usize = 1 << 20;

/// Points at equal time intervals, each at the end of a pass.
#[derive(Default)]
pub(crate) struct Timeline {
    points: Vec<HeapAt>,
    changes: Vec<SiteChange>,
    step_ns: u64,
    next_ns: u64,
    thinned: bool,
}

impl Timeline {
    /// Creates a timeline of a run from `from_ns` to `to_ns`, with up to about `points` points.
    pub fn new((from_ns, to_ns): (u64, u64), points: usize) -> Self {
        let step_ns = to_ns.saturating_sub(from_ns) / points.max(1) as u64;
        Self {
            step_ns: step_ns.max(1),
            ..Self::default()
        }
    }

    pub fn clear(&mut self) {
        self.points.clear();
        self.changes.clear();
        self.next_ns = 0;
    }

    /// Returns the number of points.
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// Returns the time of the last point.
    pub fn last_ns(&self) -> Option<u64> {
        self.points.last().map(|point| point.time_ns)
    }

    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    pub fn push(
        &mut self,
        time_ns: u64,
        live: Estimate,
        allocated: Estimate,
        temporary: Estimate,
        changed: impl Iterator<Item = (u32, Estimate, Estimate)>,
    ) {
        let point = self.points.len() as u32;
        self.points.push(HeapAt {
            time_ns,
            live,
            allocated,
            temporary,
        });
        self.changes
            .extend(changed.map(|(site, live, allocated)| SiteChange {
                point,
                site,
                live,
                allocated,
            }));
        // A recording may claim any time.
        let steps = (time_ns / self.step_ns).saturating_add(1);
        self.next_ns = steps.saturating_mul(self.step_ns);
        if self.changes.len() > MAX_CHANGES && self.points.len() > 2 {
            self.thin_out();
        }
    }

    /// Keeps every second point, including the last one.
    fn thin_out(&mut self) {
        self.thinned = true;
        self.step_ns = self.step_ns.saturating_mul(2);
        let parity = (self.points.len() + 1) % 2;
        let new_number = |point: u32| (point + 1 - parity as u32) / 2;
        let mut number = 0;
        self.points.retain(|_| {
            number += 1;
            (number - 1) % 2 == parity
        });
        let mut kept: Vec<SiteChange> = Vec::with_capacity(self.changes.len() / 2);
        let mut of_point: FxHashMap<u32, usize> = FxHashMap::default();
        let mut under_way = u32::MAX;
        for change in self.changes.drain(..) {
            let point = new_number(change.point);
            if point != under_way {
                under_way = point;
                of_point.clear();
            }
            let change = SiteChange { point, ..change };
            match of_point.get(&change.site) {
                Some(&at) => kept[at] = change,
                None => {
                    of_point.insert(change.site, kept.len());
                    kept.push(change);
                }
            }
        }
        self.changes = kept;
    }

    /// Returns true if points were renumbered since the last call.
    pub fn was_thinned(&mut self) -> bool {
        std::mem::take(&mut self.thinned)
    }

    pub fn finish(self) -> (Vec<HeapAt>, Vec<SiteChange>) {
        (self.points, self.changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thinned_timeline_keeps_the_last_state_of_each_site() {
        let amount = |n: u32| Estimate {
            blocks: f64::from(n),
            bytes: f64::from(n) * 16.0,
            ..Estimate::default()
        };
        for points in 3..9u32 {
            let mut timeline = Timeline::new((0, 100), 100);
            for i in 0..points {
                // Site 0 changes at every point, and site 1 at even ones.
                let changed = (0..=1).filter(|site| site * i % 2 == 0);
                let changed = changed.map(|site| (site, amount(i), amount(i)));
                timeline.push(u64::from(i), amount(i), amount(i), amount(0), changed);
            }
            timeline.thin_out();
            let (kept, changes) = timeline.finish();
            assert_eq!(kept.last().unwrap().time_ns, u64::from(points - 1));
            let mut state = [Estimate::default(); 2];
            let mut changes = changes.iter().peekable();
            for (number, point) in kept.iter().enumerate() {
                while let Some(change) = changes.next_if(|c| c.point as usize == number) {
                    state[change.site as usize] = change.live;
                }
                let time = point.time_ns as u32;
                assert_eq!(state[0], amount(time), "{points} points, at {time}");
                assert_eq!(state[1], amount(time / 2 * 2), "{points} points, at {time}");
            }
            assert!(changes.next().is_none());
        }
    }
}
