// Selects the allocations to record, if not all are recorded: size filters and sampling.
#pragma once
#include "recorded_blocks.hpp"

namespace memhook {

inline constexpr uint32_t selects = flag_size_filter | flag_sample;

[[gnu::noinline, gnu::cold]] inline bool is_exact_size(uint64_t size) {
  const Gate& g = gate();
  for (uint32_t i = 0; i < g.exact_count; i++)
    if (g.exact_sizes[i] == size) return true;
  return false;
}

// Returns the bytes to the next sample: a random quantile of the exponential distribution, interpolated. This makes
// sampling a Poisson process over the allocated bytes, so the attacher knows the probability with which each block is
// recorded, 1 - exp(-size / mean).
[[gnu::noinline, gnu::cold]] inline uint64_t draw_interval(RingHeader* ring) {
  uint64_t x = draw_random(ring);
  auto* quantiles = in_guide<uint64_t>(sample_offset);
  uint64_t i = x & (sample_quantiles - 1), fraction = (x >> 20) & 0xffff;
  uint64_t low = quantiles[i], high = quantiles[i + 1];
  // Intervals stay below 2^40, so the product fits.
  uint64_t interval = low + (((high - low) & 0xff'ffff'ffff) * fraction >> 16);
  return interval >> (ring->sample_shift & 63);
}

// Returns true if an allocation of `size` bytes is recorded. Called once for each allocation.
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
    // A thread's first allocation draws the first interval. It is not a sample unless it is larger than that interval.
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
