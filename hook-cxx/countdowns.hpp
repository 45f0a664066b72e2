// The countdown with which a thread's wrappers pass on most allocations without recording them (selective.hpp).
//
// The countdown is the number of bytes until an allocation may have to be recorded, plus 1. A smaller allocation is
// passed without any other check. If the countdown is 0, every allocation is checked. It is above 0 only while the
// thread has a ring, takes samples, and is not in a call that is recorded in place of the calls that it makes; and only
// if no filter for larger sizes has to be checked. Meanwhile it replaces RingHeader::sample_left, which keeps the value
// from which the countdown began. A wrapper that has to check ends the countdown, and begins it again if it passes the
// allocation after all, so no other code of the hook needs to know the countdown. It does not depend on the gate:
// passing a call has the same effect as the program's own call, and writes nothing but the countdown.
//
// A thread finds its claim by its number (`hints`). Another thread may overwrite a hint at any time, so the number and
// the thread pointer in the claim decide whether the claim is the thread's own. Only that thread writes the countdown,
// until the ring has another owner. A new thread may get both the pointer and the number of a thread that has ended,
// before the ring has another owner. It then continues the countdown, and after that asks for a ring.
//
// In a fork child the gate is wiped, and no thread finds a countdown. With Gate::countdown_offset 0, the hook uses the
// lower half of the thread pointer as the thread's number, because the first word after the pointer is the pointer
// itself (psABI, TLS variant II). A thread that really has this number gets no countdown.
//
// If a signal handler allocates between a wrapper's load and store of the countdown, the handler's bytes or the
// interval that it has drawn are lost. Intervals are exponential, so the older interval is just as valid.
#pragma once
#include "ring.hpp"

namespace memhook {

// Returns the calling thread's claim if its hint leads to it, otherwise null. Values that are only compared need no
// atomic load, which the compiler would not fold into the comparison.
[[gnu::always_inline]] inline Claim* hinted_claim() {
  uint64_t thread_pointer = cpu::thread_pointer();
  uint32_t tid = *reinterpret_cast<const uint32_t*>(thread_pointer + gate().countdown_offset);
  uint64_t hint = once(claims.hints[tid % hint_count]);
  auto* claim = reinterpret_cast<Claim*>(reinterpret_cast<unsigned char*>(&claims) + hint);
  bool is_own = claim->tid == tid && claim->thread_pointer == thread_pointer;
  return __builtin_expect(is_own, 1) ? claim : nullptr;
}

[[gnu::always_inline]] inline void set_countdown(Claim* own, uint64_t countdown) {
  __atomic_store_n(&own->countdown, countdown, __ATOMIC_RELAXED);
}

// pre: the ring belongs to the calling thread, and its `sample_left` applies to the next allocation and is not
// negative.
inline void begin_countdown(const RingHeader* ring) {
  if (gate().countdown_offset == 0) return;
  Claim* claim = &claims.of_ring[number_of(ring)];
  uint32_t tid = once(claim->tid);
  if (tid == static_cast<uint32_t>(once(claim->thread_pointer))) return;
  auto hint = static_cast<uint32_t>(reinterpret_cast<uint64_t>(claim) - reinterpret_cast<uint64_t>(&claims));
  __atomic_store_n(&claims.hints[tid % hint_count], hint, __ATOMIC_RELAXED);
  set_countdown(claim, ring->sample_left + 1);
}

// Called before any action that needs the ring's `sample_left`, or during which allocations are not counted.
[[gnu::noinline, gnu::cold]] inline void end_countdown() {
  if (gate().countdown_offset == 0) return;
  Claim* claim = hinted_claim();
  if (!claim) {
    uint32_t epoch = gate_word();
    RingHeader* ring = epoch != 0 ? seated_ring(epoch) : nullptr;
    if (!ring) return;
    claim = &claims.of_ring[number_of(ring)];
  }
  uint64_t countdown = once(claim->countdown);
  if (countdown == 0) return;
  uint64_t word = word_if_owned(static_cast<uint64_t>(claim - claims.of_ring), claim->thread_pointer, claim->tid);
  if (word != 0) reinterpret_cast<RingHeader*>(word & ~0xfffull)->sample_left = countdown - 1;
  asm volatile("" ::: "memory");  // a signal handler finds one of the two
  set_countdown(claim, 0);
}

}  // namespace memhook
