// --overhead: samples at a distance that the attacher orders, so that tracing stays within a budget.
//
// The order is one word (`sampling_order`). A thread that records everything checks the order after a random number of
// events. Between two checks this costs nothing: the ring's `limit` ends there, as it does when the ring is full. A
// thread that samples checks the order after each `look_bytes` of further allocations. As with --on-full adapt, an
// event in the ring marks the beginning of a distance, and a change is decided after one allocation and made before the
// next. Everything else is as with --sample: the choice of calls that are skipped (selective.hpp), and of releases that
// are recorded (recorded_blocks.hpp). Intervals between samples are exponentially distributed, so the rest of an
// interval may be discarded at any such moment.
//
// At these checks, something is timed: the next allocation to be recorded, or a release, if the event that reached the
// limit is a release. A skipped call is too short to be timed alone, so a few of them are timed together.
#pragma once
#include "adapting.hpp"

namespace memhook {

// Decision of is_sample() about an allocation. The last three values require record_drawn(). is_call_timed is decided
// when nothing happens between the decision and the call.
inline constexpr uint32_t is_passed = 0, is_recorded = 1, is_a_sample = 2, is_timed = 3, is_call_timed = 4;

inline constexpr uint64_t look_bytes = 32 << 10;
// Share (1/n) of the samples that are timed: time stamps cost about as much as the rest of a recording.
inline constexpr uint64_t samples_a_timing = 16;
// Share (1/n) of the timings that concern skipped calls.
inline constexpr uint64_t timings_a_pass_timing = 8;
// Longer than any recording, or a few skipped calls, can take: the thread must have waited for a processor.
inline constexpr uint64_t most_counts = 1 << 18, most_pass_counts = 1 << 13;

inline void add_count(uint64_t* counter, uint64_t more) { __atomic_fetch_add(counter, more, __ATOMIC_RELAXED); }

// Starts to time an action of the thread. The start time is stored in the ring: on the stack, it would be below the
// part of the stack that a recording uses.
[[gnu::noinline, gnu::cold]] inline void begin_timing(RingHeader* ring) {
  uint64_t first = cpu::time_stamp(), second = cpu::time_stamp();
  ring->timed_stamp = second - first;
  ring->timed_from = second;
}

[[gnu::noinline, gnu::cold]] inline void end_timing(RingHeader* ring, uint64_t* times, uint64_t* counts) {
  uint64_t taken = cpu::time_stamp() - ring->timed_from;
  ring->timed_from = 0;
  if (taken > most_counts || ring->timed_stamp > most_counts) return;
  add_count(times, 1);
  add_count(counts, taken);
  add_count(&tally()->timed_stamp_counts, ring->timed_stamp);
}

// Starts to time a release if a timing is due. pre: begin_recording() was called.
[[gnu::noinline, gnu::cold]] inline void look_before_release(RingHeader* ring) {
  if (!look_for_room(ring) || !is_time_to_look(ring)) return;
  look_at_order(ring);
  // This leads to the end of record_release_slowly().
  ring->limit = ring->head;
  begin_timing(ring);
}

// With the live filter: removes a block that is about to be released. Returns true if the block was in the filter, so
// that its release has to be recorded. With a budget, the removal is sometimes timed. pre: begin_recording() was
// called.
[[gnu::noinline]] inline bool leave_and_time(RingHeader* ring, uint64_t address) {
  if ((gate().flags & flag_budget) && !has_room(ring)) look_before_release(ring);
  bool is_recorded_one = leave_recorded(address);
  if (!is_recorded_one) ring->timed_from = 0;
  return is_recorded_one;
}

inline uint32_t sample_or_timed(RingHeader* ring) {
  return draw_random(ring) >> 32 & (samples_a_timing - 1) ? is_a_sample : is_timed;
}

// Sets the number of bytes to the next sample or check.
inline void count_down(RingHeader* ring, uint64_t bytes) {
  ring->sample_left = bytes < look_bytes ? bytes : look_bytes;
  ring->sample_rest = bytes - ring->sample_left;
}

// Starts the ordered sampling. Returns the decision about this allocation.
inline uint32_t begin_order(RingHeader* ring, uint64_t size) {
  uint64_t order = __atomic_load_n(&tally()->sampling_order, __ATOMIC_RELAXED);
  uint64_t largest = gate().sample_bytes;
  if (order > largest) order = largest;
  if (!publish_sampling(ring, order)) {
    // The thread has lost its ring, or the ring is full and events are dropped. Nothing has changed, and the next
    // allocation tries again.
    ring->sample_left = ~0ull;
    if (ring->sampling == wants_order) return is_recorded;
    return draw_interval(ring) < size ? is_a_sample : is_passed;
  }
  if (order == 0) {
    ring->sampling = records_all;
    ring->sample_left = ~0ull;
    ring->sample_rest = 0;
    ring->sample_shift = 0;
    return is_recorded;
  }
  ring->sample_shift = static_cast<uint64_t>(__builtin_clzll(order) - __builtin_clzll(largest));
  ring->sampling = records_samples;
  uint64_t bytes = draw_interval(ring);
  bool is_one = bytes < size;
  count_down(ring, is_one ? draw_interval(ring) : bytes - size);
  return is_one ? sample_or_timed(ring) : is_passed;
}

// Called when the countdown is below 0. pre: begin_recording() was called.
[[gnu::noinline, gnu::cold]] inline uint32_t decide_by_order(RingHeader* ring, uint64_t size) {
  if (ring->sampling == wants_order || ring->sampling == wants_other_order) return begin_order(ring, size);
  if (ring->sampling == wants_timing) {
    ring->sampling = records_all;
    return is_timed;
  }
  // Number of bytes left until the sample, because sample_left is below 0.
  auto left = static_cast<int64_t>(ring->sample_left + ring->sample_rest);
  bool is_one = left < 0;
  uint64_t order = __atomic_load_n(&tally()->sampling_order, __ATOMIC_RELAXED);
  count_down(ring, is_one ? draw_interval(ring) : static_cast<uint64_t>(left));
  if (order != gate().sample_bytes >> ring->sample_shift) {
    ring->sampling = wants_other_order;
    ring->sample_left = ~0ull;
  }
  return is_one ? sample_or_timed(ring) : is_passed;
}

}  // namespace memhook
