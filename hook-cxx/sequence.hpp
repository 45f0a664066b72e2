// Sequence words: a table that numbers the releases of each page's blocks, so that the attacher can
// order the events of one address that come from different threads.
//
// While one thread alone records, its increments need no lock prefix, which would make each wait
// for the stores before it, the missed lines of the ring above all. The second recording thread
// ends that for good: it says so, makes every other thread of the process pass a memory barrier
// (membarrier(2)), and waits for whoever is recording at that moment. The first one stores "I am
// recording" before it loads `recorders`. If the barrier fell before that load, it takes the
// locked way; if behind it, its store is visible, and is waited for.
#pragma once
#include "state.hpp"
#include "syscall.hpp"

namespace memhook {

// Values of Gate::recorders.
inline constexpr uint32_t nobody = 0, one_thread = 1, second_comes = 2, many_threads = 3;

inline bool barrier_in_all_threads() {
  constexpr long private_expedited = 8;
  return sys::call(sys::nr_membarrier, private_expedited) == 0;
}

// At the attach, with the gate closed.
[[gnu::cold]] inline void reset_recorders() {
  constexpr long register_private_expedited = 16;
  Gate& g = gate();
  bool usable = (g.flags & flag_membarrier) &&
                sys::call(sys::nr_membarrier, register_private_expedited) == 0 &&
                barrier_in_all_threads();
  g.recorders = usable ? nobody : many_threads;
}

// Whether the calling thread may begin to record.
[[gnu::noinline, gnu::cold]] inline bool admit_recorder(Control* c) {
  Gate& g = gate();
  uint32_t now = nobody;
  if (__atomic_compare_exchange_n(&g.recorders, &now, one_thread, false, __ATOMIC_SEQ_CST,
                                  __ATOMIC_SEQ_CST) ||
      now == many_threads)
    return true;
  __atomic_store_n(&g.recorders, second_comes, __ATOMIC_SEQ_CST);
  if (!barrier_in_all_threads()) return false;
  uint64_t stride = ring_prefix_bytes + c->ring_bytes;
  uint32_t used = __atomic_load_n(&c->rings_used, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < used && i < max_rings; i++) {
    auto* ring = at<RingHeader>(rings_offset + i * stride);
    // A recording takes some 30 ns, unless its thread is not running or waits for room. Given up after
    // a second or two, should that thread be stopped, or in a signal handler that waits for this one.
    for (int tries = 0; __atomic_load_n(&ring->outer, __ATOMIC_ACQUIRE) & 1; tries++) {
      if (tries == 10'000) return false;
      sys::sleep_ns(50'000);
    }
  }
  __atomic_store_n(&g.recorders, many_threads, __ATOMIC_SEQ_CST);
  return true;
}

// The sequence word of a block: one word for a page's worth of addresses.
[[gnu::always_inline]] inline uint32_t* sequence_word(uint64_t address) {
  uint64_t page = address >> 12;
  return at<uint32_t>(sequence_offset) + ((page ^ (page >> 14)) & (sequence_words - 1));
}

// The number of a release. pre: the thread has said that it is recording.
[[gnu::always_inline]] inline uint32_t next_release(uint64_t address) {
  uint32_t* word = sequence_word(address);
  if (__atomic_load_n(&gate().recorders, __ATOMIC_RELAXED) > one_thread)
    return __atomic_add_fetch(word, 1, __ATOMIC_ACQ_REL);
  uint32_t number = __atomic_load_n(word, __ATOMIC_RELAXED) + 1;
  __atomic_store_n(word, number, __ATOMIC_RELEASE);
  return number;
}

}  // namespace memhook
