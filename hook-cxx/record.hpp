// From a call to an event: which thread records, and what it records.
//
// The ring's `outer` states what this thread is doing: 0: nothing; frame: inside a hooked call (calls made by it are
// part of it: operator new calling malloc is one event, of kind new); frame | 1: recording. A signal handler that
// allocates while we record is skipped and counted.
#pragma once
#include "access.hpp"
#include "call_times.hpp"
#include "folding.hpp"
#include "looks.hpp"
#include "nested.hpp"

namespace memhook {

[[gnu::noinline, gnu::cold]] inline bool enter_nested(RingHeader* ring, uint64_t frame) {
  uint64_t outer = ring->outer;
  if (outer & 1) {
    __atomic_store_n(&ring->reentrant, ring->reentrant + 1, __ATOMIC_RELAXED);
    return false;
  }
  // A stack grows down: a call made inside the outer call has a lower frame. A frame at or above it means that the
  // outer call was left by longjmp.
  if (frame < outer && !judge_nested(ring, frame, outer)) return false;
  ring->outer = frame;
  return true;
}

// Begins a hooked call; returns false if it passes through without recording.
[[gnu::always_inline]] inline bool enter(RingHeader* ring, Frame frame) {
  uint64_t f = reinterpret_cast<uint64_t>(frame);
  if (__builtin_expect(ring->outer != 0, 0)) return enter_nested(ring, f);
  ring->outer = f;
  return true;
}

[[gnu::always_inline]] inline void leave(RingHeader* ring) {
  asm volatile("" ::: "memory");  // a signal handler must see our writes in this order
  ring->outer = 0;
  asm volatile("" ::: "memory");
}

[[gnu::always_inline]] inline void begin_recording(RingHeader* ring, Frame frame) {
  ring->outer = reinterpret_cast<uint64_t>(frame) | 1;
  asm volatile("" ::: "memory");
}

[[gnu::always_inline]] inline void end_recording(RingHeader* ring, Frame frame) {
  asm volatile("" ::: "memory");
  ring->outer = reinterpret_cast<uint64_t>(frame);
  asm volatile("" ::: "memory");
}

// Decides whether to record an allocation, unless all allocations are recorded. pre: begin_recording() was called.
[[gnu::noinline, gnu::cold]] inline uint32_t decide(RingHeader* ring, uint64_t size) {
  uint32_t flags = gate().flags;
  uint32_t decided = flags & flag_budget ? decide_by_order(ring, size) : uint32_t{decide_sample(ring, size)};
  if (!(flags & flag_call_times) || decided == is_passed) return decided;
  if (ring->sampling == records_samples) return decided == is_timed ? decided : time_call(ring);
  // With a budget, every other check is for this.
  if (decided != is_timed || (draw_random(ring) >> 32 & 1)) return decided;
  choose_call(ring);
  return is_recorded;
}
[[gnu::noinline, gnu::cold]] inline uint32_t decide_by_time(RingHeader* ring, Frame frame) {
  begin_recording(ring, frame);
  uint32_t decided = decide_call_time(ring);
  end_recording(ring, frame);
  return decided;
}

// Returns true if this allocation is recorded. Called once, before the allocation is made. pre: enter() returned true.
[[gnu::always_inline]] inline uint32_t is_sample(RingHeader* ring, Frame frame, uint64_t size) {
  if (__builtin_expect(ring->sampling == records_all, 1)) return is_recorded;
  // No block can have such a size, and subtracting it would increase the countdown.
  if (static_cast<int64_t>(size) < 0) return is_passed;
  if (ring->sampling == wants_call_time) return decide_by_time(ring, frame);
  ring->sample_left -= size;
  if (static_cast<int64_t>(ring->sample_left) >= 0) return is_passed;
  begin_recording(ring, frame);
  uint32_t decided = decide(ring, size);
  end_recording(ring, frame);
  return decided;
}

// Makes the same decision after the call, when it is too late to time the call.
[[gnu::always_inline]] inline uint32_t is_sample_behind(RingHeader* ring, Frame frame, uint64_t size) {
  uint32_t decided = is_sample(ring, frame, size);
  return decided == is_call_timed ? is_a_sample : decided;
}

// Each recorder is one function for all wrappers. So the hot code stays in the instruction cache for every allocator
// function, and the hook is small enough to load quickly. Each recorder has two parts. The first part does what nearly
// every event needs, calls nothing and therefore saves nothing on the stack. It leaves everything else to the second
// part, by a jump.

// pre: begin_recording() was called.
[[gnu::noinline]] inline void record_allocation_slowly(RingHeader* ring, uint32_t function, Frame frame, void* block,
                                                       uint64_t size) {
  auto address = reinterpret_cast<uint64_t>(block);
  bool is_entered = (gate().flags & flag_live_filter) && (noting() != marks_pages || ring->sampling != records_all);
  if (!is_entered) note_recorded(block);
  uint32_t stack = capture_stack(ring, function, frame);
  // The allocator's own synchronization ensures that this number is at least that of the last release.
  uint32_t sequence = __atomic_load_n(sequence_word(address), __ATOMIC_ACQUIRE);
  if (reserve(ring)) {
    if (is_entered) enter_recorded(address);
    bool is_drawn = ring->drawn_head == ring->head;
    if (__builtin_expect(ring->call_counts != 0, 0)) write_call_time(ring, size, stack);
    commit(ring, op_allocation, address, sequence, size, stack);
    if ((gate().flags & flag_accesses) && !(address & key_bit)) begin_accesses(address, size);
    if (__builtin_expect(is_drawn, 0) && !(address & key_bit)) wait_for_look(ring, address, size);
  } else {
    // The event is lost, and its time must not be attributed to the next event.
    ring->call_counts = 0;
  }
  end_recording(ring, frame);
}

// pre: enter() returned true, and `block` was just returned by the allocator.
[[gnu::noinline]] inline void record_allocation(RingHeader* ring, uint32_t function, Frame frame, void* block,
                                                uint64_t size) {
  begin_recording(ring, frame);
  uint32_t stack = gate().simple ? remembered_stack(ring, function, frame) : 0;
  if (__builtin_expect(stack == 0 || !has_room(ring) || size >= 0xffff'ffff, 0))
    return record_allocation_slowly(ring, function, frame, block, size);
  note_recorded(block);
  auto address = reinterpret_cast<uint64_t>(block);
  // As above.
  uint32_t sequence = __atomic_load_n(sequence_word(address), __ATOMIC_ACQUIRE);
  commit_simple(ring, op_allocation, address, sequence, size, stack);
  end_recording(ring, frame);
}

// pre: begin_recording() was called.
[[gnu::noinline]] inline void record_release_slowly(RingHeader* ring, uint32_t function, Frame frame, uint64_t op,
                                                    void* block) {
  auto address = reinterpret_cast<uint64_t>(block);
  uint32_t stack = 0;
  if (gate().flags & flag_release_stacks) stack = capture_stack(ring, function, frame, true);
  if ((gate().flags & flag_accesses) && !(address & key_bit)) end_accesses(ring, address);
  if (reserve(ring)) {
    uint32_t sequence = next_release(address);
    commit(ring, op, address, sequence, 0, stack);
  }
  if (__builtin_expect(ring->timed_from != 0, 0))
    end_timing(ring, &tally()->timed_releases, &tally()->timed_release_counts);
  end_recording(ring, frame);
}

// pre: begin_recording() was called.
[[gnu::noinline]] inline void record_release_of_last(RingHeader* ring, Frame frame, uint64_t address) {
  if (!fold(ring, address)) commit_simple(ring, op_release, address, next_release(address), 0, 0);
  end_recording(ring, frame);
}

// pre: enter() returned true; the allocator has not seen the release yet.
[[gnu::noinline]] inline void record_release(RingHeader* ring, uint32_t function, Frame frame, uint64_t op,
                                             void* block) {
  begin_recording(ring, frame);
  if (__builtin_expect(!gate().simple_releases || (gate().flags & flag_release_stacks) || !has_room(ring), 0))
    return record_release_slowly(ring, function, frame, op, block);
  auto address = reinterpret_cast<uint64_t>(block);
  if (is_of_last_event(ring, address) && op == op_release && gate().folds)
    return record_release_of_last(ring, frame, address);
  commit_simple(ring, op, address, next_release(address), 0, 0);
  end_recording(ring, frame);
}

}  // namespace memhook
