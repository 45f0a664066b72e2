// Wrappers for when most calls are passed by: sizes are filtered, or allocations sampled.
//
// Each decides without a frame of its own and with nothing written but the sampling countdown, and
// jumps: to the original, or to the full wrapper, which finds the stack as its caller left it. With a
// budget, an allocation that is passed by has to be looked at when it is there (recorded_pages.hpp): a
// call, but nothing else than that.
#pragma once
#include "wrappers.hpp"

namespace memhook {

// Whether this operator new does nothing but call another hooked function for the same size.
template <uint32_t F, uint32_t V>
[[gnu::always_inline]] inline bool forwards() {
  constexpr uint32_t bit = calls_another(F) ? (F - first_operator) * max_variants + V : 0;
  static_assert(bit < 32);
  return __atomic_load_n(&control()->forwarding_operators, __ATOMIC_RELAXED) >> bit & 1;
}

// Whether an allocation can be passed by; false: the full wrapper decides.
template <uint32_t F, uint32_t V>
[[gnu::always_inline]] inline bool passes(uint64_t size) {
  Gate& g = gate();
  // What operator new calls in turn must be told from calls of the program; where all it does is
  // one such call, that call decides alike, and counts the countdown down for both. The gate
  // first: a fork child's is empty.
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

// Whether a release can be passed by.
[[gnu::always_inline]] inline bool passes_release(const void* block) {
  if (__builtin_expect(!may_be_recorded(block), 1)) return true;
  // A block on a page that has recorded ones, with a budget.
  return gate().notes_recorded && __atomic_load_n(&gate().has_passed, __ATOMIC_RELAXED) && has_passed_entry(block);
}

// With a budget: an allocation that is passed by.
template <uint32_t F, uint32_t V, typename... A>
[[gnu::noinline]] void* pass_and_note(A... args) {
  // A frame, as the full wrapper has one: the original may call what is hooked, too.
  asm volatile("" : : "r"(own_frame()));
  void* block = original<void*>(F, V, args...);
  // Not if it took so long that this attach is over: the next one may have other things in that place.
  if (may_be_on_marked_page(block) && gate_word() == (thread_word() & 0xfff)) enter_passed(block);
  return block;
}

// `full` is the wrapper that records.
struct Passing {
  using Full = Recording;

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* pass_if(bool condition, A... args) {
    if (__builtin_expect(!condition, 0)) return full(args...);
    // What operator new calls in turn notes the block.
    return !calls_another(F) && gate().notes_recorded ? pass_and_note<F, V>(args...) : original<void*>(F, V, args...);
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* allocate(uint64_t size, A... args) {
    return pass_if<F, V, full>(passes<F, V>(size), args...);
  }

  // Its block is not what it returns, and it is called seldom: with a budget the full wrapper passes it by.
  template <uint32_t F, uint32_t V, auto full>
  [[gnu::always_inline]] static int allocate_into(void** out, uint64_t align, uint64_t size) {
    bool may_pass = !gate().notes_recorded && passes<F, V>(size);
    return __builtin_expect(may_pass, 1) ? original<int>(F, V, out, align, size) : full(out, align, size);
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void release(void* block, A... args) {
    return __builtin_expect(passes_release(block), 1) ? original<void>(F, V, block, args...) : full(block, args...);
  }

  // The release first: it does not count the sampling countdown down.
  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* reallocate(uint64_t size, bool, void* old, A... args) {
    return pass_if<F, V, full>(passes_release(old) && passes<F, V>(size), old, args...);
  }

  // Called too seldom, or never together with a filter.
  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static uint64_t resize(A... args) {
    return full(args...);
  }
};

}  // namespace memhook
