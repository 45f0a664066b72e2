// Wrappers for traces that skip most calls, because sizes are filtered or allocations are sampled.
//
// Each wrapper decides without a stack frame, and writes nothing except the sampling countdown. Then it jumps to the
// original or to the full wrapper, which finds the stack as the caller left it.
#pragma once
#include "wrappers.hpp"

namespace memhook {

// The call that counts an allocation of this function: the call itself, a call that it makes, or either. The last value
// is for operator new, which may only call another hooked function with the same size: its bit in
// Control::forwarding_operators shows this.
inline constexpr uint32_t counts_itself = 32, counts_within = 33;
template <uint32_t F, uint32_t V>
constexpr uint32_t forwarding_bit() {
  if (!calls_another(F)) return counts_itself;
  return is_operator_new(F) ? (F - first_operator) * max_variants + V : counts_within;
}
static_assert((last_operator + 1 - first_operator) * max_variants <= counts_itself);

[[gnu::always_inline]] inline bool forwards(uint32_t bit) {
  return __atomic_load_n(&control()->forwarding_operators, __ATOMIC_RELAXED) >> bit & 1;
}

// Returns true if an allocation is skipped without any other check.
template <uint32_t F, uint32_t V>
[[gnu::always_inline]] inline bool passes(uint64_t size) {
  constexpr uint32_t bit = forwarding_bit<F, V>();
  if (bit == counts_within) return false;
  Claim* claim = nullptr;
  uint64_t countdown = 0;
  if (size >= gate().passed_below) {
    claim = hinted_claim();
    if (!claim) return false;
    countdown = once(claim->countdown);
    if (__builtin_expect(size >= countdown, 0)) return false;
  }
  // Calls made by operator new must be distinguished from calls of the program. If operator new makes only one such
  // call, that call makes the same decision, and decrements the countdown for both.
  if (bit != counts_itself) return forwards(bit);
  if (claim) set_countdown(claim, countdown - size);
  return true;
}

// Returns true if any other allocation can be skipped. If not, the full wrapper decides.
[[gnu::noinline, gnu::cold]] inline bool passes_after_all(uint64_t size, uint32_t bit) {
  const Gate& g = gate();
  end_countdown();
  // The gate comes first: a fork child's gate is empty.
  if (bit != counts_itself && (!(g.flags & (selects | flag_budget)) || bit == counts_within || !forwards(bit)))
    return false;
  if (g.flags & flag_size_filter) {
    if (size - g.min_size > g.max_size - g.min_size) return true;
    if (g.exact_count != 0) return false;
  }
  // With a budget, `sample_left` is negative while all allocations are recorded.
  if (!(g.flags & (flag_sample | flag_budget))) return false;
  uint32_t epoch = gate_word();
  RingHeader* ring = epoch != 0 ? seated_ring(epoch) : nullptr;
  if (!ring) return false;
  uint64_t left = ring->sample_left - size;
  // Without this check, a size that no block can have would make the countdown wrap around.
  if (ring->outer != 0 || static_cast<int64_t>(left | size) < 0) return false;
  if (bit == counts_itself) ring->sample_left = left;
  begin_countdown(ring);
  return true;
}

// Returns true if the release of a block can be skipped. The block is on a page that may have recorded blocks.
[[gnu::noinline]] inline bool passes_release(const void* block) {
  if (!is_recorded_block(reinterpret_cast<uint64_t>(block))) return true;
  end_countdown();
  return false;
}

// `full` is the wrapper that records. Rarely needed code is in separate functions, so that this function needs no
// stack.
struct Passing {
  using Full = Recording;

  template <uint32_t F, uint32_t V, auto full, typename R, typename... A>
  [[gnu::noinline, gnu::cold]] static R allocate_seldom(uint64_t size, A... args) {
    return passes_after_all(size, forwarding_bit<F, V>()) ? original<R>(F, V, args...) : full(args...);
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* allocate(uint64_t size, A... args) {
    if (__builtin_expect(passes<F, V>(size), 1)) return original<void*>(F, V, args...);
    return allocate_seldom<F, V, full, void*>(size, args...);
  }

  template <uint32_t F, uint32_t V, auto full>
  [[gnu::always_inline]] static int allocate_into(void** out, uint64_t align, uint64_t size) {
    if (__builtin_expect(passes<F, V>(size), 1)) return original<int>(F, V, out, align, size);
    return allocate_seldom<F, V, full, int>(size, out, align, size);
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::noinline, gnu::cold]] static void release_seldom(void* block, A... args) {
    return passes_release(block) ? original<void>(F, V, block, args...) : full(block, args...);
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void release(void* block, A... args) {
    if (__builtin_expect(!may_be_recorded(block), 1)) return original<void>(F, V, block, args...);
    release_seldom<F, V, full>(block, args...);
  }

  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::noinline, gnu::cold]] static void* reallocate_seldom(uint64_t size, void* old, A... args) {
    bool passes = passes_release(old) && passes_after_all(size, forwarding_bit<F, V>());
    return passes ? original<void*>(F, V, old, args...) : full(old, args...);
  }

  // The release is handled first, because it does not decrement the sampling countdown.
  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* reallocate(uint64_t size, bool, void* old, A... args) {
    if (__builtin_expect(!may_be_recorded(old), 1) && __builtin_expect(passes<F, V>(size), 1))
      return original<void*>(F, V, old, args...);
    return reallocate_seldom<F, V, full>(size, old, args...);
  }

  // Called too rarely, or never together with a filter.
  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static void* reallocate_in(uint64_t, bool, A... args) {
    end_countdown();
    return full(args...);
  }
  template <uint32_t F, uint32_t V, auto full, typename... A>
  [[gnu::always_inline]] static uint64_t resize(A... args) {
    end_countdown();
    return full(args...);
  }
};

}  // namespace memhook
