// Which allocations are recorded, when not all are: size filters and sampling.
#pragma once
#include "ring.hpp"

namespace memhook {

inline constexpr uint32_t selective = flag_size_filter | flag_sample;

inline uint16_t* filter_counter(uint64_t address) {
  return at<uint16_t>(filter_offset) +
         (((address >> 4) ^ (address >> 24)) & (filter_entries - 1));
}

// The block's release will be recorded: its counter is above zero from before the program has the
// block until the attacher, which alone counts down, has seen the release. (Counting down here would
// be wrong: another block with the same counter may be released first.)
inline void enter_filter(uint64_t address) {
  __atomic_fetch_add(filter_counter(address), 1, __ATOMIC_RELAXED);
}

// Whether the block may be a recorded one; never false for one that is.
[[gnu::always_inline]] inline bool may_be_recorded(const void* block) {
  return __atomic_load_n(filter_counter(reinterpret_cast<uint64_t>(block)), __ATOMIC_RELAXED) != 0;
}

[[gnu::noinline, gnu::cold]] inline bool is_exact_size(uint64_t size) {
  const Gate& g = gate();
  for (uint32_t i = 0; i < g.exact_count; i++)
    if (g.exact_sizes[i] == size) return true;
  return false;
}

// Bytes to the next sample: a random quantile of the exponential distribution, interpolated.
// Sampling is then a Poisson process over the bytes allocated, so that the attacher knows each
// block's probability, 1 - exp(-size / mean).
[[gnu::noinline, gnu::cold]] inline uint64_t draw_interval(RingHeader* ring) {
  uint64_t x = ring->random;
  if (x == 0) x = (__builtin_ia32_rdtsc() ^ (reinterpret_cast<uint64_t>(ring) << 20)) | 1;
  // xorshift64 (Marsaglia, "Xorshift RNGs", 2003)
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  ring->random = x;
  auto* quantiles = at<uint64_t>(sample_offset);
  uint64_t i = x & (sample_quantiles - 1), fraction = (x >> 20) & 0xffff;
  uint64_t low = quantiles[i], high = quantiles[i + 1];
  // Intervals stay below 2^40, so the product fits.
  return low + (((high - low) & 0xff'ffff'ffff) * fraction >> 16);
}

// Whether an allocation of `size` bytes is recorded. One call for each allocation.
[[gnu::always_inline]] inline bool selected(RingHeader* ring, uint64_t size) {
  const Gate& g = gate();
  if (g.flags & flag_size_filter) {
    if (size - g.min_size > g.max_size - g.min_size) return false;
    if (g.exact_count != 0 && !is_exact_size(size)) return false;
  }
  if (g.flags & flag_sample) {
    int64_t left = static_cast<int64_t>(ring->sample_left - size);
    ring->sample_left = static_cast<uint64_t>(left);
    if (__builtin_expect(left >= 0, 1)) return false;
    // A thread's first allocation draws its first interval and is not a sample, unless it is longer.
    if (ring->random == 0) {
      left = static_cast<int64_t>(draw_interval(ring) - size);
      ring->sample_left = static_cast<uint64_t>(left);
      if (left >= 0) return false;
    }
    ring->sample_left = draw_interval(ring);
  }
  return true;
}

}  // namespace memhook
