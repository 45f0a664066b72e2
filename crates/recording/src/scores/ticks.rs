//! Events between two ticks of the target's clock have equal times. This module spreads them evenly
//! over the tick.

use memhook_ledger::{BlockOf, ReleaseBy};

/// Maximum length of a tick. The clock advances about once a millisecond, unless its resolution is
/// higher.
pub(super) const LONGEST_TICK_NS: u64 = 1_000_000;
/// Number of collected events at which they are counted.
const MOST: usize = 1 << 16;

/// A report of the ledger about blocks.
#[derive(Clone, Copy)]
pub(super) enum Happening {
    Allocated(BlockOf, u32),
    Released(BlockOf, Option<ReleaseBy>),
    Pairs(BlockOf, u32, u64),
}

impl Happening {
    pub fn events(&self) -> u64 {
        match self {
            Happening::Pairs(_, _, count) => 2 * count,
            _ => 1,
        }
    }
}

/// Events with one time.
#[derive(Default)]
pub(super) struct Tick {
    time_ns: u64,
    /// Time at which the next events are placed, after earlier events with the time of this tick.
    next_ns: u64,
    happenings: Vec<Happening>,
}

impl Tick {
    /// Returns the time of the collected events.
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// Sets the time of the following events.
    pub fn begin(&mut self, time_ns: u64) {
        (self.time_ns, self.next_ns) = (time_ns, time_ns);
    }

    /// Forgets the collected events.
    pub fn clear(&mut self) {
        self.happenings.clear();
    }

    /// Adds an event. Returns true if the events must be spread now.
    #[inline]
    pub fn add(&mut self, happening: Happening) -> bool {
        self.happenings.push(happening);
        self.happenings.len() >= MOST
    }

    /// Takes the collected events. `next_ns` is the time of the next events.
    pub fn spread(&mut self, next_ns: u64) -> Spread {
        let happenings = std::mem::take(&mut self.happenings);
        let events: u64 = happenings.iter().map(Happening::events).sum();
        // Another ring begins with an earlier time.
        let length_ns = match next_ns.checked_sub(self.time_ns) {
            Some(length_ns) if length_ns > 0 => length_ns.min(LONGEST_TICK_NS),
            _ => LONGEST_TICK_NS,
        };
        let step_ns = (length_ns / events.max(1)).max(1);
        let first_ns = self.next_ns;
        self.next_ns = first_ns.saturating_add(events.saturating_mul(step_ns));
        Spread {
            happenings,
            first_ns,
            step_ns,
        }
    }

    /// Takes back the memory of spread events, for reuse.
    pub fn reuse(&mut self, mut spread: Spread) {
        spread.happenings.clear();
        self.happenings = spread.happenings;
    }
}

/// Events of a tick, one after the other.
pub(super) struct Spread {
    pub happenings: Vec<Happening>,
    /// Time of the first event.
    pub first_ns: u64,
    /// Distance between two events.
    pub step_ns: u64,
}
