//! A ledger that may be divided. A single thread feeds it before the division, and several threads
//! after it.

use memhook_abi::Event;
use memhook_ledger::{Ledger, Router};

pub struct Fed {
    pub ledger: Ledger,
    routers: Vec<Router>,
    /// Router of the ring whose events follow.
    current: usize,
    passes: usize,
}

#[allow(dead_code)] // Not every test calls all of it.
impl Fed {
    pub fn new(ledger: Ledger) -> Fed {
        Fed {
            ledger,
            routers: Vec::new(),
            current: 0,
            passes: 0,
        }
    }

    /// Divides the ledger. Returns true if that was possible.
    pub fn divide(&mut self, shards: usize) -> bool {
        self.routers = self.ledger.divide(shards).unwrap_or_default();
        !self.routers.is_empty()
    }

    pub fn is_divided(&self) -> bool {
        !self.routers.is_empty()
    }

    pub fn begin_ring(&mut self, ring: usize, tid: u32) {
        if self.routers.is_empty() {
            return self.ledger.begin_ring(ring, tid);
        }
        // Different threads read a ring in different passes.
        self.current = (ring + self.passes) % self.routers.len();
        self.routers[self.current].begin_ring(ring, tid);
    }

    pub fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        match self.routers.get_mut(self.current) {
            Some(router) => router.event(event, size, time_ns),
            None => self.ledger.event(event, size, time_ns),
        }
    }

    pub fn end_pass(&mut self, now_ns: u64) {
        self.passes += 1;
        if self.routers.is_empty() {
            return self.ledger.end_pass(now_ns);
        }
        self.routers.iter_mut().for_each(Router::end_reading);
        let mut others = self.ledger.take_others();
        for (shard, other) in (1..).zip(&mut others) {
            other.apply_routed(&self.routers, shard);
        }
        self.ledger.apply_routed(&self.routers, 0);
        self.ledger.rejoin(others);
        self.ledger.end_pass(now_ns);
        self.routers.iter_mut().for_each(Router::clear);
    }
}
