// Which allocations are recorded, when not all are: size filters and sampling.
#pragma once
#include "ring.hpp"

namespace memhook {

inline constexpr uint32_t selects = flag_size_filter | flag_sample;

// The live filter: which blocks are recorded ones, so that the release of any other is passed by.
//
// A counter by address says at the price of one load that no recorded block is near; what passes
// it is looked up in a bucket of addresses. A block is entered before the program has it and taken
// out before the allocator has it back, so the program's own synchronization orders the two. A
// counter that would run over, or has lost a block to a full bucket, stays at `filter_unsure`: from
// then on all releases under it are recorded, and the attacher ignores those it cannot place.
inline constexpr uint8_t filter_unsure = 255;

// Neighbouring blocks share a counter, and blocks of different 64 MiB arenas do not. Where few
// blocks are recorded a counter stands for a page, so that those in use stay in the cache. With a
// budget it has the marks of a page instead: see recorded_pages.hpp.
[[gnu::always_inline]] inline uint8_t* filter_counter(uint64_t address) {
  uint64_t near = address >> (gate().filter_shift & 63);
  return at<uint8_t>(filter_offset) + ((near ^ (address >> 26)) & (filter_counters - 1));
}

inline uint64_t* filter_bucket(uint64_t address) {
  uint64_t hash = (address >> 4) * 0x9e3779b97f4a7c15;
  return at<uint64_t>(filter_buckets_offset) + ((hash >> 40) & (filter_buckets - 1)) * filter_bucket_blocks;
}

[[gnu::noinline, gnu::cold]] inline void enter_filter(uint64_t address) {
  uint64_t* bucket = filter_bucket(address);
  bool placed = false;
  for (uint64_t i = 0; i < filter_bucket_blocks && !placed; i++) {
    uint64_t found = 0;
    placed = __atomic_compare_exchange_n(&bucket[i], &found, address, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    // Still here: it was released where we do not see it.
    if (!placed && found == address) return;
  }
  uint8_t* counter = filter_counter(address);
  uint8_t count = __atomic_load_n(counter, __ATOMIC_RELAXED), next;
  do {
    next = placed && count < filter_unsure ? count + 1 : filter_unsure;
  } while (!__atomic_compare_exchange_n(counter, &count, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

// Takes a block out; false: it was not recorded.
[[gnu::noinline, gnu::cold]] inline bool leave_filter(uint64_t address) {
  uint64_t* bucket = filter_bucket(address);
  bool found = false;
  for (uint64_t i = 0; i < filter_bucket_blocks && !found; i++) {
    uint64_t expected = address;
    found = __atomic_load_n(&bucket[i], __ATOMIC_RELAXED) == address &&
            __atomic_compare_exchange_n(&bucket[i], &expected, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
  uint8_t* counter = filter_counter(address);
  uint8_t count = __atomic_load_n(counter, __ATOMIC_RELAXED);
  while (found && count != filter_unsure &&
         !__atomic_compare_exchange_n(counter, &count, count - 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return found || count == filter_unsure;
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
  uint64_t x = draw_random(ring);
  auto* quantiles = at<uint64_t>(sample_offset);
  uint64_t i = x & (sample_quantiles - 1), fraction = (x >> 20) & 0xffff;
  uint64_t low = quantiles[i], high = quantiles[i + 1];
  // Intervals stay below 2^40, so the product fits.
  uint64_t interval = low + (((high - low) & 0xff'ffff'ffff) * fraction >> 16);
  return interval >> (ring->sample_shift & 63);
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
