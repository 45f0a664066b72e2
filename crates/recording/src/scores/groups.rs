//! Groups of the chunks of a site, built as events arrive. Their memory is proportional to the
//! number of live blocks.
//!
//! Events of different rings may arrive out of order, but are at most a few passes apart. So groups
//! stay open until no further allocation can belong to them, and a late allocation may merge two
//! groups.
//!
//! If `realloc` replaces a chunk with a larger chunk, that is a step of a chain and not an
//! iteration of a loop: chunks of a growing list are replaced soon after they were allocated, and
//! none can be reused. Only the next event of the releasing thread shows if a release was such a
//! step, so a release is processed in two parts.

use super::Loops;
use std::collections::BTreeMap;

/// Number of an open group.
pub(super) type GroupId = u32;

/// A group. It takes two cache lines, the second of which begins with `outgrown_lifetimes_ns`.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Group {
    first_ns: u64,
    last_ns: u64,
    end_ns: u64,
    lifetimes_ns: u128,
    chunks: u64,
    /// Number of blocks that were replaced by a larger one.
    outgrown: u64,
    outgrown_lifetimes_ns: u128,
    live: u64,
    /// Number of released chunks that may still turn out to be replaced.
    unsettled: u64,
    most_live: u64,
    /// Number of references to this group by its number, from chunks and from groups merged into
    /// it.
    references: u64,
    merged_into: Option<GroupId>,
    is_closed: bool,
}

const _: () = assert!(size_of::<Group>() == 128);

/// Finished groups of one site.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Finished {
    pub groups: u64,
    /// Sum of the groups' scores.
    pub scores: f64,
    pub lifetimes_ns: u128,
    pub loops: Loops,
}

/// Groups of one site that may still get allocations, ordered by the time of their first
/// allocation.
pub(super) type Open = BTreeMap<u64, GroupId>;

/// Open groups of all sites.
#[derive(Default)]
pub(super) struct Groups {
    /// Maximum distance between two allocations of one group.
    pub group_ns: u64,
    /// Maximum mean lifetime of chunks in a loop.
    pub longest_ns: u64,
    all: Vec<Group>,
    unused: Vec<GroupId>,
}

impl Groups {
    /// Creates an empty set of groups.
    pub fn new(group_ns: u64, longest_ns: u64) -> Groups {
        Groups {
            group_ns,
            longest_ns,
            ..Groups::default()
        }
    }

    /// Counts an allocated chunk. No allocation from before `horizon_ns` will follow.
    pub fn allocated(
        &mut self,
        open: &mut Open,
        finished: &mut Finished,
        time_ns: u64,
        horizon_ns: u64,
    ) -> GroupId {
        self.close(open, finished, horizon_ns);
        let before = open.range(..=time_ns).next_back();
        let before = before.map(|(_, &id)| id);
        let before =
            before.filter(|&id| time_ns <= self.of(id).last_ns.saturating_add(self.group_ns));
        let after = open.range(time_ns.saturating_add(1)..).next();
        let after = after.map(|(&first_ns, &id)| (first_ns, id));
        let after =
            after.filter(|(first_ns, _)| *first_ns <= time_ns.saturating_add(self.group_ns));
        let id = match (before, after) {
            (None, None) => {
                let id = self.new_group(time_ns);
                open.insert(time_ns, id);
                id
            }
            (Some(id), None) => id,
            (None, Some((first_ns, id))) => {
                open.remove(&first_ns);
                open.insert(time_ns, id);
                id
            }
            (Some(id), Some((first_ns, later))) => {
                open.remove(&first_ns);
                self.merge(id, later);
                id
            }
        };
        let group = self.of(id);
        group.first_ns = group.first_ns.min(time_ns);
        group.last_ns = group.last_ns.max(time_ns);
        group.chunks += 1;
        group.live += 1;
        group.most_live = group.most_live.max(group.live);
        group.references += 1;
        id
    }

    /// Prefetches a group, one of whose chunks is about to be released.
    pub fn ask_for(&self, id: GroupId) {
        let group = &self.all[id as usize];
        memhook_abi::prefetch(&group.first_ns);
        memhook_abi::prefetch(&group.outgrown_lifetimes_ns);
    }

    /// Counts a released chunk. [`Groups::settle`] must follow.
    pub fn released(&mut self, id: GroupId, lifetime_ns: u64, end_ns: u64) {
        let root = self.root(id);
        let group = self.of(root);
        group.lifetimes_ns += u128::from(lifetime_ns);
        group.end_ns = group.end_ns.max(end_ns);
        group.live -= 1;
        group.unsettled += 1;
    }

    /// Completes a release when it is known whether the chunk was replaced by a larger chunk. If
    /// so, `outgrown_ns` is its lifetime.
    pub fn settle(&mut self, id: GroupId, outgrown_ns: Option<u64>, finished: &mut Finished) {
        let root = self.root(id);
        let group = self.of(root);
        group.unsettled -= 1;
        if let Some(lifetime_ns) = outgrown_ns {
            group.outgrown += 1;
            group.outgrown_lifetimes_ns += u128::from(lifetime_ns);
        }
        self.forget(id);
        self.finish_if_over(root, finished);
    }

    /// Counts many chunks of a group that were allocated and released one after the other. The
    /// first chunk is not included.
    pub fn more_pairs(&mut self, id: GroupId, count: u64, lifetime_ns: u64, last_ns: u64) {
        let group = self.of(id);
        group.chunks += count;
        group.lifetimes_ns += u128::from(lifetime_ns) * u128::from(count);
        group.last_ns = group.last_ns.max(last_ns);
        group.end_ns = group.end_ns.max(last_ns + lifetime_ns);
    }

    /// Closes the groups of a site that can get no further allocation.
    pub fn close(&mut self, open: &mut Open, finished: &mut Finished, horizon_ns: u64) {
        while let Some((_, &id)) = open.first_key_value() {
            let until_ns = self.of(id).last_ns.saturating_add(self.group_ns);
            if until_ns >= horizon_ns {
                return;
            }
            open.pop_first();
            self.of(id).is_closed = true;
            self.finish_if_over(id, finished);
        }
    }

    /// Returns the group to which a number leads.
    fn root(&self, mut id: GroupId) -> GroupId {
        while let Some(into) = self.all[id as usize].merged_into {
            id = into;
        }
        id
    }

    fn of(&mut self, id: GroupId) -> &mut Group {
        &mut self.all[id as usize]
    }

    fn new_group(&mut self, time_ns: u64) -> GroupId {
        let group = Group {
            first_ns: time_ns,
            last_ns: time_ns,
            ..Group::default()
        };
        match self.unused.pop() {
            Some(id) => {
                self.all[id as usize] = group;
                id
            }
            None => {
                self.all.push(group);
                self.all.len() as GroupId - 1
            }
        }
    }

    fn merge(&mut self, into: GroupId, other: GroupId) {
        let merged = *self.of(other);
        self.of(other).merged_into = Some(into);
        let group = self.of(into);
        group.last_ns = group.last_ns.max(merged.last_ns);
        group.end_ns = group.end_ns.max(merged.end_ns);
        group.lifetimes_ns += merged.lifetimes_ns;
        group.chunks += merged.chunks;
        group.outgrown += merged.outgrown;
        group.outgrown_lifetimes_ns += merged.outgrown_lifetimes_ns;
        group.live += merged.live;
        group.unsettled += merged.unsettled;
        group.most_live = group.most_live.max(merged.most_live).max(group.live);
        group.references += 1;
        if merged.references == 0 {
            self.of(other).references = 1;
            self.forget(other);
        }
    }

    /// Drops a reference to this number.
    fn forget(&mut self, mut id: GroupId) {
        loop {
            let group = self.of(id);
            group.references -= 1;
            let (references, into) = (group.references, group.merged_into);
            match into {
                Some(into) if references == 0 => {
                    self.unused.push(id);
                    id = into;
                }
                _ => return,
            }
        }
    }

    fn finish_if_over(&mut self, id: GroupId, finished: &mut Finished) {
        let group = *self.of(id);
        if !group.is_closed || group.live > 0 || group.unsettled > 0 {
            return;
        }
        self.unused.push(id);
        let lasted_ns = (group.end_ns - group.first_ns).max(1);
        let mean_ns = group.lifetimes_ns as f64 / group.chunks as f64;
        let score = (mean_ns / lasted_ns as f64).min(1.0);
        finished.groups += 1;
        finished.scores += score;
        finished.lifetimes_ns += group.lifetimes_ns;
        let turns = group.chunks - group.outgrown;
        let turns_ns = group.lifetimes_ns - group.outgrown_lifetimes_ns;
        let is_loop = turns >= Loops::LEAST_CHUNKS
            && score <= Loops::HIGHEST_SCORE
            && turns_ns as f64 / turns as f64 <= self.longest_ns as f64;
        if is_loop {
            let loops = &mut finished.loops;
            loops.groups += 1;
            loops.chunks += turns;
            loops.lifetimes_ns += turns_ns;
            loops.most_live += group.most_live;
            loops.lasted_ns += u128::from(lasted_ns);
        }
    }
}
