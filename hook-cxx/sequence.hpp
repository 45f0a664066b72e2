// Sequence words: a table that numbers the releases of each page's blocks, so that the attacher can order the events of
// one address that come from different threads.
//
// While only one thread records, its increments need no lock prefix, which would make each increment wait for the
// stores before it, especially for cache misses in the ring. The second recording thread ends this mode permanently: it
// stores `second_comes` and sends a request to the attacher. The attacher makes every thread of the process execute a
// memory barrier (membarrier(2), MEMBARRIER_CMD_GLOBAL_EXPEDITED), waits until no earlier recording is in progress, and
// then grants the request. The first thread stores "I am recording" (`outer`, odd) before it loads `recorders`. If the
// barrier came before that load, the load finds `second_comes`, and the thread uses the lock prefix. If the barrier
// came after the load, the store is visible to the attacher, which waits until that recording has ended. So no plain
// increment is in progress when the second thread begins.
#pragma once
#include "waiting.hpp"

namespace memhook {

// Values of Gate::recorders.
inline constexpr uint32_t nobody = 0, one_thread = 1, second_comes = 2, many_threads = 3;

// At the attach, with the gate closed.
inline void reset_recorders() { gate().recorders = gate().flags & flag_lone_recorder ? nobody : many_threads; }

// Returns true if the calling thread may begin to record.
[[gnu::noinline, gnu::cold]] inline bool admit_recorder(uint32_t epoch) {
  Gate& g = gate();
  uint32_t now = nobody;
  if (__atomic_compare_exchange_n(&g.recorders, &now, one_thread, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) ||
      now == many_threads)
    return true;
  __atomic_store_n(&g.recorders, second_comes, __ATOMIC_SEQ_CST);
  __atomic_store_n(&tally()->recorders_asked, epoch, __ATOMIC_SEQ_CST);
  Wait wait;
  while (__atomic_load_n(&control()->recorders_granted, __ATOMIC_ACQUIRE) != epoch) {
    if (epoch_now() != epoch || !wait.a_moment()) return false;
    // The first thread is stopped inside a recording, or in a signal handler that waits for this thread.
    if (wait.waited_ns() > 2'000'000'000) return false;
  }
  __atomic_store_n(&g.recorders, many_threads, __ATOMIC_SEQ_CST);
  return true;
}

// Returns the sequence word of a block. All addresses of a page share one word.
[[gnu::always_inline]] inline uint32_t* sequence_word(uint64_t address) {
  uint64_t page = address >> 12;
  return in_report<uint32_t>(sequence_offset) + ((page ^ (page >> 14)) & (sequence_words - 1));
}

// Returns the sequence number of a release. pre: the thread is marked as recording.
[[gnu::always_inline]] inline uint32_t next_release(uint64_t address) {
  uint32_t* word = sequence_word(address);
  if (__atomic_load_n(&gate().recorders, __ATOMIC_RELAXED) > one_thread)
    return __atomic_add_fetch(word, 1, __ATOMIC_ACQ_REL);
  uint32_t number = __atomic_load_n(word, __ATOMIC_RELAXED) + 1;
  __atomic_store_n(word, number, __ATOMIC_RELEASE);
  return number;
}

}  // namespace memhook
