//! Handling of events on the thread that drains the rings.

use super::queue::{EventQueue, Item, ROOM};
use super::record::{EventsEnd, Lost, Why};
use memhook_ledger::{BlockOf, Blocks, CountedSite, ReleaseBy};
use std::sync::Arc;

/// Puts events into a queue.
pub struct EventTap {
    queue: Arc<EventQueue>,
    pub(super) batch: Vec<Item>,
    /// Number of events dropped for lack of room since the last loss record.
    lost: Lost,
    /// Number of all records that found no room.
    lost_records: u64,
    /// Allocations and bytes that the ledger counted, and how many of them were reported as blocks.
    counted: (u64, u64),
    told: (u64, u64),
    time_ns: u64,
}

impl EventTap {
    /// Creates a tap that feeds this queue.
    pub fn new(queue: &Arc<EventQueue>) -> EventTap {
        EventTap {
            queue: Arc::clone(queue),
            batch: Vec::new(),
            lost: Lost::none(Why::Reader),
            lost_records: 0,
            counted: (0, 0),
            told: (0, 0),
            time_ns: 0,
        }
    }

    /// Returns the allocations, bytes and releases that a record represents.
    fn sums(item: &Item) -> (u64, u64, u64) {
        match item {
            Item::Alloc { block, .. } => (1, block.size, 0),
            Item::Free { .. } => (0, 0, 1),
            Item::Realloc { new, .. } => (1, new.size, 1),
            Item::Pairs { block, count, .. } => (*count, block.size.saturating_mul(*count), *count),
            Item::Lost(_) | Item::Gap { .. } => (0, 0, 0),
        }
    }

    /// Puts a release before the last event if that event is an allocation at the released address.
    /// The ledger reports the allocation first and then the block that it replaced, but for a
    /// reader, an address holds only one block at a time.
    fn goes_before_last(&mut self, free: Item) -> bool {
        let Item::Free {
            block: gone, by, ..
        } = free
        else {
            return false;
        };
        let Some(last) = self.batch.last_mut() else {
            return false;
        };
        match *last {
            Item::Alloc { block, stack }
            | Item::Realloc {
                new: block, stack, ..
            } if block == gone => {
                // The later block at this address is already known, so this block was released
                // immediately.
                let pair = Item::Pairs {
                    block,
                    stack,
                    count: 1,
                };
                if let Item::Realloc { old, new, .. } = *last {
                    *last = Item::Free {
                        block: old,
                        by: Some((new.thread, 0)),
                        time_ns: self.time_ns,
                    };
                    self.batch.push(pair);
                } else {
                    *last = pair;
                }
                true
            }
            Item::Alloc { block, .. } | Item::Realloc { new: block, .. }
                // If the releasing thread is known, its release happened after the allocation.
                if by.is_none() && block.address == gone.address =>
            {
                let at = self.batch.len() - 1;
                self.batch.insert(at, free);
                true
            }
            _ => false,
        }
    }

    fn push(&mut self, item: Item) {
        let (allocations, allocated_bytes, frees) = Self::sums(&item);
        self.told.0 += allocations;
        self.told.1 = self.told.1.saturating_add(allocated_bytes);
        if self.batch.len() >= ROOM {
            self.offer();
        }
        // After a loss, further events wait until the loss is reported.
        if self.batch.len() >= ROOM || !self.lost.is_none() && !self.tell_lost() {
            self.lost_records += 1;
            self.lost.add(&Lost {
                why: Why::Reader,
                records: 1,
                allocations,
                allocated_bytes,
                frees,
            });
            return;
        }
        self.batch.push(item);
    }

    /// Reports missing events if there is room. Returns false if there was no room.
    fn tell_lost(&mut self) -> bool {
        // With less room, a reader that takes one record at a time would see a loss in every second
        // record.
        if self.batch.len() > ROOM / 2 {
            return false;
        }
        self.batch.push(Item::Lost(self.lost));
        self.lost = Lost::none(Why::Reader);
        true
    }

    fn offer(&mut self) {
        self.queue.offer(&mut self.batch);
    }

    /// Ends the stream; `end` has the sums of the trace.
    pub fn finish(&mut self, mut end: EventsEnd) {
        self.note_untold();
        if !self.lost.is_none() {
            self.batch.push(Item::Lost(self.lost));
        }
        end.lost_records = self.lost_records;
        self.queue.finish(&self.batch, end);
        self.batch = Vec::new();
    }

    /// Reports allocations that the ledger has only counted.
    fn note_untold(&mut self) {
        let allocations = self.counted.0.saturating_sub(self.told.0);
        if allocations == 0 {
            return;
        }
        let allocated_bytes = self.counted.1.saturating_sub(self.told.1);
        self.told = self.counted;
        if self.batch.len() < ROOM {
            self.batch.push(Item::Lost(Lost {
                why: Why::Memory,
                records: allocations,
                allocations,
                allocated_bytes,
                frees: 0,
            }));
        }
    }
}

impl Blocks for EventTap {
    fn at(&mut self, time_ns: u64) {
        self.time_ns = time_ns;
    }

    fn counted(&mut self, _site: CountedSite, size: u64, count: u64) {
        self.counted.0 += count;
        self.counted.1 = self.counted.1.saturating_add(size.saturating_mul(count));
    }

    fn allocated(&mut self, block: &BlockOf, stack: u32) {
        let block = *block;
        self.push(Item::Alloc { block, stack });
    }

    fn released(&mut self, block: &BlockOf, _stack: u32, by: Option<ReleaseBy>) {
        let free = Item::Free {
            block: *block,
            by: by.map(|by| (by.thread, by.stack)),
            time_ns: self.time_ns,
        };
        if !self.lost.is_none() || !self.goes_before_last(free) {
            self.push(free);
        }
    }

    fn reallocated(&mut self, old: (&BlockOf, u32), _by: ReleaseBy, new: (&BlockOf, u32)) {
        let (old, (new, stack)) = (*old.0, (*new.0, new.1));
        self.push(Item::Realloc { old, new, stack });
    }

    fn pairs(&mut self, block: &BlockOf, stack: u32, _by: ReleaseBy, count: u64) {
        let block = *block;
        self.push(Item::Pairs {
            block,
            stack,
            count,
        });
    }

    fn end_pass(&mut self, _now_ns: u64) {
        self.note_untold();
        self.offer();
    }
}
