// The countdown by which a thread's wrappers pass most allocations (selective.hpp).
//
// It is the number of bytes until an allocation may have to be recorded, plus 1: a smaller allocation is passed, and
// nothing else has to be looked at. At 0 every allocation asks. It is above 0 only while all of this holds: the thread
// has a ring, is not inside a recorded call, and samples; and no other filter has to be asked. Then it stands for
// RingHeader::sample_left, which has the value from which it started. The wrapper that asks ends the countdown, and
// starts it again if it passes the allocation after all; no other code of the hook has to know it. A countdown needs no
// open gate: a call that is passed does what the program's call would do, and writes nothing but the countdown.
//
// A thread finds its claim by its number (`hints`). The number and the thread pointer in the claim decide whether it is
// its own, so another thread may overwrite a hint at any time. Only the claim's thread writes the countdown until the
// ring has another owner. When it has ended, the countdown stays what it was until then: a new thread that gets both
// its pointer and its number meanwhile continues it, and then asks for a ring.
//
// In a fork child the gate is wiped, and no thread finds a countdown: with Gate::countdown_offset 0, the word that is
// taken for its number is the lower half of its thread pointer, which is the first word behind the pointer (psABI, TLS
// variant II). A thread that really has this number gets no countdown.
//
// A signal handler that interrupts a wrapper between load and store of the countdown takes bytes from it in vain, or
// draws an interval that is forgotten. Intervals are exponential, so the older one is as good.
#pragma once
#include "ring.hpp"

namespace memhook {

// Returns the calling thread's claim if its hint leads there, otherwise null. What is only compared is loaded in the
// ordinary way: the compiler does not fold an atomic load into a comparison.
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

// pre: the ring is the calling thread's, and its next allocation has its `sample_left`, which is not below 0.
inline void begin_countdown(const RingHeader* ring) {
  if (gate().countdown_offset == 0) return;
  Claim* claim = &claims.of_ring[number_of(ring)];
  uint32_t tid = once(claim->tid);
  if (tid == static_cast<uint32_t>(once(claim->thread_pointer))) return;
  auto hint = static_cast<uint32_t>(reinterpret_cast<uint64_t>(claim) - reinterpret_cast<uint64_t>(&claims));
  __atomic_store_n(&claims.hints[tid % hint_count], hint, __ATOMIC_RELAXED);
  set_countdown(claim, ring->sample_left + 1);
}

// Called before anything that needs the ring's `sample_left`, or during which allocations are not counted.
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
