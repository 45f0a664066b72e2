// The producer's side of a ring: claim, reserve, commit.
//
// Protocol: the owner writes events at head & mask and then publishes head with a release store. The attacher reads
// head with acquire, takes the events, and stores tail with release. The owner reads tail only if, according to
// `limit`, there might be no space.
//
// A ring begins small and grows: the attacher grants more slots, whose pages it has touched, so that the pages are
// charged to the attacher and not to the target. The owner takes the slots when head is C (mod G), where C is the
// number of slots in use and G the number of granted slots, both powers of two, with G the larger. Then every event
// that is not yet taken keeps its slot, because its number n is in [head - C, head), which is [0, C) (mod G), so that n
// & (C - 1) and n & (G - 1) are the same. So at any time, event n is at n & mask for the mask of that time. The mask is
// stored before the first head that needs it, so a consumer that loads `mask` after it has loaded `head` finds all
// events below that head with this mask or any later one. Later writes avoid events that are not yet taken by the same
// rule as before: head - tail <= mask + 1.
#pragma once
#include "seats.hpp"
#include "sequence.hpp"

namespace memhook {

struct RawEvent {
  uint64_t word0, word1;
};

inline constexpr uint64_t address_mask = (1ull << 45) - 1;
// A record may need a tick and a size extension before the event itself.
inline constexpr uint64_t reserve_events = 4;

// Values of RingHeader::sampling. A change is decided after an allocation and made before the next one, so that it
// never depends on whether the next one is a sample.
inline constexpr uint64_t records_all = 0, wants_samples = 1, records_samples = 2, wants_all = 3;
// With a budget (see budget.hpp): the next allocation is timed; or the next allocation begins the ordered sampling,
// after recording everything or after other samples.
inline constexpr uint64_t wants_timing = 4, wants_order = 5, wants_other_order = 6;
// One of the next allocations is timed (see call_times.hpp); all are recorded.
inline constexpr uint64_t wants_call_time = 7;

// Number of slots in use - 1. It never exceeds the number of existing slots, regardless of the ring's contents.
[[gnu::always_inline]] inline uint64_t mask_of(const RingHeader* ring) { return ring->mask & gate().ring_mask; }

// Returns the slot of the event with this number.
[[gnu::always_inline]] inline RawEvent& event_at(RingHeader* ring, uint64_t number) {
  auto* events = reinterpret_cast<RawEvent*>(reinterpret_cast<unsigned char*>(ring) + ring_prefix_bytes);
  return events[number & mask_of(ring)];
}

// Sets the size of the caches for remembered data, which is small at first. The position of remembered data does not
// affect its correctness, so the size can change at any time between two unwindings.
inline void use_caches(RingHeader* ring, bool all) {
  ring->memo_mask = all ? gate().memo_mask : gate().first_memo_mask;
  ring->pc_mask = (all ? pc_cache_entries : pc_cache_first_entries) - 1;
}

// Returns true if the attacher is back, so that this thread and all others record again. The contents of their rings
// and caches are still valid: backtraces are compared with the stack, and releases that were not numbered in the
// meantime have left their sequence word unchanged.
[[gnu::noinline, gnu::cold]] inline bool resume(uint32_t word) {
  if (__atomic_load_n(&tally()->abandoned, __ATOMIC_ACQUIRE)) return false;
  __atomic_store_n(&trusted.is_abandoned, false, __ATOMIC_RELAXED);
  uint32_t epoch = word & ~suspended;
  // The epoch is exchanged only if it is still `word`: a detach may have closed the gate, or the next attach may have
  // opened it with another epoch.
  return __atomic_compare_exchange_n(&gate().epoch, &word, epoch, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
         word == epoch;
}

// Takes the first free ring for this thread, out of `rings` rings. Returns null if no ring is free.
inline RingHeader* take_free_ring(uint32_t rings, uint32_t epoch, uint64_t sp) {
  uint64_t stride = ring_prefix_bytes + trusted.ring_bytes;
  for (uint32_t i = 0; i < rings; i++) {
    auto* ring = in_report<RingHeader>(rings_offset + i * stride);
    uint32_t expected = ring_free;
    if (__atomic_load_n(&ring->state, __ATOMIC_RELAXED) != ring_free) continue;
    if (!__atomic_compare_exchange_n(&ring->state, &expected, static_cast<uint32_t>(ring_claimed), false,
                                     __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
      continue;
    uint64_t thread_pointer = cpu::thread_pointer();
    ring->outer = 0;
    ring->last_tick = 0;
    ring->sampling = records_all;
    // Below 0: nothing is skipped before samples are ordered.
    if (gate().flags & flag_budget) ring->sample_left = ~0ull;
    ring->waited_ns = 0;
    ring->waited_at_ns = 0;
    ring->sample_rest = 0;
    ring->sample_shift = 0;
    ring->next_look = 0;
    ring->timed_from = 0;
    ring->call_counts = 0;
    for (uint64_t& frame : ring->described_frames) frame = 0;
    for (uint64_t& old : ring->described_olds) old = 0;
    __atomic_store_n(&ring->mask, gate().first_ring_mask, __ATOMIC_RELAXED);
    ring->drawn_head = ~0ull;
    // On its first event, the thread looks for space and sets the limit at which it looks again.
    ring->limit = 0;
    use_caches(ring, false);
    __atomic_store_n(&ring->thread_pointer, thread_pointer, __ATOMIC_RELAXED);
    __atomic_store_n(&ring->first_sp, sp, __ATOMIC_RELAXED);
    __atomic_store_n(&ring->tid, own_number(thread_pointer), __ATOMIC_RELEASE);
    uint32_t used = __atomic_load_n(&tally()->rings_used, __ATOMIC_RELAXED);
    while (used < i + 1 &&
           !__atomic_compare_exchange_n(&tally()->rings_used, &used, i + 1, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
    own_ring(ring, epoch);
    return ring;
  }
  return nullptr;
}

// The attacher looks for ended threads every few milliseconds when rings are scarce. A thread counts as ended once it
// was missing in two looks, and one more look may have begun before the wait. So after this number of looks, every ring
// that could be freed is free.
inline constexpr uint64_t sweeps_for_all = 3;
// An attacher that is this slow is considered dead elsewhere too.
inline constexpr uint64_t longest_wait_for_ring_ns = has_test_patience ? test_patience_ns : 2'000'000'000;

// Rings of threads that have ended are free only when the attacher has noticed the end. A thread waits for this as it
// waits when a ring is full. After one unsuccessful wait, no thread waits again, because there are more living threads
// than rings.
[[gnu::noinline, gnu::cold]] inline RingHeader* wait_for_ring(uint32_t rings, uint32_t epoch, uint64_t sp) {
  if (gate().flags & (flag_drop_when_full | flag_adapt_when_full)) return nullptr;
  // If there are fewer rings than the maximum, memory is scarce, and waiting is useless.
  if (rings < max_rings) return nullptr;
  const uint64_t* sweeps = &control()->ring_sweeps;
  uint64_t first = __atomic_load_n(sweeps, __ATOMIC_ACQUIRE);
  Wait wait;
  while (__atomic_load_n(&waited_in_vain, __ATOMIC_RELAXED) != epoch && epoch_now() == epoch) {
    if (!wait.a_moment()) break;
    uint64_t done = __atomic_load_n(sweeps, __ATOMIC_ACQUIRE) - first;
    if (RingHeader* ring = take_free_ring(rings, epoch, sp)) return ring;
    if (done >= sweeps_for_all || static_cast<uint64_t>(wait.waited_ns()) > longest_wait_for_ring_ns)
      __atomic_store_n(&waited_in_vain, epoch, __ATOMIC_RELAXED);
  }
  return nullptr;
}

// Returns the thread's ring, or a free ring if it has none. Returns null if all rings are taken, or while the hook is
// suspended.
[[gnu::noinline, gnu::cold]] inline RingHeader* claim_ring(uint32_t epoch, uint64_t sp) {
  if (epoch & suspended) {
    if (!resume(epoch)) return nullptr;
    epoch &= ~suspended;
  }
  uint64_t left = thread_word();
  if ((left & 0xfff) == epoch) return reinterpret_cast<RingHeader*>(left - epoch);
  const Control* c = control();
  // A thread without a ring asks for a ring again only on every 4096th event, because both the search and the wait for
  // admission take long.
  uint64_t still_waiting = static_cast<uint64_t>(epoch) << 24;
  if ((left & 0xfff) == 0 && left > still_waiting && left < still_waiting + (1 << 24)) {
    own_no_ring(left - (1 << 12));
    __atomic_fetch_add(&tally()->ringless_events, 1, __ATOMIC_RELAXED);
    return nullptr;
  }
  uint32_t limit = __atomic_load_n(&c->ring_limit, __ATOMIC_RELAXED);
  if (limit > max_rings) limit = max_rings;
  uint32_t rings = admit_recorder(epoch) ? limit : 0;
  if (RingHeader* ring = take_free_ring(rings, epoch, sp)) return ring;
  if (rings > 0) {
    if (RingHeader* ring = wait_for_ring(rings, epoch, sp)) return ring;
  }
  // A detach has happened, or a gap has begun. Nothing is counted, and the thread asks again when tracing continues.
  if (epoch_now() != epoch) return nullptr;
  own_no_ring(still_waiting | 4095ull << 12);
  __atomic_fetch_add(&tally()->ringless_events, 1, __ATOMIC_RELAXED);
  return nullptr;
}

// Returns the calling thread's ring, or null. `epoch` is the gate's word on entry, and the epoch on return if there is
// a ring.
[[gnu::always_inline]] inline RingHeader* ring_of(uint32_t& epoch, uint64_t sp) {
  RingHeader* ring = seated_ring(epoch);
  if (__builtin_expect(ring == nullptr, 0)) {
    ring = claim_ring(epoch, sp);
    epoch &= ~suspended;
  }
  return ring;
}

// Reads the tail, and takes granted slots. Returns true if there is space for a record.
inline bool look_for_room(RingHeader* ring) {
  uint64_t head = ring->head, capacity = mask_of(ring) + 1;
  uint64_t tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
  uint64_t granted = __atomic_load_n(&ring->granted, __ATOMIC_ACQUIRE);
  ring->limit = tail + capacity;
  if (head + reserve_events - tail > capacity) return false;
  if (granted <= capacity || granted - 1 > gate().ring_mask) return true;
  uint64_t missing = (capacity - head) & (granted - 1);
  if (missing >= reserve_events) {
    // With this limit, the owner calls this function again directly before the next opportunity to grow.
    if (ring->limit - head > missing) ring->limit = head + missing;
    return true;
  }
  // The missing slots are filled with ticks that repeat the last clock value and so carry no information. The ring has
  // space for them.
  for (; missing > 0; missing--) event_at(ring, head++) = {op_tick << 45, ring->last_tick};
  __atomic_store_n(&ring->mask, granted - 1, __ATOMIC_RELAXED);
  __atomic_store_n(&ring->head, head, __ATOMIC_RELEASE);
  ring->limit = tail + granted;
  return true;
}

// With --on-full adapt, a thread waits like any other as long as the waits are short: `wait_allowance_ns` and one part
// in `wait_share` of the time in total, and `longest_wait_ns` for a single wait. So a burst is recorded exactly, and a
// program that always allocates more than the attacher takes is not delayed. Longer waits are compensated later, but
// never for much longer than a second.
//
// The thread waits when its ring is nearly full. The last quarter is for events after it has used up its waiting time:
// samples, and releases, which are always published. So an attacher that is not scheduled for a moment causes neither
// delays nor lost events.
inline constexpr int64_t wait_allowance_ns = 20'000'000, longest_wait_ns = 10'000'000;
// Maximum wait of a thread whose ring is full of releases, for an attacher that is not scheduled. It is longer than the
// other limits: on an overloaded machine, a shorter wait would lose events that a few milliseconds more would have
// saved.
inline constexpr int64_t starved_attacher_ns = has_test_patience ? test_patience_ns : 100'000'000;
inline constexpr uint64_t wait_share = 20, most_waited_ns = 3 * wait_allowance_ns;

// Returns how much of its allowance a thread has used when its current wait has lasted for `waited_ns`.
inline uint64_t spent_waiting(const RingHeader* ring, uint64_t now, uint64_t waited_ns) {
  uint64_t forgotten = (now - ring->waited_at_ns) / wait_share;
  uint64_t spent = (ring->waited_ns > forgotten ? ring->waited_ns - forgotten : 0) + waited_ns;
  return spent < most_waited_ns ? spent : most_waited_ns;
}

// Returns true if the owner need not wait (any longer): there is space for all its allocations, or it has used up its
// waiting time and takes samples from its next allocation on. pre: look_for_room() returned true.
inline bool may_go_on(RingHeader* ring, int64_t waited_ns) {
  uint64_t now = __atomic_load_n(&tally()->clock_ns, __ATOMIC_RELAXED);
  uint64_t spent = spent_waiting(ring, now, static_cast<uint64_t>(waited_ns));
  if (ring->sampling == records_all) {
    uint64_t nearly_full = __atomic_load_n(&ring->tail, __ATOMIC_RELAXED) + (mask_of(ring) + 1) / 4 * 3;
    if (ring->head + reserve_events <= nearly_full) {
      if (nearly_full < ring->limit) ring->limit = nearly_full;
    } else if (spent < wait_allowance_ns && waited_ns < longest_wait_ns) {
      return false;
    } else {
      ring->sampling = wants_samples;
      ring->sample_left = ~0ull;  // below 0 already: the next allocation looks here
    }
  }
  ring->waited_ns = spent;
  ring->waited_at_ns = now;
  return true;
}

// With a budget, looks or call times: makes the owner call this function again at its next check, if that comes before
// the ring is full. pre: look_for_room() returned true.
inline void keep_next_look(RingHeader* ring) {
  uint64_t limit = ring->next_look + reserve_events - 1;
  if (limit < ring->limit) ring->limit = limit;
}

// Returns true if a check is due. pre: as above.
inline bool is_time_to_look(RingHeader* ring) {
  if (ring->head >= ring->next_look) return true;
  keep_next_look(ring);
  return false;
}

inline uint64_t draw_random(RingHeader* ring) {
  uint64_t x = ring->random;
  if (x == 0) x = (cpu::time_stamp() ^ (reinterpret_cast<uint64_t>(ring) << 20)) | 1;
  // xorshift64 (Marsaglia, "Xorshift RNGs", 2003)
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  ring->random = x;
  return x;
}

// Number of events between two checks: random, so that the timed events are a fair share of all events. The mean is 256
// events.
inline uint64_t draw_look_distance(RingHeader* ring) { return 64 + (draw_random(ring) >> 20) % 385; }

// Reads the order. Without an order, has the next allocation timed, and the attacher decides from the time. The change
// is decided here, after an event, and made before the next allocation.
[[gnu::noinline, gnu::cold]] inline void look_at_order(RingHeader* ring) {
  ring->next_look = ring->head + draw_look_distance(ring);
  keep_next_look(ring);
  if (ring->sampling != records_all && ring->sampling != wants_timing) return;
  bool is_ordered = __atomic_load_n(&tally()->sampling_order, __ATOMIC_RELAXED) != 0;
  ring->sampling = is_ordered ? wants_order : wants_timing;
  ring->sample_left = ~0ull;  // below 0 already: the next allocation looks here
}

// Chooses one of the next allocations. Programs allocate in rhythms, and because events are folded, checks often fall
// on the same beat. So the distance is the sum of two random numbers, each longer than most rhythms.
inline constexpr uint64_t call_choices = 128;
inline void choose_call(RingHeader* ring) {
  uint64_t x = draw_random(ring) >> 32;
  uint64_t distance = (x & (call_choices - 1)) + (x / call_choices & (call_choices - 1));
  // Samples are already random.
  ring->calls_to_timed = gate().flags & flag_sample ? 0 : distance;
  ring->sampling = wants_call_time;
}

// With call times: chooses one of the next allocations to be timed. pre: look_for_room() returned true.
[[gnu::noinline, gnu::cold]] inline void look_for_call(RingHeader* ring) {
  // Every thread has a first event.
  bool is_first = ring->next_look == 0;
  ring->next_look = ring->head + (gate().flags & flag_sample ? reserve_events : 8 * draw_look_distance(ring));
  keep_next_look(ring);
  if (!is_first && ring->sampling == records_all) choose_call(ring);
}

// Returns the number of events to the next drawn event: random, with the mean set by the attacher.
inline uint64_t draw_distance_of_looks(RingHeader* ring) {
  uint64_t mean = __atomic_load_n(&control()->look_distance, __ATOMIC_RELAXED) & 0xffff'ffff;
  return 1 + (draw_random(ring) >> 20) % (2 * mean + 1);
}

// With looks: records whether the event that is about to be written was drawn, and makes the owner come back at the
// next drawn event. An event that takes several slots must be as likely to be drawn as any other, so it is drawn only
// if its first slot is; otherwise the draw is void. pre: look_for_room() returned true.
inline void meet_draw(RingHeader* ring) {
  if (ring->head >= ring->next_look) {
    // A thread's first event was not drawn.
    if (ring->head == ring->next_look && ring->next_look != 0) ring->drawn_head = ring->head;
    ring->next_look = ring->head + draw_distance_of_looks(ring);
  }
  keep_next_look(ring);
}

// Handles a ring that may be full: waits for space, drops the event, or considers the attacher dead. Returns false if
// the event is lost. The loss is counted, or is the first in a gap. A detach during the wait changes nothing: the
// attacher drains the events of calls in progress.
[[gnu::noinline, gnu::cold]] inline bool wait_for_room(RingHeader* ring) {
  const Control* c = control();
  uint32_t mine = static_cast<uint32_t>(thread_word() & 0xfff);
  bool adapts = (gate().flags & flag_adapt_when_full) != 0;
  Wait wait(adapts ? starved_attacher_ns : dead_attacher_ns);
  for (;;) {
    // The next attach has cleared the region, or the last attach has given its memory back: neither this ring nor the
    // loss is ours any more.
    if (__atomic_load_n(&c->epoch, __ATOMIC_ACQUIRE) != trusted.guide_epoch || gate().last_epoch != mine ||
        __atomic_load_n(&ring->state, __ATOMIC_ACQUIRE) != ring_claimed)
      return false;
    if (look_for_room(ring) && (!adapts || may_go_on(ring, wait.waited_ns()))) {
      auto waited_ns = static_cast<uint64_t>(wait.waited_ns());
      if (gate().flags & flag_budget) {
        if (waited_ns > 0) __atomic_fetch_add(&tally()->waited_ns, waited_ns, __ATOMIC_RELAXED);
        if (is_time_to_look(ring)) look_at_order(ring);
      }
      if (gate().flags & flag_looks) meet_draw(ring);
      if ((gate().flags & (flag_call_times | flag_budget)) == flag_call_times && is_time_to_look(ring))
        look_for_call(ring);
      return true;
    }
    if (gate().flags & flag_drop_when_full) break;
    if (gate_word() & suspended) return false;  // another thread has waited long enough
    if (!wait.a_moment()) return false;
  }
  __atomic_store_n(&ring->dropped, ring->dropped + 1, __ATOMIC_RELAXED);
  return false;
}

// Returns true if there is space, as far as is known without reading the tail.
[[gnu::always_inline]] inline bool has_room(const RingHeader* ring) {
  return ring->limit - ring->head >= reserve_events;
}

[[gnu::always_inline]] inline bool reserve(RingHeader* ring) { return has_room(ring) || wait_for_room(ring); }

[[gnu::noinline, gnu::cold]] inline uint64_t precise_time() {
  if (gate().clock_mode == clock_tsc) return cpu::time_stamp();
  sys::timespec64 t{0, 0};
  if (trusted.vdso_clock) trusted.vdso_clock(1, &t);
  return static_cast<uint64_t>(t.seconds * 1'000'000'000 + t.nanoseconds);
}

[[gnu::always_inline]] inline void write_tick(RingHeader* ring, uint64_t& head, uint64_t time) {
  if (__builtin_expect(time == ring->last_tick, 1)) return;
  ring->last_tick = time;
  event_at(ring, head++) = {op_tick << 45, time};
}

// Writes one event after those written at `head`, and publishes.
[[gnu::always_inline]] inline void publish(RingHeader* ring, uint64_t head, uint64_t op, uint64_t address,
                                           uint32_t sequence, uint64_t size, uint32_t stack) {
  event_at(ring, head) = {
      ((address >> 3) & address_mask) | (op << 45) | (static_cast<uint64_t>(sequence) << 48),
      size | (static_cast<uint64_t>(stack) << 32) | (static_cast<uint64_t>((sequence >> 16) & 0x3f) << 58)};
  __atomic_store_n(&ring->head, head + 1, __ATOMIC_RELEASE);
}

// Writes one event and publishes it, with a tick before it if the clock has advanced. pre: reserve() returned true.
[[gnu::always_inline]] inline void commit(RingHeader* ring, uint64_t op, uint64_t address, uint32_t sequence,
                                          uint64_t size, uint32_t stack) {
  uint64_t head = ring->head;
  uint64_t time = __atomic_load_n(&tally()->clock_ns, __ATOMIC_RELAXED);
  if (gate().clock_mode != clock_coarse) time = gate().clock_mode == clock_attacher ? ring->last_tick : precise_time();
  write_tick(ring, head, time);
  if (size >= 0xffff'ffff) {
    event_at(ring, head++) = {op_size_extension << 45, size};
    size = 0xffff'ffff;
  }
  publish(ring, head, op, address, sequence, size, stack);
}

// Like `commit`, if the gate is `simple` and the size needs no extension.
[[gnu::always_inline]] inline void commit_simple(RingHeader* ring, uint64_t op, uint64_t address, uint32_t sequence,
                                                 uint64_t size, uint32_t stack) {
  uint64_t head = ring->head;
  write_tick(ring, head, __atomic_load_n(&tally()->clock_ns, __ATOMIC_RELAXED));
  publish(ring, head, op, address, sequence, size, stack);
}

}  // namespace memhook
