// Blocks that were reported to listeners and are still live, so that listeners get the release of exactly these blocks.
//
// As with the live filter (recorded_blocks.hpp), a single load of a byte shows that no such block is near. A block is
// entered before the program has it and removed before the allocator gets it back, so the program's own synchronization
// orders the two. Here the byte is a counter. The table replaces that of the filter, and also contains each block's
// size: if a realloc fails, a block whose release was reported is still live, and is reported again.
//
// If a bucket is full, a block is lost. The counter of that block stays at `lost_one`, and from then on each release
// that it covers is reported: a listener ignores the release of a block that it does not know, and misses no release of
// a block that it knows.
#pragma once
#include "selection.hpp"

namespace memhook {

struct EmittedBlock {
  uint64_t address, size;
};

inline constexpr uint64_t emitted_bucket_blocks = 8;
inline constexpr uint64_t emitted_buckets =
    filter_words * sizeof(uint64_t) / (emitted_bucket_blocks * sizeof(EmittedBlock));
static_assert((emitted_buckets & (emitted_buckets - 1)) == 0);

// Permanent values of a counter: it has exceeded its range, or has lost a block.
inline constexpr uint8_t crowded = 254, lost_one = 255;

// Number of blocks in the table, plus lost blocks. While it is 0, a release reads only this word, which no thread
// writes.
alignas(64) inline uint64_t emitted_live;

struct Emitted {
  bool was_told;
  uint64_t size;  // 0 if unknown
};

inline EmittedBlock* emitted_bucket(uint64_t address) {
  uint64_t hash = (address >> 4) * filter_hash;
  return in_report<EmittedBlock>(filter_table_offset) + ((hash >> 40) & (emitted_buckets - 1)) * emitted_bucket_blocks;
}

// With samples at least this far apart, a byte covers a page, so that the used bytes stay in the cache. Otherwise it
// covers 64 bytes, so that few releases are reported unnecessarily after a block was lost.
inline constexpr uint64_t few_sample_bytes = 64 << 10;

[[gnu::always_inline]] inline uint8_t* emitted_counter(uint64_t address) {
  uint64_t near = address >> (gate().sample_bytes < few_sample_bytes ? 6 : 12);
  return in_report<uint8_t>(filter_offset) + ((near ^ (address >> 26)) & (filter_pages - 1));
}

// Returns true if the block may be in the table; never false for a block that is.
[[gnu::always_inline]] inline bool may_be_emitted(const void* block) {
  if (__builtin_expect(__atomic_load_n(&emitted_live, __ATOMIC_RELAXED) == 0, 1)) return false;
  return __atomic_load_n(emitted_counter(reinterpret_cast<uint64_t>(block)), __ATOMIC_RELAXED) != 0;
}

inline void enter_emitted(uint64_t address, uint64_t size) {
  EmittedBlock* bucket = emitted_bucket(address);
  bool is_placed = false;
  for (uint64_t i = 0; i < emitted_bucket_blocks && !is_placed; i++) {
    uint64_t found = 0;
    is_placed =
        __atomic_compare_exchange_n(&bucket[i].address, &found, address, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    if (is_placed || found == address) __atomic_store_n(&bucket[i].size, size, __ATOMIC_RELAXED);
    // The block is still in the table because its release was not seen.
    if (!is_placed && found == address) return;
  }
  __atomic_fetch_add(&emitted_live, 1, __ATOMIC_RELAXED);
  uint8_t* counter = emitted_counter(address);
  uint8_t count = __atomic_load_n(counter, __ATOMIC_RELAXED), next;
  do {
    next = !is_placed || count == lost_one ? lost_one : count < crowded ? count + 1 : crowded;
  } while (!__atomic_compare_exchange_n(counter, &count, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

// Removes a block.
inline Emitted leave_emitted(uint64_t address) {
  EmittedBlock* bucket = emitted_bucket(address);
  uint8_t* counter = emitted_counter(address);
  uint8_t count = __atomic_load_n(counter, __ATOMIC_RELAXED);
  for (uint64_t i = 0; i < emitted_bucket_blocks; i++) {
    if (__atomic_load_n(&bucket[i].address, __ATOMIC_RELAXED) != address) continue;
    uint64_t size = __atomic_load_n(&bucket[i].size, __ATOMIC_RELAXED), expected = address;
    if (!__atomic_compare_exchange_n(&bucket[i].address, &expected, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      continue;  // the program releases it twice
    __atomic_fetch_sub(&emitted_live, 1, __ATOMIC_RELAXED);
    while (count < crowded &&
           !__atomic_compare_exchange_n(counter, &count, count - 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return {true, size};
  }
  return {count == lost_one, 0};
}

}  // namespace memhook
