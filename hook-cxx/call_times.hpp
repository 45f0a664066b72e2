// Times the allocator: sometimes a random allocation is timed, from the call of the original to its return.
//
// A ring's `limit` is reached after a random number of events, as with a budget (budget.hpp). One of the allocations
// after that is timed, also chosen at random, so that allocations after many releases are not chosen more often.
// Between two of these limits nothing is checked. Sampled allocations are already chosen at random, so each of them is
// timed; with --sample, that is many.
//
// The event contains everything that a sum needs, because the allocation's own event may be lost or arrive in another
// pass.
#pragma once
#include "budget.hpp"

namespace memhook {

// Starts to time a call, which follows immediately.
[[gnu::noinline, gnu::cold]] inline uint32_t time_call(RingHeader* ring) {
  uint64_t first = cpu::time_stamp(), second = cpu::time_stamp();
  ring->call_stamp = second - first;
  ring->call_from = second;
  return is_call_timed;
}

// Ends the timing. A cold function begins at an address of its own, so this causes at most one miss of the instruction
// cache.
[[gnu::always_inline]] inline void end_call_time(RingHeader* ring) {
  uint64_t taken = cpu::time_stamp() - ring->call_from;
  taken = taken > ring->call_stamp ? taken - ring->call_stamp : 1;
  ring->call_counts = taken < 0xffff'ffff ? taken : 0xffff'ffff;
}

// Decides how to record an allocation while an upcoming allocation is to be timed.
inline uint32_t decide_call_time(RingHeader* ring) {
  if (ring->calls_to_timed > 0) {
    ring->calls_to_timed--;
    return is_recorded;
  }
  ring->sampling = records_all;
  // The next event checks again whether the ring is nearly full.
  ring->limit = ring->head;
  return time_call(ring);
}

// pre: reserve() returned true, for more events than these.
[[gnu::noinline, gnu::cold]] inline void write_call_time(RingHeader* ring, uint64_t size, uint32_t stack) {
  uint64_t head = ring->head;
  event_at(ring, head) = {(size & address_mask) | (op_call_time & 7) << 45 | (op_call_time >> 3) << 48,
                          ring->call_counts | static_cast<uint64_t>(stack) << 32};
  ring->call_counts = 0;
  __atomic_store_n(&ring->head, head + 1, __ATOMIC_RELEASE);
}

}  // namespace memhook
