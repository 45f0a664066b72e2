// The shared stack table: each distinct backtrace once, under a 4-byte id.
#pragma once
#include "ring.hpp"

namespace memhook {

[[gnu::always_inline]] inline uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 32);
}

// Four chains side by side: in one, each multiplication would wait for the one before.
[[gnu::always_inline]] inline uint64_t hash_frames(uint64_t seed, const uint64_t* pcs,
                                                   uint32_t count) {
  uint64_t a = seed, b = 1, c = 2, d = 3;
  uint32_t i = 0;
  for (; i + 4 <= count; i += 4) {
    a = mix(a, pcs[i]);
    b = mix(b, pcs[i + 1]);
    c = mix(c, pcs[i + 2]);
    d = mix(d, pcs[i + 3]);
  }
  for (; i < count; i++) a = mix(a, pcs[i]);
  return mix(mix(mix(a, b), c), d);
}

[[gnu::noinline]] inline uint32_t insert_stack(uint64_t* slot, uint64_t tag, uint32_t function,
                                               const uint64_t* pcs, uint32_t count, bool truncated) {
  Control* c = control();
  uint64_t bytes = sizeof(StackEntry) + 8 * count;
  uint64_t granules = (bytes + granule_bytes - 1) / granule_bytes;
  uint64_t id = __atomic_fetch_add(&c->arena_next, granules, __ATOMIC_RELAXED);
  if ((id + granules) * granule_bytes > arena_bytes) {
    __atomic_fetch_sub(&c->arena_next, granules, __ATOMIC_RELAXED);
    __atomic_fetch_add(&c->stacks_dropped, 1, __ATOMIC_RELAXED);
    return 0;
  }
  auto* entry = at<StackEntry>(arena_offset + id * granule_bytes);
  entry->hash = static_cast<uint32_t>(tag);
  entry->function = static_cast<uint8_t>(function);
  entry->truncated = truncated;
  entry->depth = static_cast<uint16_t>(count);
  auto* frames = reinterpret_cast<uint64_t*>(entry + 1);
  for (uint32_t i = 0; i < count; i++) frames[i] = pcs[i];
  uint64_t expected = 0;
  // Release: whoever finds the id in the index finds the frames written. When another thread took
  // the place first, our copy stays valid for this event; the stack is merely stored twice.
  __atomic_compare_exchange_n(slot, &expected, (tag << 32) | id, false, __ATOMIC_RELEASE,
                              __ATOMIC_RELAXED);
  return static_cast<uint32_t>(id);
}

// The id of a backtrace in the shared stack table; 0 when the table is full.
[[gnu::always_inline]] inline uint32_t intern_stack(uint32_t function, const uint64_t* pcs,
                                                    uint32_t count, bool truncated) {
  uint64_t hash = hash_frames(function | (truncated ? 256 : 0), pcs, count);
  uint64_t tag = hash >> 32;
  auto* index = at<uint64_t>(index_offset);
  for (uint64_t probe = 0; probe < 64; probe++) {
    uint64_t* slot = &index[(hash + probe) & (index_entries - 1)];
    uint64_t value = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (value == 0) return insert_stack(slot, tag, function, pcs, count, truncated);
    if ((value >> 32) != tag) continue;
    auto* entry = at<StackEntry>(arena_offset + (value & 0xffff'ffff) * granule_bytes);
    if (entry->depth != count || entry->function != function || entry->truncated != truncated)
      continue;
    auto* frames = reinterpret_cast<const uint64_t*>(entry + 1);
    uint32_t i = 0;
    while (i < count && frames[i] == pcs[i]) i++;
    if (i == count) return static_cast<uint32_t>(value);
  }
  __atomic_fetch_add(&control()->stacks_dropped, 1, __ATOMIC_RELAXED);
  return 0;
}

}  // namespace memhook
