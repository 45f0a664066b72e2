// Looks: the attacher watches words of a block before the program gets it.
//
// A few allocations are drawn at random (meet_draw() in ring.hpp). If the attacher has requested a block, such an
// allocation offers its own block and waits, as a thread waits for space in its ring, but never longer than
// `longest_look_wait_ns`. Then the thread continues, whether its block is watched or not. The change of the state shows
// the attacher which of the two happened.
#pragma once
#include "ring.hpp"

namespace memhook {

inline constexpr int64_t longest_look_wait_ns = 2'000'000;

[[gnu::noinline, gnu::cold]] inline void wait_for_look(RingHeader* ring, uint64_t address, uint64_t size) {
  ring->drawn_head = ~0ull;
  uint32_t open = look_open;
  if (!__atomic_compare_exchange_n(&tally()->look_state, &open, static_cast<uint32_t>(look_named), false,
                                   __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    return;
  __atomic_store_n(&tally()->look_address, address, __ATOMIC_RELAXED);
  __atomic_store_n(&tally()->look_size, size, __ATOMIC_RELAXED);
  __atomic_store_n(&tally()->look_tid, __atomic_load_n(&ring->tid, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
  __atomic_store_n(&tally()->look_state, static_cast<uint32_t>(look_asked), __ATOMIC_RELEASE);
  Wait wait;
  while (__atomic_load_n(&tally()->look_state, __ATOMIC_ACQUIRE) == look_asked) {
    if (wait.a_moment() && wait.waited_ns() < longest_look_wait_ns) continue;
    // The offer is withdrawn, unless the attacher was faster.
    uint32_t asked = look_asked;
    __atomic_compare_exchange_n(&tally()->look_state, &asked, static_cast<uint32_t>(look_closed), false,
                                __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    return;
  }
}

}  // namespace memhook
