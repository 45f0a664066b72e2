// --on-full adapt: a thread whose ring is repeatedly nearly full records samples of its allocations. At first it waits
// for space (`wait_allowance_ns` in ring.hpp). When it has used up its waiting time, it takes samples whenever its ring
// is nearly full.
//
// An event in the ring marks the beginning and the end of sampling. Between the two, allocations are recorded as with
// --sample: a Poisson process over the bytes, so that the attacher knows each block's probability. The beginning and
// the end depend on earlier records and never on the next allocation, so sums of recorded blocks, each divided by its
// probability, stay unbiased.
//
// A release is published unless its block was certainly skipped. A superfluous release is harmless, because the
// attacher ignores releases of blocks that it does not know. So the table of skipped blocks may forget, and needs no
// locked instruction: an entry is overwritten by the next block that needs it. It must never name a recorded block.
// Only the owner of a block stores its address, and a thread that records a block removes the block's address before
// another thread can release the block. The allocator's synchronization puts the stores of earlier owners before those
// of the next owner, so an entry that has lost an address never gets it back from earlier owners.
#pragma once
#include "selection.hpp"

namespace memhook {

// Bounds of the minimum duration of sampling. It begins at the shortest time, and doubles each time the ring soon fills
// up again, so that the cost of filling rings is rarely paid.
inline constexpr uint64_t shortest_sampling_ns = 20'000'000, longest_sampling_ns = 640'000'000;

inline uint8_t noting() { return __atomic_load_n(&gate().noting, __ATOMIC_RELAXED); }

// Adjacent blocks of 32 bytes and more have adjacent entries. Blocks of different arenas, which begin at multiples of
// 64 MiB, are spread out.
[[gnu::always_inline]] inline uint64_t* passed_entry(uint64_t address) {
  uint64_t arena = (address >> 26) * 0x9e3779b97f4a7c15;
  return in_report<uint64_t>(passed_blocks_offset) + (((address >> 5) ^ (arena >> 40)) & gate().table_mask);
}

[[gnu::always_inline]] inline bool was_passed(const void* block) {
  if (__builtin_expect(noting() != takes_passed_out, 1)) return false;
  auto address = reinterpret_cast<uint64_t>(block);
  return __atomic_load_n(passed_entry(address), __ATOMIC_RELAXED) == address;
}

// pre: the block is not recorded, and its allocator has just returned it.
[[gnu::always_inline]] inline void note_passed(const void* block) {
  if (gate().flags & flag_live_filter) return;  // that knows the recorded ones
  if (noting() == 0) __atomic_store_n(&gate().noting, takes_passed_out, __ATOMIC_RELAXED);
  auto address = reinterpret_cast<uint64_t>(block);
  __atomic_store_n(passed_entry(address), address, __ATOMIC_RELAXED);
}

// pre: the block will be recorded, its allocator has just returned it, and the thread is marked as recording.
[[gnu::always_inline]] inline void note_recorded(const void* block) {
  uint8_t what = noting();
  if (__builtin_expect(what == 0, 1)) return;
  auto address = reinterpret_cast<uint64_t>(block);
  if (what == marks_pages) return mark_unsure(address);
  uint64_t* entry = passed_entry(address);
  if (__atomic_load_n(entry, __ATOMIC_RELAXED) == address) __atomic_store_n(entry, 0ul, __ATOMIC_RELAXED);
}

inline uint64_t clock_now() { return __atomic_load_n(&tally()->clock_ns, __ATOMIC_RELAXED); }

// Returns the number of events that wait in the ring, in eighths of its slots.
inline uint64_t fill_eighths(const RingHeader* ring) {
  uint64_t waiting = ring->head - __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
  return waiting * 8 / (mask_of(ring) + 1);
}

// Publishes an event for the beginning of sampling (with its mean distance in bytes) or for its end (0).
inline bool publish_sampling(RingHeader* ring, uint64_t sample_bytes) {
  if (!reserve(ring)) return false;
  uint64_t head = ring->head;
  event_at(ring, head) = {op_sampling_change << 45, sample_bytes};
  __atomic_store_n(&ring->head, head + 1, __ATOMIC_RELEASE);
  return true;
}

inline void record_all(RingHeader* ring) {
  ring->sampling = records_all;
  // If there is no space for exact events, the next event waits for it.
  if (!look_for_room(ring) || !may_go_on(ring, 0)) ring->limit = ring->head;
}

inline void begin_samples(RingHeader* ring) {
  uint64_t now = clock_now();
  bool soon = ring->sampling_ns != 0 && now < ring->sampling_turn_ns + 4 * ring->sampling_ns;
  uint64_t longer = ring->sampling_ns < longest_sampling_ns ? 2 * ring->sampling_ns : longest_sampling_ns;
  ring->sampling_ns = soon ? longer : shortest_sampling_ns;
  ring->sampling_turn_ns = now + ring->sampling_ns;
  ring->sampling = records_samples;
  ring->sample_left = draw_interval(ring);
}

// Decides whether this allocation is recorded, when the countdown is below 0. pre: begin_recording() was called.
[[gnu::noinline, gnu::cold]] inline bool decide_sample(RingHeader* ring, uint64_t size) {
  if (ring->sampling == wants_samples) {
    // The attacher may have freed space meanwhile, so that sampling is not necessary.
    if (fill_eighths(ring) < 6 || !publish_sampling(ring, gate().sample_bytes)) {
      record_all(ring);
      return true;
    }
    begin_samples(ring);
    ring->sample_left -= size;
    if (static_cast<int64_t>(ring->sample_left) >= 0) return false;
  } else if (ring->sampling == wants_all && publish_sampling(ring, 0)) {
    ring->sampling_turn_ns = clock_now();
    record_all(ring);
    return true;
  }
  ring->sample_left = draw_interval(ring);
  ring->sampling = records_samples;
  if (fill_eighths(ring) == 0 && clock_now() >= ring->sampling_turn_ns) {
    ring->sampling = wants_all;
    ring->sample_left = ~0ull;
  }
  return true;
}

}  // namespace memhook
