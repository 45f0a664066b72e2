// Which ring belongs to the calling thread, in the object that is mapped by hand.
//
// Only the loader can give out initial-exec TLS, so a thread is recognized by its thread pointer and its
// number instead, both of which it finds without a call: the number is a word of what the C library
// keeps behind the thread pointer (Control::tid_offset, which the attacher has verified).
//
// claims  what each ring's owner was when it claimed the ring. Only the owner of a ring writes its
//         entry, after the exchange of RingHeader::state that made it the owner.
// seats   hints: ring number + 1, by a hash of the thread pointer. A hint may be wrong or be overwritten by
//         another thread at any time; then the claims are searched.
//
// A claim is good only while the ring's header names the same thread. A thread pointer alone would not
// do: the C library hands the memory of an ended thread to a new one, whose number is another. The
// header alone would not do either: the attacher clears it when it takes the ring of an ended thread
// back, and between the exchange of the state and the write of the entry, a ring that somebody claims
// has a claim of its last owner. All three agree for another thread only if that has the pointer and the
// number of an owner that has ended and has not been missed yet: then nobody else writes into the ring,
// and the new thread carries it on.
//
// Threads that find no ring free count down in `waiting`, by the same hash, in words that bear their numbers:
// a new thread with the memory of one that has ended asks at once. Two threads with one word push each
// other out of it, which changes only how often they ask.
#pragma once
#include "arch.hpp"

namespace memhook {

struct Claim {
  uint64_t thread_pointer;
  uint32_t tid;
  uint32_t epoch;
};

inline constexpr uint64_t seat_count = 4096, seat_window = 4, waiting_count = 256;

// An epoch of 12 bits above 24 others (state.hpp). A thread's number has 22 bits at most (PID_MAX_LIMIT).
inline constexpr uint64_t waiting_bits = 36;

extern Claim claims[max_rings];
extern uint16_t seats[seat_count];
extern uint64_t waiting[waiting_count];

// Thread control blocks are some power of two apart; the high bits of the product depend on all of them.
inline uint64_t hash_of_thread(uint64_t thread_pointer) {
  return (thread_pointer * 0x9e37'79b9'7f4a'7c15ull) >> 40;
}

inline uint64_t ring_stride() { return ring_prefix_bytes + trusted.ring_bytes; }

// The word for ring `i` if it is this thread's, else 0.
[[gnu::always_inline]] inline uint64_t word_if_owned(uint64_t i, uint64_t thread_pointer, uint32_t tid) {
  const Claim& claim = claims[i];
  if (__atomic_load_n(&claim.thread_pointer, __ATOMIC_RELAXED) != thread_pointer) return 0;
  if (__atomic_load_n(&claim.tid, __ATOMIC_RELAXED) != tid) return 0;
  uint64_t ring = reinterpret_cast<uint64_t>(region) + rings_offset + i * ring_stride();
  if (__atomic_load_n(&reinterpret_cast<RingHeader*>(ring)->tid, __ATOMIC_RELAXED) != tid) return 0;
  return ring | claim.epoch;
}

inline void take_seat(uint64_t home, uint64_t ring) {
  auto seat = static_cast<uint16_t>(ring + 1);
  uint16_t* free = &seats[home % seat_count];
  for (uint64_t k = 0; k < seat_window; k++) {
    uint16_t* there = &seats[(home + k) % seat_count];
    uint16_t now = __atomic_load_n(there, __ATOMIC_RELAXED);
    if (now == seat) return;
    if (now == 0) {
      free = there;
      break;
    }
  }
  __atomic_store_n(free, seat, __ATOMIC_RELAXED);
}

// The thread has no ring, or another thread has taken its seat.
[[gnu::noinline, gnu::cold]] inline uint64_t search_claims(uint64_t home, uint64_t thread_pointer,
                                                           uint32_t tid) {
  for (uint64_t i = 0; i < max_rings; i++)
    if (uint64_t word = word_if_owned(i, thread_pointer, tid)) {
      take_seat(home, i);
      return word;
    }
  uint64_t word = __atomic_load_n(&waiting[home % waiting_count], __ATOMIC_RELAXED);
  return word >> waiting_bits == tid ? word & ((1ull << waiting_bits) - 1) : 0;
}

inline uint32_t own_number(uint64_t thread_pointer) {
  return *reinterpret_cast<const volatile uint32_t*>(thread_pointer + trusted.tid_offset);
}

[[gnu::always_inline]] inline uint64_t thread_word() {
  uint64_t thread_pointer = cpu::thread_pointer(), home = hash_of_thread(thread_pointer);
  uint32_t tid = own_number(thread_pointer);
  for (uint64_t k = 0; k < seat_window; k++) {
    uint64_t seat = __atomic_load_n(&seats[(home + k) % seat_count], __ATOMIC_RELAXED);
    if (seat == 0) continue;
    if (uint64_t word = word_if_owned(seat - 1, thread_pointer, tid)) return word;
  }
  return search_claims(home, thread_pointer, tid);
}

// The thread has claimed this ring.
[[gnu::noinline, gnu::cold]] inline void own_ring(RingHeader* ring, uint32_t epoch) {
  uint64_t thread_pointer = cpu::thread_pointer();
  uint32_t tid = own_number(thread_pointer);
  uint64_t first = reinterpret_cast<uint64_t>(region) + rings_offset;
  uint64_t mine = (reinterpret_cast<uint64_t>(ring) - first) / ring_stride();
  // A signal handler may have claimed one while this thread was about to. One of the two has to be the
  // thread's; the other goes back when the thread has ended.
  for (uint64_t i = 0; i < max_rings; i++)
    if (i != mine && word_if_owned(i, thread_pointer, tid))
      __atomic_store_n(&claims[i].thread_pointer, 0ull, __ATOMIC_RELAXED);
  __atomic_store_n(&claims[mine].tid, tid, __ATOMIC_RELAXED);
  __atomic_store_n(&claims[mine].epoch, epoch, __ATOMIC_RELAXED);
  __atomic_store_n(&claims[mine].thread_pointer, thread_pointer, __ATOMIC_RELEASE);
  take_seat(hash_of_thread(thread_pointer), mine);
}

// The thread has no ring, and `word` says when it asks again.
inline void own_no_ring(uint64_t word) {
  uint64_t thread_pointer = cpu::thread_pointer(), home = hash_of_thread(thread_pointer);
  uint64_t tid = own_number(thread_pointer);
  __atomic_store_n(&waiting[home % waiting_count], tid << waiting_bits | word, __ATOMIC_RELAXED);
}

}  // namespace memhook
