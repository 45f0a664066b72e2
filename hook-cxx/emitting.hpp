// Wrappers that record nothing, but report to listeners on the probes otel_memory:alloc and otel_memory:free
// (memhook-rs emit; the contract is design document 00003 of opentelemetry-ebpf-profiler).
//
// While no listener exists and no reported block is live, each wrapper jumps to the original after one load and one
// branch. With a listener, allocations are sampled by bytes allocated, as in jemalloc: a Poisson process, in which a
// block of `size` bytes is drawn with the probability 1 - exp(-size / mean). Its weight is its size divided by that
// probability, so that sums of weights are unbiased estimates of sums of bytes.
//
// A release is reported before the allocator gets the block back, and an allocation before the program has the block,
// so the reports about one address are in the order of the events. A release needs no ring: the table shows whether the
// block was reported, whatever state the thread is in.
#pragma once
#include "emitted.hpp"
#include "passage.hpp"
#include "selective.hpp"

namespace memhook {

// Returns true if there is a listener for either probe.
[[gnu::always_inline]] inline bool is_listened_to() {
  return __builtin_expect(__atomic_load_n(&memhook_listeners, __ATOMIC_RELAXED) != 0, 0);
}

// Returns size / (1 - exp(-size / mean)), which is size / 2 + mean * y * coth(y) where y = size / (2 * mean). coth is
// computed by Lambert's continued fraction, y * coth(y) = 1 + y^2 / (3 + y^2 / (5 + ...)), in fixed point, because
// there are no vector registers here. All terms are positive, so no precision is lost. At the largest y, the omitted
// terms are below 1e-6.
inline uint64_t weighted_bytes(uint64_t size, uint64_t mean) {
  // Practically certain to be drawn: exp(-24) is 4e-11. If the mean is 0, every block is drawn.
  constexpr uint64_t most = 24, terms = 16, point = 24;
  if (size / most >= mean) return size;
  // The mean is at most 2^30, so size is below 2^35 and y below 12. Here y has 20 fractional bits.
  uint64_t y = (size << 19) / mean;
  uint64_t square = y * y >> (40 - point);
  uint64_t value = (2 * terms + 1) << point;
  for (uint64_t k = terms; k > 0; k--) value = ((2 * k - 1) << point) + (square << point) / value;
  return ((size << (point - 1)) + mean * value + (1ull << (point - 1))) >> point;
}

// pre: the allocator has just returned the block, or has failed to move it; `ring` is the thread's ring, or null.
[[gnu::noinline, gnu::cold]] inline void tell_allocation(RingHeader* ring, Frame frame, const void* block,
                                                         uint64_t size) {
  keep_frame();
  // An allocation by a signal handler meanwhile is skipped.
  if (ring) begin_recording(ring, frame);
  auto address = reinterpret_cast<uint64_t>(block);
  enter_emitted(address, size);
  fire_alloc(address, size, weighted_bytes(size, gate().sample_bytes));
  if (ring) end_recording(ring, frame);
}

// pre: the allocator has not seen the release yet.
[[gnu::noinline, gnu::cold]] inline Emitted tell_release(const void* block) {
  keep_frame();
  // In a fork child the table belongs to its parent.
  if (epoch_now() == 0) return {};
  auto address = reinterpret_cast<uint64_t>(block);
  Emitted found = leave_emitted(address);
  if (found.was_told) fire_free(address);
  return found;
}

// Returns true if an allocation is reported. Called once for each allocation. pre: begin_call() has returned the ring.
[[gnu::always_inline]] inline bool is_drawn(RingHeader* ring, uint64_t size) {
  return !(gate().flags & selects) || selected(ring, size);
}

extern "C" uint64_t memhook_pass_begin(Frame frame, PassedCall* call) {
  RingHeader* ring = begin_call(frame);
  if (!ring) return 0;
  passed_frames[number_of(ring)] = reinterpret_cast<uint64_t>(frame);
  call->ring = ring;
  call->decided = is_drawn(ring, call->size);
  return 1;
}

extern "C" void* memhook_pass_end(Frame frame, PassedCall* call, void* block) {
  auto* ring = static_cast<RingHeader*>(call->ring);
  if (call->decided && block) tell_allocation(ring, frame, block, call->size);
  leave(ring);
  return block;
}

// Policy for calls that cannot be skipped. Skippable calls never get here.
struct Telling {
  using Full = Telling;

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* allocate(uint64_t size, A... args) {
    if constexpr (may_throw(F))
      if (memhook_passage.code) return pass_call<F, V>(size, args...);
    end_call_on_exception();
    Frame frame = own_frame();
    RingHeader* ring = begin_call(frame);
    if (!ring) return original<void*>(F, V, args...);
    if (!is_drawn(ring, size)) return pass_allocation(F, V, ring, args...);
    void* block = original<void*>(F, V, args...);
    if (block) tell_allocation(ring, frame, block, size);
    leave(ring);
    return block;
  }

  template <uint32_t F, uint32_t V, auto full>
  [[gnu::always_inline]] static int allocate_into(void** out, uint64_t align, uint64_t size) {
    end_call_on_exception();
    Frame frame = own_frame();
    RingHeader* ring = begin_call(frame);
    if (!ring) return original<int>(F, V, out, align, size);
    bool is_one = is_drawn(ring, size);
    int error = original<int>(F, V, out, align, size);
    if (is_one && error == 0 && *out) tell_allocation(ring, frame, *out, size);
    leave(ring);
    return error;
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void release(void* block, A... args) {
    tell_release(block);
    original<void>(F, V, block, args...);
  }

  // In two phases, as in Recording.
  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* reallocate(uint64_t size, bool zero_releases, void* old, A... args) {
    return reallocate_by(size, zero_releases, old, calling<F, V>(old, args...));
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* reallocate_in(uint64_t size, bool zero_releases, uint64_t heap, void* old,
                                                    A... args) {
    return reallocate_by(size, zero_releases, old, calling<F, V>(heap, old, args...));
  }

  template <typename Call>
  [[gnu::always_inline]] static void* reallocate_by(uint64_t size, bool zero_releases, void* old, Call call) {
    Frame frame = own_frame();
    RingHeader* ring = is_listened_to() ? begin_call(frame) : nullptr;
    bool is_one = ring && is_drawn(ring, size);
    Emitted released = old && may_be_emitted(old) ? tell_release(old) : Emitted{};
    void* block = call();
    if (block && is_one)
      tell_allocation(ring, frame, block, size);
    else if (!block && released.size != 0 && !zero_releases)
      tell_allocation(ring, frame, old, released.size);
    if (ring) leave(ring);
    return block;
  }

  template <uint32_t F, uint32_t V, auto full>
  [[gnu::always_inline]] static uint64_t resize(void* block, uint64_t size, uint64_t extra, int flags) {
    Frame frame = own_frame();
    RingHeader* ring = is_listened_to() ? begin_call(frame) : nullptr;
    uint64_t bytes = original<uint64_t>(F, V, block, size, extra, flags);
    if (may_be_emitted(block)) tell_release(block);
    if (!ring) return bytes;
    if (is_drawn(ring, bytes)) tell_allocation(ring, frame, block, bytes);
    leave(ring);
    return bytes;
  }
};

// Policy of the wrappers in slots. Each wrapper decides without a stack frame of its own, and then jumps.
struct Emitting {
  using Full = Telling;

  template <typename R, uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static R pass_if(bool condition, A... args) {
    return __builtin_expect(condition, 1) ? original<R>(F, V, args...) : full(args...);
  }

  // Decrements a counter, so this condition must be evaluated exactly once per call, and last.
  template <uint32_t F, uint32_t V>
  [[gnu::always_inline]] static bool is_not_drawn(uint64_t size) {
    return !is_listened_to() || passes<F, V>(size);
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* allocate(uint64_t size, A... args) {
    return pass_if<void*, F, V, full>(is_not_drawn<F, V>(size), args...);
  }

  template <uint32_t F, uint32_t V, auto full>
  [[gnu::always_inline]] static int allocate_into(void** out, uint64_t align, uint64_t size) {
    return pass_if<int, F, V, full>(is_not_drawn<F, V>(size), out, align, size);
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void release(void* block, A... args) {
    pass_if<void, F, V, full>(!may_be_emitted(block), block, args...);
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* reallocate(uint64_t size, bool, void* old, A... args) {
    return pass_if<void*, F, V, full>(!may_be_emitted(old) && is_not_drawn<F, V>(size), old, args...);
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* reallocate_in(uint64_t size, bool, uint64_t heap, void* old, A... args) {
    return pass_if<void*, F, V, full>(!may_be_emitted(old) && is_not_drawn<F, V>(size), heap, old, args...);
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static uint64_t resize(void* block, A... args) {
    return pass_if<uint64_t, F, V, full>(!may_be_emitted(block) && !is_listened_to(), block, args...);
  }
};

}  // namespace memhook
