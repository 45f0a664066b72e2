//! The largest sites over time.

use memhook_ledger::Estimate;
use memhook_recording::{Activity, SiteChange};
use rustc_hash::FxHashMap;

/// A stack at each point of the timeline.
pub(super) struct StackSeries {
    /// Stack id.
    pub stack: u32,
    pub live: Vec<Estimate>,
    pub allocated: Vec<Estimate>,
}

/// Live blocks, and allocations up to the same time.
type LiveAndAllocated = (Estimate, Estimate);

/// Sums of the stacks, updated with each change of a site.
struct Walk<'a> {
    activity: &'a Activity,
    of_site: Vec<LiveAndAllocated>,
    of_stack: FxHashMap<u32, LiveAndAllocated>,
}

impl<'a> Walk<'a> {
    fn new(activity: &'a Activity) -> Walk<'a> {
        Walk {
            activity,
            of_site: vec![LiveAndAllocated::default(); activity.sites.len()],
            of_stack: FxHashMap::default(),
        }
    }

    /// Applies a change; returns the stack and its live bytes.
    fn step(&mut self, change: &SiteChange) -> (u32, f64) {
        let site = &mut self.of_site[change.site as usize];
        let stack = self.activity.sites[change.site as usize].stack;
        let sum = self.of_stack.entry(stack).or_default();
        for (sum, old, new) in [
            (&mut sum.0, site.0, change.live),
            (&mut sum.1, site.1, change.allocated),
        ] {
            sum.blocks += new.blocks - old.blocks;
            sum.bytes += new.bytes - old.bytes;
        }
        *site = (change.live, change.allocated);
        (stack, sum.0.bytes)
    }
}

/// Returns the `count` stacks with the most bytes live at any time, largest first.
pub(super) fn largest_over_time(activity: &Activity, count: usize) -> Vec<StackSeries> {
    let mut walk = Walk::new(activity);
    let mut most: FxHashMap<u32, f64> = FxHashMap::default();
    for change in &activity.changes {
        let (stack, bytes) = walk.step(change);
        let most = most.entry(stack).or_default();
        *most = most.max(bytes);
    }
    let mut largest: Vec<(u32, f64)> = most.into_iter().collect();
    largest.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    largest.truncate(count);
    let mut walk = Walk::new(activity);
    let mut series: Vec<StackSeries> = largest
        .into_iter()
        .map(|(stack, _)| StackSeries {
            stack,
            live: Vec::with_capacity(activity.timeline.len()),
            allocated: Vec::with_capacity(activity.timeline.len()),
        })
        .collect();
    let mut changes = activity.changes.iter().peekable();
    for point in 0..activity.timeline.len() as u32 {
        while let Some(change) = changes.next_if(|change| change.point == point) {
            walk.step(change);
        }
        for one in &mut series {
            let (live, allocated) = walk.of_stack.get(&one.stack).copied().unwrap_or_default();
            one.live.push(live);
            one.allocated.push(allocated);
        }
    }
    series
}
