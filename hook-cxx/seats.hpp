// Finds the ring of the calling thread.
//
// The hook has no thread-local storage. To provide it, the loader would take C library locks on which the creation of
// stacks depends, and it might have no space left. If the hook is mapped without a loader, nothing could provide such
// storage at all. Therefore, a thread is identified by its thread pointer and its number. It finds both without a call:
// the number is a word in the C library's data at an offset from the thread pointer (Control::tid_offset, which the
// attacher has verified).
//
// claims  owner of each ring at the time when it claimed the ring. Only the owner of a ring writes its entry, after the
//         exchange of RingHeader::state that made it the owner.
// seats   hints, by a hash of the thread pointer: a thread pointer, and the word of its thread. Another thread may
//         overwrite a hint at any time, even between its two words. Then the claims are searched.
//
// A claim or a seat is valid only while the ring's header names the same thread. A thread pointer alone is not
// sufficient: the C library gives the memory of an ended thread to a new thread, which has another number. The header
// alone is not sufficient either: the attacher clears it when it takes back the ring of an ended thread, and between
// the exchange of the state and the write of the entry, a ring that is being claimed still has the claim of its last
// owner. All three agree for another thread only if it has the pointer and the number of an owner that has ended,
// before the attacher has noticed the end. Then nothing else writes into the ring, and the new thread continues it. A
// seat whose two words are from different threads leads to a ring whose header names the other thread.
//
// A claim also has the thread's countdown, see countdowns.hpp.
//
// Only words of the current attach are followed: the memory of an earlier attach may be gone. Epochs are reused, so
// each attach begins with empty seats.
//
// Threads that find no free ring count down to their next attempt in `waiting`, indexed by the same hash. The words
// contain the threads' numbers, so a new thread that inherits the memory of an ended thread tries immediately. Two
// threads with the same word evict each other, which only changes how often they try.
#pragma once
#include "arch.hpp"
#include "state.hpp"

namespace memhook {

// Has its own cache line, because its thread writes the countdown continuously.
struct alignas(64) Claim {
  uint64_t thread_pointer;
  uint64_t countdown;
  uint32_t tid;
  uint32_t epoch;
};

inline constexpr uint64_t hint_count = 4096;

struct Claims {
  // Belongs to no thread. Hints point here until they can point at a real claim.
  Claim of_nobody;
  // Byte offsets of claims in this table, indexed by the number of the claiming thread.
  uint32_t hints[hint_count];
  Claim of_ring[max_rings];
};

struct alignas(16) Seat {
  uint64_t thread_pointer;
  uint64_t word;
};

inline constexpr uint64_t seat_count = 4096, seat_window = 4, waiting_count = 256;

// A 12-bit epoch above 24 other bits (state.hpp). A thread's number has at most 22 bits (PID_MAX_LIMIT).
inline constexpr uint64_t waiting_bits = 36;

inline Claims claims;
// Frame of the last call through the passage, for the thread of each ring.
inline uint64_t passed_frames[max_rings];
inline Seat seats[seat_count];
inline uint64_t waiting[waiting_count];

// Thread control blocks may be any power of two apart. The high bits of the product depend on all bits of the address.
inline uint64_t hash_of_thread(uint64_t thread_pointer) { return (thread_pointer * 0x9e37'79b9'7f4a'7c15ull) >> 40; }

inline uint64_t ring_stride() { return ring_prefix_bytes + trusted.ring_bytes; }

// Returns the index of a ring.
inline uint64_t number_of(const RingHeader* ring) {
  uint64_t offset = reinterpret_cast<uint64_t>(ring) - reinterpret_cast<uint64_t>(region) - rings_offset;
  static_assert((max_rings & (max_rings - 1)) == 0);
  return offset / ring_stride() & (max_rings - 1);
}

[[gnu::always_inline]] inline uint32_t kept_number(uint64_t thread_pointer) {
  return *reinterpret_cast<const volatile uint32_t*>(thread_pointer + gate().tid_offset);
}

// In a process that was forked without the C library's knowledge, the number stored for the first thread is that of the
// forking thread in the parent. seated_ring() never recognizes that thread, but thread_word() does.
inline uint32_t own_number(uint64_t thread_pointer) {
  uint32_t kept = kept_number(thread_pointer);
  return kept == gate().stale_number ? gate().true_number : kept;
}

// Returns true if a ring's header names the thread. pre: it is a ring of the last attach.
[[gnu::always_inline]] inline bool is_ring_of(uint64_t address, uint32_t tid) {
  auto* ring = reinterpret_cast<RingHeader*>(address);
  return __atomic_load_n(&ring->tid, __ATOMIC_RELAXED) == tid;
}

// Returns the word for ring `i` if it belongs to this thread, otherwise 0.
[[gnu::always_inline]] inline uint64_t word_if_owned(uint64_t i, uint64_t thread_pointer, uint32_t tid) {
  const Claim& claim = claims.of_ring[i];
  if (__atomic_load_n(&claim.thread_pointer, __ATOMIC_RELAXED) != thread_pointer) return 0;
  if (__atomic_load_n(&claim.tid, __ATOMIC_RELAXED) != tid) return 0;
  if (claim.epoch != gate().last_epoch) return 0;
  uint64_t ring = reinterpret_cast<uint64_t>(region) + rings_offset + i * ring_stride();
  return is_ring_of(ring, tid) ? ring | claim.epoch : 0;
}

inline void take_seat(uint64_t home, uint64_t thread_pointer, uint64_t word) {
  Seat* free = &seats[home % seat_count];
  for (uint64_t k = 0; k < seat_window; k++) {
    Seat* there = &seats[(home + k) % seat_count];
    uint64_t now = __atomic_load_n(&there->thread_pointer, __ATOMIC_RELAXED);
    if (now == thread_pointer || now == 0) {
      free = there;
      break;
    }
  }
  __atomic_store_n(&free->thread_pointer, 0ull, __ATOMIC_RELAXED);
  __atomic_store_n(&free->word, word, __ATOMIC_RELEASE);
  __atomic_store_n(&free->thread_pointer, thread_pointer, __ATOMIC_RELEASE);
}

// Returns the ring of a seat if it belongs to the thread in this epoch, otherwise null.
[[gnu::always_inline]] inline RingHeader* ring_of_seat(const Seat& seat, uint64_t thread_pointer, uint32_t tid,
                                                       uint32_t epoch) {
  if (__builtin_expect(__atomic_load_n(&seat.thread_pointer, __ATOMIC_RELAXED) != thread_pointer, 0)) return nullptr;
  uint64_t word = __atomic_load_n(&seat.word, __ATOMIC_RELAXED);
  if (__builtin_expect((word & 0xfff) != epoch, 0)) return nullptr;
  if (__builtin_expect(!is_ring_of(word - epoch, tid), 0)) return nullptr;
  return reinterpret_cast<RingHeader*>(word - epoch);
}

// The thread has no ring, or another thread has overwritten its seat.
[[gnu::noinline, gnu::cold]] inline uint64_t search_claims(uint64_t home, uint64_t thread_pointer, uint32_t tid) {
  for (uint64_t i = 0; i < max_rings; i++)
    if (uint64_t word = word_if_owned(i, thread_pointer, tid)) {
      take_seat(home, thread_pointer, word);
      return word;
    }
  uint64_t word = __atomic_load_n(&waiting[home % waiting_count], __ATOMIC_RELAXED);
  return word >> waiting_bits == tid ? word & ((1ull << waiting_bits) - 1) : 0;
}

// Returns the calling thread's ring in this epoch if its seat is in the usual place. Otherwise returns null, and the
// caller must call thread_word(). `epoch`: the gate's word, except 0, which means that the hook is suspended and must
// not find a ring.
[[gnu::always_inline]] inline RingHeader* seated_ring(uint32_t epoch) {
  uint64_t thread_pointer = cpu::thread_pointer();
  const Seat& seat = seats[hash_of_thread(thread_pointer) % seat_count];
  return ring_of_seat(seat, thread_pointer, kept_number(thread_pointer), epoch);
}

// Returns the word of the calling thread, see state.hpp; 0 if it has none from the last attach.
[[gnu::noinline]] inline uint64_t thread_word() {
  uint64_t thread_pointer = cpu::thread_pointer(), home = hash_of_thread(thread_pointer);
  uint32_t epoch = gate().last_epoch;
  if (epoch == 0) return 0;
  uint32_t tid = own_number(thread_pointer);
  for (uint64_t k = 0; k < seat_window; k++)
    if (RingHeader* ring = ring_of_seat(seats[(home + k) % seat_count], thread_pointer, tid, epoch))
      return reinterpret_cast<uint64_t>(ring) | epoch;
  return search_claims(home, thread_pointer, tid);
}

// Called when an attach begins, or in a new fork child: no earlier claim belongs to a thread of this attach.
inline void clear_claims() {
  for (Claim& claim : claims.of_ring)
    if (__atomic_load_n(&claim.thread_pointer, __ATOMIC_RELAXED) != 0)
      __atomic_store_n(&claim.thread_pointer, 0ull, __ATOMIC_RELAXED);
}

// Called when an attach begins.
inline void clear_seats() {
  // A seat that was never taken may be on a page that is not backed by memory yet.
  for (Seat& seat : seats)
    if (__atomic_load_n(&seat.thread_pointer, __ATOMIC_RELAXED) != 0)
      __atomic_store_n(&seat.thread_pointer, 0ull, __ATOMIC_RELAXED);
}

// Called when the thread has claimed this ring.
[[gnu::noinline, gnu::cold]] inline void own_ring(RingHeader* ring, uint32_t epoch) {
  uint64_t thread_pointer = cpu::thread_pointer();
  uint32_t tid = own_number(thread_pointer);
  uint64_t first = reinterpret_cast<uint64_t>(region) + rings_offset;
  uint64_t mine = (reinterpret_cast<uint64_t>(ring) - first) / ring_stride();
  // A signal handler may have claimed a ring for this thread while the thread itself was claiming one. The thread keeps
  // only one of the two. The other is returned when the thread ends.
  for (uint64_t i = 0; i < max_rings; i++)
    if (i != mine && word_if_owned(i, thread_pointer, tid))
      __atomic_store_n(&claims.of_ring[i].thread_pointer, 0ull, __ATOMIC_RELAXED);
  Claim& claim = claims.of_ring[mine];
  __atomic_store_n(&claim.countdown, 0ull, __ATOMIC_RELAXED);
  __atomic_store_n(&claim.tid, tid, __ATOMIC_RELAXED);
  __atomic_store_n(&claim.epoch, epoch, __ATOMIC_RELAXED);
  __atomic_store_n(&claim.thread_pointer, thread_pointer, __ATOMIC_RELEASE);
  take_seat(hash_of_thread(thread_pointer), thread_pointer, reinterpret_cast<uint64_t>(ring) | epoch);
}

// Called when the thread has no ring. `word` contains the countdown to its next attempt.
inline void own_no_ring(uint64_t word) {
  uint64_t thread_pointer = cpu::thread_pointer(), home = hash_of_thread(thread_pointer);
  uint64_t tid = own_number(thread_pointer);
  __atomic_store_n(&waiting[home % waiting_count], tid << waiting_bits | word, __ATOMIC_RELAXED);
}

}  // namespace memhook
