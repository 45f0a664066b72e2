//! How much memory an attach may take; it gives everything back at the end.

use super::Session;
use crate::survey::memory_budget::budget_now;

impl Session {
    /// Adjusts the budget, because memory may have become scarce. Called now and then.
    pub fn look_at_memory(&self) {
        let budget = budget_now(&self.plan, self.region.memory_granted());
        self.region.set_budget(budget);
    }
}

impl Drop for Session {
    /// By now the gate is closed and everything has been read. Where it could not be closed, the hook
    /// goes on with what it finds: rings without an owner, in which it neither waits nor counts.
    fn drop(&mut self) {
        // The next attacher need not wait until this process has ended; the claim is given back after this.
        self.region.forget_attacher();
        self.region.give_all_back();
    }
}
