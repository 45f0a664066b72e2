// Calls that are recorded by their wrappers.
//
// A wrapper keeps a frame (rbp) so that its caller's rbp and return address are at known offsets. Its personality
// routine runs when an exception of operator new passes through the frame, and ends the call.
#pragma once
#include "birth.hpp"
#include "countdowns.hpp"
#include "passage.hpp"
#include "record.hpp"

namespace memhook {

// Called by the unwinder for each wrapper frame that it passes. In the cleanup phase, the frame is left. Itanium C++
// ABI, Exception Handling, section 1.6: _UA_CLEANUP_PHASE is 2, _URC_CONTINUE_UNWIND 8.
extern "C" [[gnu::visibility("hidden"), gnu::used]] int memhook_personality(int, int actions, uint64_t, void*, void*) {
  uint64_t word = thread_word(), epoch = word & 0xfff;
  // Clears the mark even after the detach. Otherwise, an exception that began before the detach would leave the thread
  // marked as inside forever. In a fork child, whose gate is wiped, the mark stays, because the ring belongs to the
  // parent.
  if ((actions & 2) && epoch != 0 && gate().last_epoch == epoch) reinterpret_cast<RingHeader*>(word - epoch)->outer = 0;
  return 8;
}

// DW_EH_PE_pcrel | DW_EH_PE_sdata4. The directive belongs to the FDE of the function that this is inlined into.
[[gnu::always_inline]] inline void end_call_on_exception() {
  asm volatile(".cfi_personality 0x1b, memhook_personality");
}

template <typename R, typename... A>
[[gnu::always_inline]] inline R original(uint32_t function, uint32_t variant, A... args) {
  return reinterpret_cast<R (*)(A...)>(originals[function][variant])(args...);
}

// A call of the original, to be made later.
template <uint32_t F, uint32_t V, typename... A>
[[gnu::always_inline]] inline auto calling(A... args) {
  return [=]() __attribute__((always_inline)) { return original<void*>(F, V, args...); };
}

// Returns the ring if this call is to be recorded. `frame` is the wrapper's frame.
[[gnu::always_inline]] inline RingHeader* begin_call(Frame frame) {
  uint32_t epoch = gate_word();
  if (epoch == 0) {
    if (__builtin_expect(gate().is_settled && gate_area.spares[0] == 0, 1)) return nullptr;
    epoch = be_born(frame);
    if (epoch == 0) return nullptr;
  }
  RingHeader* ring = ring_of(epoch, reinterpret_cast<uint64_t>(frame));
  if (__builtin_expect(ring == nullptr, 0)) return nullptr;
  if (!enter(ring, frame)) return nullptr;
  // A detach closes the gate, and the attacher then looks for calls in progress until there have been none for some
  // time: either it sees that we have entered, or we see that the gate is closed. Our store of `outer` may not be
  // visible yet when we load the epoch, but it is visible within milliseconds.
  if (__builtin_expect(gate_word() != epoch, 0)) {
    leave(ring);
    return nullptr;
  }
  return ring;
}

// Frame of the function into which this is inlined. That function keeps a frame for this purpose.
[[gnu::always_inline]] inline Frame own_frame() { return static_cast<Frame>(__builtin_frame_address(0)); }

constexpr bool is_operator_new(uint32_t function) { return function >= first_operator && function <= last_operator; }

// Wrappers of operator new and related functions, which call malloc, and of allocator functions that call each other.
// The inner call must not be counted again.
constexpr bool calls_another(uint32_t function) {
  return is_operator_new(function) || (function >= first_shape && function <= last_shape);
}

// An allocation that is not recorded.
template <typename... A>
[[gnu::always_inline]] inline void* pass_allocation(uint32_t f, uint32_t v, RingHeader* ring, A... args) {
  if (!calls_another(f)) {
    leave(ring);
    return original<void*>(f, v, args...);
  }
  void* block = original<void*>(f, v, args...);
  leave(ring);
  return block;
}

// These functions do the work of passing an allocation (selective.hpp), without the call of the original, and of
// passing a release.
[[gnu::noinline, gnu::cold]] inline uint64_t pass_an_allocation(RingHeader*, const void* block) {
  Claim* claim = hinted_claim();
  if (!claim || reinterpret_cast<uint64_t>(block) < once(gate().passed_below)) return 0;
  set_countdown(claim, once(claim->countdown));
  return reinterpret_cast<uint64_t>(block);
}
[[gnu::noinline, gnu::cold]] inline uint64_t pass_a_release(RingHeader*, const void* block) {
  return is_recorded_block(reinterpret_cast<uint64_t>(block));
}

// Records an allocation that is a sample.
inline void record_sample(RingHeader* ring, uint32_t f, Frame frame, void* block, uint64_t size) {
  begin_recording(ring, frame);
  record_allocation_slowly(ring, f, frame, block, size);
}

// Records an allocation and times the recording.
[[gnu::always_inline]] inline void record_timed(RingHeader* ring, uint32_t f, Frame frame, void* block, uint64_t size) {
  begin_timing(ring);
  if (ring->sampling == records_all) {
    record_allocation(ring, f, frame, block, size);
  } else {
    // Draws the interval from the same state as when the decision was made, before the recording.
    asm volatile("" : : "r"(draw_interval(ring)));
    record_sample(ring, f, frame, block, size);
  }
  end_timing(ring, &tally()->timed_allocations, &tally()->timed_allocation_counts);
  if (draw_random(ring) >> 32 & (timings_a_pass_timing - 1)) return;
  constexpr uint64_t passes = 16;
  // Wrappers are called through slots.
  auto allocation = pass_an_allocation, release = pass_a_release;
  asm volatile("" : "+r"(allocation), "+r"(release));
  // Unlike the wrappers, which run all the time, these functions run only here. Without these first calls, the measured
  // time would include loading the functions into the caches.
  allocation(ring, block);
  release(ring, block);
  uint64_t begun = cpu::time_stamp();
  for (uint64_t i = 0; i < passes; i += 2) {
    allocation(ring, block);
    release(ring, block);
  }
  uint64_t taken = cpu::time_stamp() - begun;
  if (taken > most_pass_counts) return;
  add_count(&tally()->timed_passes, passes);
  add_count(&tally()->timed_pass_counts, taken);
}

[[gnu::noinline, gnu::cold]] inline void record_drawn(RingHeader* ring, uint32_t f, Frame frame, uint32_t decided,
                                                      void* block, uint64_t size) {
  if (decided == is_call_timed) end_call_time(ring);
  decided == is_timed ? record_timed(ring, f, frame, block, size) : record_sample(ring, f, frame, block, size);
}

// Carries out the decision of is_sample().
[[gnu::always_inline]] inline void record_or_pass(RingHeader* ring, uint32_t f, Frame frame, uint32_t decided,
                                                  void* block, uint64_t size) {
  if (__builtin_expect(decided == is_recorded, 1))
    record_allocation(ring, f, frame, block, size);
  else if (decided == is_passed)
    note_passed(block);
  else
    record_drawn(ring, f, frame, decided, block, size);
}

// Returns true if a release may have to be recorded.
[[gnu::always_inline]] inline bool release_may_count(const void* block) {
  if (__builtin_expect(gate().flags & flag_live_filter, 0)) return may_be_recorded(block);
  return !was_passed(block);
}

// With the live filter: returns true if a release has to be recorded. Called once, by the wrapper call that then
// records the release.
[[gnu::always_inline]] inline bool leaves(RingHeader* ring, Frame frame, const void* block) {
  begin_recording(ring, frame);
  bool is_recorded_one = leave_and_time(ring, reinterpret_cast<uint64_t>(block));
  if (!is_recorded_one) end_recording(ring, frame);
  return is_recorded_one;
}

// Returns true if a release has to be recorded. Called once, by the wrapper call that then records the release.
[[gnu::always_inline]] inline bool release_counts(const void* block) {
  if (__builtin_expect(gate().flags & flag_live_filter, 0)) return leave_recorded(reinterpret_cast<uint64_t>(block));
  return !was_passed(block);
}

inline uint64_t product(uint64_t a, uint64_t b) {
  uint64_t result;
  return __builtin_mul_overflow(a, b, &result) ? ~0ull : result;
}

// Records that a reallocation failed after its release was recorded: the old block still exists.
[[gnu::always_inline]] inline void record_standing(RingHeader* ring, Frame frame, uint64_t old) {
  begin_recording(ring, frame);
  if (gate().flags & flag_live_filter)
    enter_recorded(old);
  else
    note_recorded(reinterpret_cast<void*>(old));
  if (reserve(ring)) commit(ring, op_realloc_failed, old, 0, 0, 0);
  end_recording(ring, frame);
}

// Policy of wrappers (wrappers.hpp) that record. `full` is the wrapper itself.
struct Recording {
  using Full = Recording;

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* allocate(uint64_t size, A... args) {
    if constexpr (may_throw(F))
      if (memhook_passage.code) return pass_call<F, V>(size, args...);
    end_call_on_exception();
    Frame frame = own_frame();
    RingHeader* ring = begin_call(frame);
    if (!ring) return original<void*>(F, V, args...);
    if (__builtin_expect(gate().flags & selects, 0) && !selected(ring, size))
      return pass_allocation(F, V, ring, args...);
    uint32_t decided = is_sample(ring, frame, size);
    void* block = original<void*>(F, V, args...);
    if (__builtin_expect(block != nullptr, 1)) record_or_pass(ring, F, frame, decided, block, size);
    leave(ring);
    return block;
  }

  template <uint32_t F, uint32_t V, auto full>
  [[gnu::always_inline]] static int allocate_into(void** out, uint64_t align, uint64_t size) {
    end_call_on_exception();
    Frame frame = own_frame();
    RingHeader* ring = begin_call(frame);
    if (!ring) return original<int>(F, V, out, align, size);
    if (__builtin_expect(gate().flags & selects, 0) && !selected(ring, size)) {
      leave(ring);
      return original<int>(F, V, out, align, size);
    }
    uint32_t decided = is_sample(ring, frame, size);
    int error = original<int>(F, V, out, align, size);
    if (error == 0 && *out) record_or_pass(ring, F, frame, decided, *out, size);
    leave(ring);
    return error;
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void release(void* block, A... args) {
    Frame frame = own_frame();
    RingHeader* ring = block && release_may_count(block) ? begin_call(frame) : nullptr;
    if (!ring) return original<void>(F, V, block, args...);
    if (__builtin_expect(gate().flags & flag_live_filter, 0) && !leaves(ring, frame, block)) {
      leave(ring);
      return original<void>(F, V, block, args...);
    }
    // Most allocators first read the words before the block. The resulting cache miss can overlap with our work.
    __builtin_prefetch(static_cast<char*>(block) - 8);
    record_release(ring, F, frame, op_release, block);
    original<void>(F, V, block, args...);
    leave(ring);
  }

  // Records in two phases, so that no thread can own the old address before its release is published.
  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* reallocate(uint64_t size, bool zero_releases, void* old, A... args) {
    return reallocate_by<F>(size, zero_releases, old, calling<F, V>(old, args...));
  }

  // For functions whose first argument is not the block.
  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* reallocate_in(uint64_t size, bool zero_releases, uint64_t heap, void* old,
                                                    A... args) {
    return reallocate_by<F>(size, zero_releases, old, calling<F, V>(heap, old, args...));
  }

  template <uint32_t F, typename Call>
  [[gnu::always_inline]] static void* reallocate_by(uint64_t size, bool zero_releases, void* old, Call call) {
    Frame frame = own_frame();
    RingHeader* ring = begin_call(frame);
    if (!ring) return call();
    bool is_wanted = true;
    if (__builtin_expect(gate().flags & selects, 0)) is_wanted = selected(ring, size);
    uint32_t decided = is_wanted ? is_sample(ring, frame, size) : is_passed;
    bool released = old != nullptr && release_counts(old);
    if (released) record_release(ring, F, frame, op_realloc_release, old);
    void* block = call();
    if (block) {
      record_or_pass(ring, F, frame, decided, block, size);
    } else if (released && !zero_releases) {
      record_standing(ring, frame, reinterpret_cast<uint64_t>(old));
    }
    leave(ring);
    return block;
  }

  // The block keeps its owner, so one record after the call is enough.
  template <uint32_t F, uint32_t V, auto full>
  [[gnu::always_inline]] static uint64_t resize(void* block, uint64_t size, uint64_t extra, int flags) {
    Frame frame = own_frame();
    RingHeader* ring = begin_call(frame);
    if (!ring) return original<uint64_t>(F, V, block, size, extra, flags);
    uint64_t bytes = original<uint64_t>(F, V, block, size, extra, flags);
    if (release_counts(block)) record_release(ring, F, frame, op_release, block);
    bool is_wanted = !(gate().flags & selects) || selected(ring, bytes);
    uint32_t decided = is_wanted ? is_sample_behind(ring, frame, bytes) : is_passed;
    record_or_pass(ring, F, frame, decided, block, bytes);
    leave(ring);
    return bytes;
  }
};

}  // namespace memhook
