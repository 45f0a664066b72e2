//! Threads that own rings: stack bounds and thread exits.

use crate::survey::target_facts::main_stack;
use memhook_abi::{MAX_RINGS, ring_state};
use memhook_process::{inner_tid, mappings, proc_path, thread_ids, thread_start_time};
use memhook_stream::Region;
use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

/// Minimum time between two reads of the maps, which take milliseconds for a large process and delay its mmap calls.
const MAPS_PAUSE: Duration = Duration::from_millis(5);
/// Time between two searches for ended threads.
const SWEEP_PAUSE: Duration = Duration::from_millis(200);
/// Like `SWEEP_PAUSE`, when few rings are left: a program may start thousands of short-lived threads.
const SWEEP_PAUSE_SCARCE: Duration = Duration::from_millis(5);

/// Known owners of rings.
pub struct RingOwners {
    pid: i32,
    /// True if the target numbers its threads in another pid namespace.
    own_namespace: bool,
    /// Owner (tid) whose stack bounds were looked up, by ring.
    judged: Vec<u32>,
    /// Start time of the owner when it was first seen, by ring: tids are reused.
    started: HashMap<usize, (u32, Option<u64>)>,
    /// Rings whose owner was missing at the last sweep.
    missed: HashSet<usize>,
    next_maps: Instant,
    last_sweep: Instant,
}

impl RingOwners {
    /// Creates an empty set.
    pub fn new(pid: i32) -> Self {
        let namespace = |path: &str| std::fs::read_link(path).ok();
        let now = Instant::now();
        RingOwners {
            pid,
            own_namespace: namespace("/proc/self/ns/pid") != namespace(&proc_path(pid, "ns/pid")),
            judged: vec![0; MAX_RINGS],
            started: HashMap::new(),
            missed: HashSet::new(),
            next_maps: now,
            last_sweep: now,
        }
    }

    /// Tells the hook the stack bounds of new owners, and reclaims the rings of ended threads. Call it after a pass:
    /// only an emptied ring can be reclaimed.
    pub fn care(&mut self, region: &Region) {
        let now = Instant::now();
        if now >= self.next_maps && self.find_stacks(region) {
            self.next_maps = now + MAPS_PAUSE;
        }
        let pause = if is_scarce(region) {
            SWEEP_PAUSE_SCARCE
        } else {
            SWEEP_PAUSE
        };
        if now >= self.last_sweep + pause {
            self.sweep(region);
            region.note_ring_sweep();
            self.last_sweep = now;
        }
    }

    /// Returns true if the maps were read.
    fn find_stacks(&mut self, region: &Region) -> bool {
        let mut maps = None;
        for ring in region.rings() {
            let known = self.judged.get_mut(ring.index);
            let Some(known) = known.filter(|tid| **tid != ring.tid) else {
                continue;
            };
            if ring.state != ring_state::CLAIMED || ring.tid == 0 {
                continue;
            }
            *known = ring.tid;
            let (sp, tcb) = (
                region.first_sp(ring.index),
                region.thread_pointer(ring.index),
            );
            let maps = maps.get_or_insert_with(|| mappings(self.pid).unwrap_or_default());
            // Bounds are set only for the main stack, or for a mapping that contains the thread's TCB above the stack
            // pointer: such stacks stay mapped as long as the thread lives. Any other stack may belong to a coroutine.
            let Some(m) = maps.iter().find(|m| sp >= m.start && sp < m.end) else {
                continue;
            };
            if m.path == "[stack]" {
                let bounds = main_stack(maps);
                region.set_stack_bounds(ring.index, bounds.start, bounds.end);
            } else if tcb > sp && tcb < m.end {
                region.set_stack_bounds(ring.index, m.start, tcb);
            }
        }
        maps.is_some()
    }

    fn sweep(&mut self, region: &Region) {
        let claimed: Vec<_> = region
            .rings()
            .filter(|r| r.state == ring_state::CLAIMED && r.tid != 0)
            .collect();
        let Some(alive) = self.alive() else {
            return;
        };
        let mut owners: HashMap<u32, usize> = HashMap::new();
        for ring in &claimed {
            *owners.entry(ring.tid).or_default() += 1;
        }
        // A thread can be missing from a listing of /proc/PID/task while other threads end.
        let missed_before = std::mem::take(&mut self.missed);
        for ring in &claimed {
            let mut ended = !alive.contains(&ring.tid);
            let first_seen = self.started.get(&ring.index).map(|s| s.0) != Some(ring.tid);
            // Two rings have the same tid: the thread of one ring has ended, and a new thread has reused its tid.
            if first_seen || owners[&ring.tid] > 1 {
                let start = thread_start_time(self.pid, ring.tid as i32);
                let known = self.started.entry(ring.index).or_insert((0, None));
                if known.0 == ring.tid && known.1 != start && !self.own_namespace {
                    ended = true;
                } else {
                    *known = (ring.tid, start);
                }
            }
            if !ended {
                continue;
            }
            // A ring that is not empty yet is reclaimed at the next sweep.
            let was_missed = missed_before.contains(&ring.index);
            if was_missed && ring.waiting == 0 && region.free_ring(ring.index) {
                self.judged[ring.index] = 0;
                self.started.remove(&ring.index);
            } else {
                self.missed.insert(ring.index);
            }
        }
    }

    /// Returns the tids of the target's threads in the target's pid namespace; `None` if they cannot be listed.
    fn alive(&self) -> Option<HashSet<u32>> {
        let listed = thread_ids(self.pid).ok()?;
        if !self.own_namespace {
            return Some(listed.into_iter().map(|tid| tid as u32).collect());
        }
        let inner = |tid| inner_tid(self.pid, tid);
        Some(listed.into_iter().filter_map(inner).collect())
    }
}

/// Returns true if more than half of the rings are claimed.
fn is_scarce(region: &Region) -> bool {
    let is_claimed = |state| state == ring_state::CLAIMED;
    region.rings_used() * 2 > MAX_RINGS
        && region.rings().filter(|ring| is_claimed(ring.state)).count() * 2 > MAX_RINGS
}
