// The shared stack table: each distinct backtrace once, under a 4-byte id.
#pragma once
#include "ring.hpp"

namespace memhook {

[[gnu::always_inline]] inline uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 32);
}

// Four independent chains: in a single chain, each multiplication would wait for the previous one.
[[gnu::always_inline]] inline uint64_t hash_frames(uint64_t seed, const uint64_t* pcs, uint32_t count) {
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

// Returns the backtrace with this id, which is never outside the arena.
[[gnu::always_inline]] inline StackEntry* stack_entry(uint64_t id) {
  constexpr uint64_t granules = arena_bytes / granule_bytes;
  static_assert((granules & (granules - 1)) == 0);
  return in_report<StackEntry>(arena_offset + (id & (granules - 1)) * granule_bytes);
}

// Actual or possible position of a backtrace in the index.
struct IndexPlace {
  uint64_t* slot;  // null if there is no room
  uint32_t id;     // 0: not there
};

// Number of cache lines of the index that are searched for a backtrace, and the number of entries in each line.
inline constexpr uint64_t index_tries = 8, index_line = 8;

// A backtrace is in the first of several lines that has space for it. Its hash determines these lines, which are far
// apart. Entries made when less of the index was in use fill its beginning, where a search from slot to slot would not
// end. Nothing is ever removed, so the first empty slot ends the search.
[[gnu::always_inline]] inline IndexPlace find_in_index(uint64_t hash, uint64_t mask, uint32_t function,
                                                       const uint64_t* pcs, uint32_t count, bool truncated) {
  uint64_t tag = hash >> 32, place = hash;
  auto* index = in_report<uint64_t>(index_offset);
  for (uint64_t tries = 0; tries < index_tries; tries++, place = mix(place, tag)) {
    uint64_t* line = &index[place & mask & (index_entries - 1) & ~(index_line - 1)];
    for (uint64_t i = 0; i < index_line; i++) {
      uint64_t* slot = line + ((place + i) & (index_line - 1));
      uint64_t value = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
      if (value == 0) return {slot, 0};
      if ((value >> 32) != tag) continue;
      StackEntry* entry = stack_entry(value);
      if (entry->depth != count || entry->function != function || entry->truncated != truncated) continue;
      auto* frames = reinterpret_cast<const uint64_t*>(entry + 1);
      uint32_t same = 0;
      while (same < count && frames[same] == pcs[same]) same++;
      if (same == count) return {slot, static_cast<uint32_t>(value)};
    }
  }
  return {nullptr, 0};
}

inline void drop_stack() { __atomic_fetch_add(&tally()->stacks_dropped, 1, __ATOMIC_RELAXED); }

// Writes a backtrace into the arena. Returns 0 if the arena is full.
inline uint32_t write_stack(uint64_t tag, uint32_t function, const uint64_t* pcs, uint32_t count, bool truncated) {
  const Control* c = control();
  uint64_t bytes = sizeof(StackEntry) + 8ull * count;
  uint64_t granules = (bytes + granule_bytes - 1) / granule_bytes;
  uint64_t limit = c->arena_limit < arena_bytes ? c->arena_limit : arena_bytes;
  uint64_t id = __atomic_fetch_add(&tally()->arena_next, granules, __ATOMIC_RELAXED);
  if (id > arena_bytes / granule_bytes || (id + granules) * granule_bytes > limit) {
    __atomic_fetch_sub(&tally()->arena_next, granules, __ATOMIC_RELAXED);
    return 0;
  }
  auto* entry = in_report<StackEntry>(arena_offset + id * granule_bytes);
  entry->hash = static_cast<uint32_t>(tag);
  entry->function = static_cast<uint8_t>(function);
  entry->truncated = truncated;
  entry->depth = static_cast<uint16_t>(count);
  auto* frames = reinterpret_cast<uint64_t*>(entry + 1);
  for (uint32_t i = 0; i < count; i++) frames[i] = pcs[i];
  return static_cast<uint32_t>(id);
}

// When half of the index is in use, the used part is enlarged.
inline void grow_index(uint64_t stacks) {
  const Control* c = control();
  uint64_t mask = __atomic_load_n(&tally()->index_mask, __ATOMIC_RELAXED);
  if (stacks * 2 <= mask || mask >= c->index_limit) return;
  __atomic_compare_exchange_n(&tally()->index_mask, &mask, mask * index_growth + index_growth - 1, false,
                              __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

// Returns the id of a backtrace that was not found under `mask`, if it was entered when less of the index was in use,
// otherwise 0.
[[gnu::always_inline]] inline uint32_t find_under_less(uint64_t mask, uint64_t hash, uint32_t function,
                                                       const uint64_t* pcs, uint32_t count, bool truncated) {
  uint32_t id = 0;
  // All these slots are far apart.
  for (uint64_t less = mask / index_growth; less > index_first_entries / index_growth; less /= index_growth)
    __builtin_prefetch(&in_report<uint64_t>(index_offset)[hash & less]);
  while (id == 0 && mask > index_first_entries) {
    mask /= index_growth;
    id = find_in_index(hash, mask, function, pcs, count, truncated).id;
  }
  return id;
}

// pre: the backtrace was not found under `mask`; `slot` is its slot there.
[[gnu::noinline]] inline uint32_t insert_stack(uint64_t* slot, uint64_t mask, uint64_t hash, uint32_t function,
                                               const uint64_t* pcs, uint32_t count, bool truncated) {
  uint64_t tag = hash >> 32;
  uint32_t id = find_under_less(mask, hash, function, pcs, count, truncated);
  if (!slot || id != 0) {
    if (id == 0) drop_stack();
  } else if ((id = write_stack(tag, function, pcs, count, truncated)) == 0) {
    drop_stack();
    return 0;
  } else {
    grow_index(__atomic_add_fetch(&tally()->stack_count, 1, __ATOMIC_RELAXED));
  }
  uint64_t expected = 0;
  // Release: a reader that sees the id in the index also sees the frames. If another thread took the slot first, our
  // copy stays valid for this event, and the stack is only stored twice.
  if (slot) __atomic_compare_exchange_n(slot, &expected, (tag << 32) | id, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
  return id;
}

// Returns the id of a backtrace in the shared stack table; 0 if the table is full.
[[gnu::always_inline]] inline uint32_t intern_stack(uint32_t function, const uint64_t* pcs, uint32_t count,
                                                    bool truncated) {
  uint64_t hash = hash_frames(function | (truncated ? 256 : 0), pcs, count);
  uint64_t mask = __atomic_load_n(&tally()->index_mask, __ATOMIC_RELAXED);
  IndexPlace place = find_in_index(hash, mask, function, pcs, count, truncated);
  if (place.id) return place.id;
  return insert_stack(place.slot, mask, hash, function, pcs, count, truncated);
}

// Returns the number of frames that a new backtrace may have: all of them until half of the memory for backtraces is in
// use, then fewer and fewer. The innermost frames show which function allocates; a call without a backtrace shows
// nothing.
inline uint32_t most_frames() {
  const Control* c = control();
  uint64_t limit = c->arena_limit < arena_bytes ? c->arena_limit : arena_bytes;
  uint64_t used = __atomic_load_n(&tally()->arena_next, __ATOMIC_RELAXED) * granule_bytes;
  if (used <= limit / 2) return max_depth;
  if (used <= limit / 4 * 3) return 32;
  return used <= limit / 8 * 7 ? 16 : 8;
}

// Adds a backtrace. If there is too little space for all of its frames, adds only the innermost ones, and sets
// `truncated`.
[[gnu::noinline, gnu::cold]] inline uint32_t insert_backtrace(IndexPlace place, uint64_t mask, uint64_t hash,
                                                              uint32_t function, const uint64_t* pcs, uint32_t count,
                                                              bool* truncated) {
  uint32_t most = most_frames();
  if (count <= most) return insert_stack(place.slot, mask, hash, function, pcs, count, *truncated);
  uint32_t whole = find_under_less(mask, hash, function, pcs, count, *truncated);
  if (whole) return whole;
  *truncated = true;
  return intern_stack(function, pcs, most, true);
}

// Returns the id of an allocation's or a release's backtrace; 0 if the table is full.
[[gnu::always_inline]] inline uint32_t intern_backtrace(uint32_t function, const uint64_t* pcs, uint32_t count,
                                                        bool* truncated) {
  uint64_t hash = hash_frames(function | (*truncated ? 256 : 0), pcs, count);
  uint64_t mask = __atomic_load_n(&tally()->index_mask, __ATOMIC_RELAXED);
  IndexPlace place = find_in_index(hash, mask, function, pcs, count, *truncated);
  if (place.id) return place.id;
  return insert_backtrace(place, mask, hash, function, pcs, count, truncated);
}

}  // namespace memhook
