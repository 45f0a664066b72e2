// Pairs: a release whose allocation is still the last event of the ring turns the two into one event, a pair, and equal
// pairs in a row are one event with a count. Short-lived allocations then use no further ring memory, whose cache lines
// would have to come back from the consumer's core.
//
// The attacher takes an event only in the pass after the pass that claimed it (`claimed`), at least 50 microseconds
// later, and no event below `claimed` is changed any more:
//
// - The owner stores `folding` before it loads `claimed`. If the load was too early to see a claim, it was early enough
//   that `folding` is visible by the time that events are taken: a store leaves the store buffer within that time, and
//   the interruption of a thread between the two empties the buffer.
// - While `folding` says that a fold is in progress, the attacher takes nothing that may change: the block's
//   allocation, whose release has not begun, and a pair before it. No event of another thread could have to wait for
//   either, regardless of how long the owner is stopped here.
// - `folding` is cleared after the fold's stores, and x86 keeps the order of stores: a reader that sees `folding`
//   cleared, or a later head, sees the result of the fold.
#pragma once
#include "ring.hpp"

namespace memhook {

inline constexpr uint64_t pair_step = 1ull << 48, most_pairs = 0xffff;
inline constexpr uint64_t sequence_mask = (1ull << 22) - 1;

inline uint64_t op_of(const RawEvent& event) { return (event.word0 >> 45) & 7; }

// Returns true if the last event is the allocation of `block`.
[[gnu::always_inline]] inline bool is_of_last_event(RingHeader* ring, uint64_t block) {
  uint64_t allocation = ((block >> 3) & address_mask) | op_allocation << 45;
  return ((event_at(ring, ring->head - 1).word0 ^ allocation) << 16) == 0;
}

// Returns true if the release is complete because it was folded. pre: is_of_last_event(), the thread is recording, and
// no stack of the release is wanted.
[[gnu::always_inline]] inline bool fold(RingHeader* ring, uint64_t block) {
  uint64_t head = ring->head;
  RawEvent& last = event_at(ring, head - 1);
  RawEvent& before = event_at(ring, head - 2);
  // Another thread may have released the block, and allocated a block at the same address. In that case, the release
  // has advanced the sequence number.
  uint64_t sequence = last.word0 >> 48 | last.word1 >> 58 << 16;
  uint64_t now = __atomic_load_n(sequence_word(block), __ATOMIC_ACQUIRE);
  if (((sequence ^ now) & sequence_mask) != 0) return false;
  // A tick may be due, and a large size is in a separate event.
  if (__atomic_load_n(&tally()->clock_ns, __ATOMIC_RELAXED) != ring->last_tick ||
      static_cast<uint32_t>(last.word1) == ~0u)
    return false;
  __atomic_store_n(&ring->folding, head + 1, __ATOMIC_RELAXED);
  asm volatile("" ::: "memory");
  uint64_t claimed = __atomic_load_n(&ring->claimed, __ATOMIC_ACQUIRE);
  bool folds = head > claimed;
  if (folds) {
    uint64_t same = (before.word0 ^ last.word0) & address_mask;
    same |= (before.word1 ^ last.word1) << 6;
    if (head > claimed + 1 && op_of(before) == op_pair && same == 0 && before.word0 >> 48 != most_pairs) {
      before.word0 += pair_step;
      __atomic_store_n(&ring->head, head - 1, __ATOMIC_RELEASE);
    } else {
      last.word1 = last.word1 << 6 >> 6;
      last.word0 = (last.word0 & address_mask) | op_pair << 45 | pair_step;
    }
  }
  __atomic_store_n(&ring->folding, 0ul, __ATOMIC_RELEASE);
  return folds;
}

}  // namespace memhook
