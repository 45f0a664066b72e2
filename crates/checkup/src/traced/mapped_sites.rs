//! Call stacks that mapped memory outside the heap since the attach.

use super::StackNames;
use memhook_attach::{Consumer, Session};
use memhook_heap::Residency;
use memhook_ledger::Observer;
use memhook_process::living_thread;
use memhook_report::MappedSite;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum number of call stacks that are kept.
const MOST: usize = 5;

/// Resident bytes of the mappings of call stacks.
pub struct MappedSites(Vec<(u32, u64)>);

impl MappedSites {
    /// Reads which of the traced mappings are in memory. Untouched address space does not count.
    /// Call this while the process is traced.
    pub fn take<O: Observer + Send>(pid: i32, consumer: &Consumer<O>) -> MappedSites {
        let mut ranges = Vec::new();
        if let Some(mappings) = &consumer.lock().mappings {
            ranges.extend(mappings.ranges());
        }
        let residency = match ranges.is_empty() {
            true => None,
            false => Residency::read(living_thread(pid)).ok(),
        };
        let pages = residency.map_or(Vec::new(), |residency| residency.pages);
        let mut of_stack: BTreeMap<u32, u64> = BTreeMap::new();
        for (range, stack) in ranges {
            let first = pages.partition_point(|run| run.end <= range.start);
            let here = pages[first..].iter();
            let here = here.take_while(|run| run.start < range.end);
            let bytes = here.map(|run| run.end.min(range.end) - run.start.max(range.start));
            *of_stack.entry(stack).or_default() += bytes.sum::<u64>();
        }
        let mut found: Vec<(u32, u64)> = of_stack.into_iter().collect();
        found.retain(|(_, bytes)| *bytes > 0);
        found.sort_by_key(|&(stack, bytes)| (Reverse(bytes), stack));
        found.truncate(MOST);
        MappedSites(found)
    }

    /// Returns the call stacks with their names.
    pub fn named(self, session: &Session, names: &mut impl StackNames) -> Vec<MappedSite> {
        names.look_up(session, &mut self.0.iter().map(|(stack, _)| *stack));
        let named = self.0.iter().map(|&(stack, resident_bytes)| MappedSite {
            resident_bytes,
            stack: names.stack(session, stack).2,
        });
        named.collect()
    }
}
