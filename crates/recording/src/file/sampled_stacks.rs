//! Stack ids of samples.
//!
//! If the sampling interval changes during a run, the weight of a block depends on the time of its
//! allocation. So samples have separate stack ids in a file, one for each call stack and interval.
//! `Stacks` chunks explain these ids. Everything that is stored by stack id, above all checkpoints,
//! then includes the interval.

use memhook_ledger::MOST_LEVELS;
use rustc_hash::FxHashMap;

/// Highest stack id, from which ids of samples count down. The target's own ids count up from 0
/// with the size of its stack table.
const HIGHEST: u32 = (1 << 26) - 1;

/// Ids of samples that a writer has assigned.
#[derive(Default)]
pub(crate) struct SampledStacks {
    /// Sampling level of the following allocations; 0 if they are not sampled.
    level: u8,
    by_stack: FxHashMap<(u32, u8), u32>,
    /// Stack and level of each assigned id, indexed by `HIGHEST` minus the id.
    given: Vec<(u32, u8)>,
    /// The target's highest id so far.
    highest_seen: u32,
}

impl SampledStacks {
    pub fn set_level(&mut self, level: u8) {
        self.level = level.min(MOST_LEVELS);
    }

    /// Returns true if the following allocations are samples.
    #[inline]
    pub fn are_next(&self) -> bool {
        self.level != 0
    }

    /// Returns the id for an allocation at the current level.
    pub fn id_now(&mut self, stack: u32) -> u32 {
        self.id_of(stack, self.level)
    }

    /// Returns the id for a stack whose blocks were sampled at this level.
    pub fn id_of(&mut self, stack: u32, level: u8) -> u32 {
        self.highest_seen = self.highest_seen.max(stack);
        if level == 0 {
            return stack;
        }
        if let Some(&id) = self.by_stack.get(&(stack, level)) {
            return id;
        }
        // One id without a stack is reserved for each level, so that no sample ever lacks its
        // weight.
        let kept_free = if stack == 0 {
            0
        } else {
            u32::from(MOST_LEVELS)
        };
        let next = HIGHEST - self.given.len() as u32;
        if next.saturating_sub(kept_free) <= self.highest_seen {
            return if stack == 0 {
                next
            } else {
                self.id_of(0, level)
            };
        }
        self.given.push((stack, level));
        self.by_stack.insert((stack, level), next);
        next
    }

    /// Returns the index of an assigned id.
    #[inline]
    pub fn index_of(&self, id: u32) -> Option<usize> {
        let index = HIGHEST.wrapping_sub(id) as usize;
        (index < self.given.len()).then_some(index)
    }

    /// Returns the stack and the level of an assigned id.
    pub fn of_id(&self, id: u32) -> Option<(u32, u8)> {
        Some(self.given[self.index_of(id)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stack_and_level_has_one_id() {
        let mut stacks = SampledStacks::default();
        assert_eq!((stacks.id_now(7), stacks.are_next()), (7, false));
        stacks.set_level(2);
        let (first, second) = (stacks.id_now(7), stacks.id_now(8));
        stacks.set_level(3);
        let third = stacks.id_now(7);
        assert!(first != second && first != third && second != third);
        assert_eq!(stacks.id_of(7, 2), first);
        assert_eq!(stacks.of_id(first), Some((7, 2)));
        assert_eq!(stacks.of_id(third), Some((7, 3)));
        assert_eq!(stacks.of_id(7), None);
    }

    /// If the target's table leaves no room, samples keep their weights but lose their stacks.
    #[test]
    fn without_room_samples_keep_their_level() {
        let mut stacks = SampledStacks::default();
        let last = HIGHEST - 40;
        stacks.id_of(last, 0);
        for stack in 1..100 {
            let level = 1 + (stack % 24) as u8;
            let id = stacks.id_of(stack, level);
            assert!(id > last);
            assert_eq!(stacks.of_id(id).map(|(_, level)| level), Some(level));
        }
    }
}
