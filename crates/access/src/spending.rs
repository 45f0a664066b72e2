//! Cost that watching imposes on the target, and a rule that keeps any five seconds within the
//! budget.
//!
//! A protected page costs its writer one fault, and an armed watchpoint one trap per thread. After
//! that, neither has any cost. So the possible further cost is bounded by the outstanding cost of
//! the protected pages and armed watchpoints. The rule is that the cost of the last five seconds
//! plus the outstanding cost never exceeds the budget of five seconds. Consider any five seconds
//! that end between this step and the next. Their cost either arose before this step, and is in the
//! sum of the last five seconds, or arose later, and was outstanding at this step.

use std::collections::VecDeque;

/// Length of the windows in which the budget holds.
pub const WINDOW_MS: u32 = 5000;

/// Spending, recent and total.
#[derive(Clone, Debug)]
pub struct Spending {
    share: f64,
    recent: VecDeque<(u32, f64)>,
    recent_ns: f64,
    total_ns: f64,
}

impl Spending {
    /// Creates an empty account. At most `share` of the time may be spent.
    pub fn within(share: f64) -> Spending {
        Spending {
            share,
            recent: VecDeque::new(),
            recent_ns: 0.0,
            total_ns: 0.0,
        }
    }

    /// Charges cost that is known now.
    pub fn spend(&mut self, now_ms: u32, ns: f64) {
        if ns > 0.0 {
            self.recent.push_back((now_ms, ns));
            self.recent_ns += ns;
            self.total_ns += ns;
        }
        self.forget(now_ms);
    }

    fn forget(&mut self, now_ms: u32) {
        while let Some(&(at, ns)) = self.recent.front()
            && now_ms.saturating_sub(at) >= WINDOW_MS
        {
            self.recent.pop_front();
            self.recent_ns -= ns;
        }
        if self.recent.is_empty() {
            self.recent_ns = 0.0;
        }
    }

    /// Returns the cost that may still become outstanding, in nanoseconds, given the outstanding
    /// cost.
    pub fn room_ns(&mut self, now_ms: u32, outstanding_ns: f64) -> f64 {
        self.forget(now_ms);
        (self.all_ns() - self.recent_ns - outstanding_ns).max(0.0)
    }

    /// Returns the budget of a window, in nanoseconds.
    pub fn all_ns(&self) -> f64 {
        f64::from(WINDOW_MS) * 1e6 * self.share
    }

    /// Returns the total spending, in nanoseconds.
    pub fn total_ns(&self) -> f64 {
        self.total_ns
    }
}
