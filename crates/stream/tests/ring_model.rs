//! The ring protocol under every interleaving and every reordering that C++11 allows (loom).
//!
//! The model is the C++ and the Rust side, step by step, with the same orderings:
//!
//! | here | there |
//! |---|---|
//! | `Ring::claim` | `claim_ring` (ring.hpp): compare-and-swap of `state` with acquire, then the tid |
//! | `Ring::reserve` | `reserve`, `wait_for_room`: tail is loaded with acquire only if the ring looks full |
//! | `Ring::commit` | `commit`: plain stores of the event, then head with release |
//! | `Ring::drain` | `Drain::pass`: head with acquire, the events, then tail with release |
//! | `Ring::free` | `Region::free_ring`: fields relaxed, `tail` with release behind `head`, then `state` with release |
//! | `Freed::pass`, `Freed::free` | `Drain::pass`, which skips rings that are still empty; `Region::freeing` |
//! | `Folding::release`, `Folding::pass` | `fold` (folding.hpp), `Drain::pass` where pairs are folded |
//! | threads of the third test | `record_release`, `record_allocation` (record.hpp) |
//! | `Gate` | `memhook_attach`, `memhook_detach`, `ring_of`: gate epoch and `thread_word` |
//!
//! Event places are loom's `UnsafeCell`: any access that is not ordered with the other side's accesses is an error.
//! This is stricter than the real consumer needs (it reads them atomically, so a misbehaving target cannot cause a data
//! race in the attacher).

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, fence};
use loom::thread;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;

struct Ring {
    state: AtomicU32,
    tid: AtomicU32,
    head: AtomicUsize,
    tail: AtomicUsize,
    cached_tail: UnsafeCell<usize>,
    events: Vec<UnsafeCell<u32>>,
}

impl Ring {
    fn new(capacity: usize) -> Self {
        Ring {
            state: AtomicU32::new(FREE),
            tid: AtomicU32::new(0),
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            cached_tail: UnsafeCell::new(0),
            events: (0..capacity).map(|_| UnsafeCell::new(0)).collect(),
        }
    }

    fn claim(&self, tid: u32) -> bool {
        if self.state.load(Relaxed) != FREE {
            return false;
        }
        if self
            .state
            .compare_exchange(FREE, CLAIMED, Acquire, Relaxed)
            .is_err()
        {
            return false;
        }
        self.tid.store(tid, Release);
        true
    }

    fn has_room(&self) -> bool {
        let head = self.head.load(Relaxed); // the owner's own word: a plain load there
        // SAFETY: only the owner, and `free` between two owners, touch the copy; loom checks it.
        let cached = self.cached_tail.with(|tail| unsafe { *tail });
        head + 1 - cached <= self.events.len()
    }

    fn reserve(&self) {
        while !self.has_room() {
            let tail = self.tail.load(Acquire);
            // SAFETY: as in `has_room`.
            self.cached_tail
                .with_mut(|cached| unsafe { *cached = tail });
            if !self.has_room() {
                thread::yield_now();
            }
        }
    }

    fn commit(&self, event: u32) {
        let head = self.head.load(Relaxed);
        let place = &self.events[head % self.events.len()];
        // SAFETY: head - tail < capacity, so the consumer no longer uses this place; loom checks it.
        place.with_mut(|place| unsafe { *place = event });
        self.head.store(head + 1, Release);
    }

    /// Returns everything below `head`, with the tid of the owner.
    fn drain(&self, head: usize) -> Vec<(u32, u32)> {
        self.take(self.tail.load(Relaxed), head)
    }

    fn take(&self, tail: usize, head: usize) -> Vec<(u32, u32)> {
        let tid = self.tid.load(Relaxed);
        let mut events = Vec::new();
        for at in tail..head {
            let place = &self.events[at % self.events.len()];
            // SAFETY: at < head, so the owner has published this place; loom checks it.
            events.push((tid, place.with(|place| unsafe { *place })));
        }
        if tail != head {
            self.tail.store(head, Release);
        }
        events
    }

    fn free(&self) -> bool {
        if self.state.load(Acquire) == FREE || self.head.load(Acquire) != self.tail.load(Relaxed) {
            return false;
        }
        self.head.store(0, Relaxed);
        self.tail.store(0, Release);
        // SAFETY: the owner is gone; loom checks that this is ordered after its last access.
        self.cached_tail.with_mut(|cached| unsafe { *cached = 0 });
        self.tid.store(0, Relaxed);
        self.state.store(FREE, Release);
        true
    }
}

/// Explores schedules with at most this number of forced thread switches, which finds every bug that needs no more of
/// them.
fn explore(switches: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(model);
}

/// With a ring of two slots and four events, no event is lost or torn, and all arrive in order.
#[test]
fn a_full_ring_loses_nothing() {
    explore(3, || {
        let ring = Arc::new(Ring::new(2));
        let producer = {
            let ring = ring.clone();
            thread::spawn(move || {
                assert!(ring.claim(7));
                for event in 1..=4 {
                    ring.reserve();
                    ring.commit(event);
                }
            })
        };
        let mut got = Vec::new();
        while got.len() < 4 {
            let head = ring.head.load(Acquire);
            got.extend(ring.drain(head));
            thread::yield_now();
        }
        producer.join().unwrap();
        assert_eq!(got, [(7, 1), (7, 2), (7, 3), (7, 4)]);
    });
}

/// The owner exits, the consumer frees the ring, and another thread claims it.
#[test]
fn a_ring_changes_hands() {
    explore(3, || {
        let ring = Arc::new(Ring::new(2));
        assert!(ring.claim(1));
        // /proc/PID/task/TID is gone: the kernel has ended the thread, so all its stores are visible.
        let gone = Arc::new(AtomicBool::new(false));
        let first = {
            let (ring, gone) = (ring.clone(), gone.clone());
            thread::spawn(move || {
                for event in [10, 11] {
                    ring.reserve();
                    ring.commit(event);
                }
                gone.store(true, Release);
            })
        };
        let second = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mine = ring.claim(2);
                if mine {
                    ring.reserve();
                    ring.commit(20);
                }
                mine
            })
        };
        let mut got = Vec::new();
        for _ in 0..2 {
            let ended = gone.load(Acquire);
            let head = ring.head.load(Acquire);
            got.extend(ring.drain(head));
            if ended && ring.tid.load(Relaxed) == 1 {
                assert!(ring.free());
            }
        }
        first.join().unwrap();
        let claimed = second.join().unwrap();
        let head = ring.head.load(Acquire);
        got.extend(ring.drain(head));
        let mut expected = vec![(1, 10), (1, 11)];
        expected.extend(claimed.then_some((2, 20)));
        assert_eq!(got, expected);
    });
}

/// Ring, and the number of times that it was freed.
struct Freed {
    ring: Ring,
    begun: AtomicUsize,
    done: AtomicUsize,
}

/// State of the consumer between passes.
struct Remembered {
    emptied: Option<usize>,
    freed: Option<usize>,
}

impl Freed {
    fn free(&self) {
        self.begun.fetch_add(1, AcqRel);
        assert!(self.ring.free());
        self.done.fetch_add(1, AcqRel);
    }

    fn pass(&self, remembered: &mut Remembered) -> Vec<(u32, u32)> {
        let done = self.done.load(Acquire);
        let freed = (self.begun.load(Acquire) == done).then_some(done);
        if freed.is_none() || freed != remembered.freed {
            remembered.emptied = None;
        }
        remembered.freed = freed;
        if remembered.emptied == Some(self.ring.head.load(Acquire)) {
            return Vec::new();
        }
        let (tail, head) = loop {
            let tail = self.ring.tail.load(Acquire);
            let head = self.ring.head.load(Acquire);
            if self.ring.tail.load(Relaxed) == tail {
                break (tail, head);
            }
        };
        remembered.emptied = Some(head);
        self.ring.take(tail, head)
    }
}

/// The next owner of a ring publishes as many events as the previous owner did. Regardless of what passes saw
/// meanwhile, the first pass that begins afterwards takes the new events.
#[test]
fn events_of_the_next_owner_are_not_passed_by() {
    explore(2, || {
        let all = Arc::new(Freed {
            ring: Ring::new(2),
            begun: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
        });
        let mut remembered = Remembered {
            emptied: None,
            freed: None,
        };
        assert!(all.ring.claim(1));
        all.ring.commit(10);
        assert_eq!(all.pass(&mut remembered), [(1, 10)]);
        // The owner has ended.
        let upkeep = {
            let all = all.clone();
            thread::spawn(move || all.free())
        };
        let next = {
            let all = all.clone();
            thread::spawn(move || {
                let is_mine = all.ring.claim(2);
                if is_mine {
                    all.ring.commit(20);
                }
                is_mine
            })
        };
        let mut got = all.pass(&mut remembered);
        got.extend(all.pass(&mut remembered));
        let is_claimed = next.join().unwrap();
        got.extend(all.pass(&mut remembered));
        assert_eq!(got, if is_claimed { vec![(2, 20)] } else { vec![] });
        upkeep.join().unwrap();
    });
}

/// Sequence numbers of one address across threads, and the guarantee of the two passes.
#[test]
fn the_next_owner_reads_the_number_of_the_release() {
    explore(3, || {
        let sequence = Arc::new(AtomicU32::new(0));
        // The allocator, with the block on its free list. The allocator's own synchronization, of whatever kind, orders
        // a free before the malloc that returns the same address.
        let on_free_list = Arc::new(AtomicBool::new(false));
        let rings = [Arc::new(Ring::new(4)), Arc::new(Ring::new(4))];
        let releaser = {
            let (sequence, list, ring) = (sequence.clone(), on_free_list.clone(), rings[0].clone());
            thread::spawn(move || {
                assert!(ring.claim(1));
                ring.reserve();
                let n = sequence.fetch_add(1, AcqRel) + 1;
                ring.commit(n);
                list.store(true, Release); // the real free
            })
        };
        let allocator = {
            let (sequence, list, ring) = (sequence, on_free_list, rings[1].clone());
            thread::spawn(move || {
                assert!(ring.claim(2));
                if list.load(Acquire) {
                    let v = sequence.load(Acquire);
                    ring.reserve();
                    ring.commit(100 + v);
                }
            })
        };
        let mut passes = Vec::new();
        for _ in 0..2 {
            // All heads are read first. The later owner's head is read last, because this is the worst case.
            let heads = [rings[0].head.load(Acquire), rings[1].head.load(Acquire)];
            let mut pass: Vec<u32> = Vec::new();
            for (ring, head) in rings.iter().zip(heads) {
                pass.extend(ring.drain(head).iter().map(|e| e.1));
            }
            passes.push(pass);
        }
        if passes[0].contains(&101) {
            assert!(
                passes.concat().contains(&1),
                "an allocation in pass 1, but not the release before it in pass 1 or 2"
            );
        }
        releaser.join().unwrap();
        allocator.join().unwrap();
        passes.push(
            rings[1]
                .drain(rings[1].head.load(Acquire))
                .iter()
                .map(|e| e.1)
                .collect(),
        );
        assert!(
            !passes.concat().contains(&100),
            "the number of the release was not read"
        );
    });
}

/// Two attaches, one after the other. A call that begins when the gate is open for the second attach sees the settings
/// of that attach, and claims a new ring, regardless of its thread's word.
#[test]
fn a_thread_of_the_last_attach_claims_anew() {
    struct Gate {
        epoch: AtomicU32,
        ring_mask: AtomicU32,
    }
    explore(3, || {
        let gate = Arc::new(Gate {
            epoch: AtomicU32::new(1),
            ring_mask: AtomicU32::new(10),
        });
        let ring = Arc::new(Ring::new(4));
        assert!(ring.claim(9));
        let other = {
            let (gate, ring) = (gate.clone(), ring.clone());
            thread::spawn(move || {
                let mut word = 1; // its ring of attach 1
                for _ in 0..2 {
                    let epoch = gate.epoch.load(Acquire);
                    if epoch != 2 {
                        continue; // passes through, or records into what the attach discards
                    }
                    if word != epoch {
                        assert!(
                            ring.claim(9),
                            "the gate opened before the rings were cleared"
                        );
                        word = epoch;
                    }
                    assert_eq!(gate.ring_mask.load(Relaxed), 20);
                    ring.reserve();
                    ring.commit(2);
                }
            })
        };
        // memhook_detach, Region::initialize, memhook_attach.
        gate.epoch.store(0, SeqCst);
        ring.head.store(0, Relaxed);
        ring.tail.store(0, Relaxed);
        ring.state.store(FREE, Relaxed);
        gate.ring_mask.store(20, Relaxed);
        gate.epoch.store(2, Release);
        let head = ring.head.load(Acquire);
        assert!(ring.drain(head).iter().all(|event| *event == (9, 2)));
        other.join().unwrap();
    });
}

const ALLOCATION: u32 = 1;
const RELEASE: u32 = 2;
const PAIR: u32 = 3;

/// Ring in which pairs are folded. The two fences represent the time between claiming an event and taking it. Within
/// that time, a store becomes visible, or its thread is interrupted, which also makes the store visible.
struct Folding {
    ring: Ring,
    claimed: AtomicUsize,
    folding: AtomicUsize,
}

impl Folding {
    /// Releases the block that the last event allocates.
    fn release(&self) {
        let head = self.ring.head.load(Relaxed);
        self.folding.store(head + 1, Relaxed);
        fence(SeqCst);
        let folds = head > self.claimed.load(Acquire);
        if folds {
            let last = &self.ring.events[head - 1];
            // SAFETY: no event is taken before it is claimed; loom checks it.
            last.with_mut(|last| unsafe { *last = PAIR });
        }
        self.folding.store(0, Release);
        if !folds {
            self.ring.reserve();
            self.ring.commit(RELEASE);
        }
    }

    /// Returns the events that a pass takes.
    fn pass(&self) -> Vec<u32> {
        let head = self.ring.head.load(Acquire);
        let folding = self.folding.load(Acquire);
        let mut end = self.claimed.load(Relaxed).min(head);
        if folding != 0 {
            end = end.min(folding - 2);
        }
        self.claimed.store(head, Release);
        fence(SeqCst);
        let end = end.max(self.ring.tail.load(Relaxed));
        self.ring.drain(end).iter().map(|event| event.1).collect()
    }
}

/// An event changes only before it is claimed, and it is taken exactly once.
#[test]
fn a_claimed_event_is_not_folded() {
    explore(4, || {
        let all = Arc::new(Folding {
            ring: Ring::new(8),
            claimed: AtomicUsize::new(0),
            folding: AtomicUsize::new(0),
        });
        assert!(all.ring.claim(1));
        let owner = {
            let all = all.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    all.ring.commit(ALLOCATION);
                    all.release();
                }
            })
        };
        let mut got = Vec::new();
        for _ in 0..3 {
            got.extend(all.pass());
        }
        owner.join().unwrap();
        for _ in 0..2 {
            got.extend(all.pass());
        }
        let pairs = got.iter().filter(|event| **event == PAIR).count();
        let rest: Vec<u32> = got.into_iter().filter(|event| *event != PAIR).collect();
        let expected: Vec<u32> = [ALLOCATION, RELEASE].repeat(2 - pairs);
        assert_eq!(rest, expected);
    });
}
