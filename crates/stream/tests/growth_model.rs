//! Tests the growth of a ring under every interleaving and every reordering that C++11 allows (loom).
//!
//! | here | there |
//! |---|---|
//! | `Growing::look`, `Growing::commit` | `look_for_room` (ring.hpp): the tail, what is granted, the step at its place |
//! | `Growing::drain` | `Region::ring_mask`, loaded behind the head |
//! | the grant | `Region::grant` |

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::thread;

/// Explores schedules with at most this number of forced thread switches. This finds every bug that needs no more
/// switches.
fn explore(switches: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(model);
}

/// Ring that grows from two slots to four. All four exist from the beginning, like those in shared memory.
struct Growing {
    head: AtomicUsize,
    tail: AtomicUsize,
    mask: AtomicUsize,
    granted: AtomicUsize,
    events: Vec<UnsafeCell<u32>>,
}

impl Growing {
    /// Returns true if there is space for one event. Uses a grant if all events keep their places.
    fn look(&self) -> bool {
        let head = self.head.load(Relaxed);
        let capacity = self.mask.load(Relaxed) + 1;
        let tail = self.tail.load(Acquire);
        let granted = self.granted.load(Acquire);
        if head + 1 - tail > capacity {
            return false;
        }
        if granted > capacity && head & (granted - 1) == capacity {
            self.mask.store(granted - 1, Relaxed);
        }
        true
    }

    fn commit(&self, event: u32) {
        let head = self.head.load(Relaxed);
        let place = &self.events[head & self.mask.load(Relaxed)];
        // SAFETY: head - tail <= mask, so the consumer no longer uses this place; loom checks it.
        place.with_mut(|place| unsafe { *place = event });
        self.head.store(head + 1, Release);
    }

    fn drain(&self) -> Vec<u32> {
        let (tail, head) = (self.tail.load(Relaxed), self.head.load(Acquire));
        let mask = self.mask.load(Relaxed);
        assert!(head - tail <= mask + 1);
        let take = |at: usize| {
            // SAFETY: at < head, so the owner has published this place; loom checks it.
            self.events[at & mask].with(|place| unsafe { *place })
        };
        let events = (tail..head).map(take).collect();
        self.tail.store(head, Release);
        events
    }
}

/// Regardless of when the grant arrives and which mask the consumer sees, no event is lost or torn, and all events
/// arrive in order.
#[test]
fn a_ring_grows_in_use() {
    for granted_after in [0, 2] {
        explore(2, move || {
            let ring = Arc::new(Growing {
                head: AtomicUsize::new(0),
                tail: AtomicUsize::new(0),
                mask: AtomicUsize::new(1),
                granted: AtomicUsize::new(0),
                events: (0..4).map(|_| UnsafeCell::new(0)).collect(),
            });
            let producer = {
                let ring = ring.clone();
                thread::spawn(move || {
                    for event in 1..=5 {
                        while !ring.look() {
                            thread::yield_now();
                        }
                        ring.commit(event);
                    }
                    ring.mask.load(Relaxed)
                })
            };
            let mut got = Vec::new();
            let mut passes = 0;
            while got.len() < 5 {
                if passes == granted_after {
                    ring.granted.store(4, Release);
                }
                passes += 1;
                got.extend(ring.drain());
                thread::yield_now();
            }
            let mask = producer.join().unwrap();
            assert_eq!(got, [1, 2, 3, 4, 5]);
            assert!(mask == 1 || mask == 3);
        });
    }
}
