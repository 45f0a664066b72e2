// Wrappers for when most calls are skipped: sizes are filtered, or allocations sampled.
//
// Each decides without a frame of its own and writes nothing except the sampling countdown, and
// jumps: to the original, or to the full wrapper, which finds the stack as its caller left it.
#pragma once
#include "wrappers.hpp"

namespace memhook {

// Returns whether this operator new only calls another hooked function with the same size.
template <uint32_t F, uint32_t V>
[[gnu::always_inline]] inline bool forwards() {
  if constexpr (!is_operator_new(F)) return false;
  constexpr uint32_t bit = is_operator_new(F) ? (F - first_operator) * max_variants + V : 0;
  static_assert(bit < 32);
  return __atomic_load_n(&control()->forwarding_operators, __ATOMIC_RELAXED) >> bit & 1;
}

// Returns whether an allocation can be skipped; if false, the full wrapper decides.
template <uint32_t F, uint32_t V>
[[gnu::always_inline]] inline bool passes(uint64_t size) {
  Gate& g = gate();
  // Calls made by operator new must be distinguished from those of the program; if it only makes
  // one such call, that call makes the same decision, and counts the countdown down for both. The
  // gate first: a fork child's is empty.
  if (calls_another(F) && (!(g.flags & (selects | flag_budget)) || !forwards<F, V>())) return false;
  if (g.flags & flag_size_filter) {
    if (size - g.min_size > g.max_size - g.min_size) return true;
    if (g.exact_count != 0) return false;
  }
  // With a budget, the countdown is below 0 while all allocations are recorded.
  if (!(g.flags & (flag_sample | flag_budget))) return false;
  uint32_t epoch = gate_word();
  RingHeader* ring = epoch != 0 ? seated_ring(epoch) : nullptr;
  if (!ring) return false;
  uint64_t left = ring->sample_left - size;
  // A size that no block has would make the countdown start all over.
  if (ring->outer != 0 || static_cast<int64_t>(left | size) < 0) return false;
  if (!calls_another(F)) ring->sample_left = left;
  return true;
}

// Returns whether a release can be skipped.
[[gnu::always_inline]] inline bool passes_release(const void* block) {
  return __builtin_expect(!is_recorded_block(reinterpret_cast<uint64_t>(block)), 1);
}

// `full` is the wrapper that records.
struct Passing {
  using Full = Recording;

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* pass_if(bool condition, A... args) {
    return __builtin_expect(condition, 1) ? original<void*>(F, V, args...) : full(args...);
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* allocate(uint64_t size, A... args) {
    return pass_if<F, V, full>(passes<F, V>(size), args...);
  }

  template <uint32_t F, uint32_t V, auto full>
  [[gnu::always_inline]] static int allocate_into(void** out, uint64_t align, uint64_t size) {
    return __builtin_expect(passes<F, V>(size), 1) ? original<int>(F, V, out, align, size) : full(out, align, size);
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void release(void* block, A... args) {
    return __builtin_expect(passes_release(block), 1) ? original<void>(F, V, block, args...) : full(block, args...);
  }

  // The release first: it does not decrement the sampling countdown.
  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* reallocate(uint64_t size, bool, void* old, A... args) {
    return pass_if<F, V, full>(passes_release(old) && passes<F, V>(size), old, args...);
  }

  // Called too seldom, or never together with a filter.
  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* reallocate_in(uint64_t, bool, A... args) {
    return full(args...);
  }
  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static uint64_t resize(A... args) {
    return full(args...);
  }
};

}  // namespace memhook
