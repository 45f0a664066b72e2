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

// Where an entry is in the index, or would be.
struct IndexPlace {
  uint64_t* slot;  // null: there is no room for it
  uint32_t id;     // 0: not there
};

// The head of an entry, as one word.
[[gnu::always_inline]] inline uint64_t entry_head(uint32_t function, uint32_t count, bool truncated,
                                                  uint32_t outer) {
  static_assert(__builtin_offsetof(StackEntry, outer) == 0 && __builtin_offsetof(StackEntry, function) == 4 &&
                __builtin_offsetof(StackEntry, truncated) == 5 && __builtin_offsetof(StackEntry, depth) == 6);
  return outer | uint64_t{function} << 32 | uint64_t{truncated} << 40 | uint64_t{count} << 48;
}
inline uint32_t frames_in(uint64_t head) { return static_cast<uint32_t>(head >> 48); }

// An entry: its head, and its frames.
inline uint64_t* entry_words(uint64_t id) { return at<uint64_t>(arena_offset + id * granule_bytes); }

// How many cache lines of the index are searched, and the entries of one.
inline constexpr uint64_t index_tries = 8, index_line = 8;

// An entry is in the first line of several with room for it. They are anywhere, because entries of the time
// when less of the index was in use crowd its beginning. Nothing is ever taken out, so the first
// empty place ends the search.
[[gnu::always_inline]] inline IndexPlace find_in_index(uint64_t hash, uint64_t mask, uint64_t head,
                                                       const uint64_t* pcs) {
  uint64_t tag = hash >> 32;
  auto* index = at<uint64_t>(index_offset);
  uint64_t place = hash;
  for (uint64_t tries = 0; tries < index_tries; tries++, place = mix(place, tag)) {
    uint64_t* line = &index[place & mask & (index_entries - 1) & ~(index_line - 1)];
    for (uint64_t* slot = line; slot < line + index_line; slot++) {
      uint64_t value = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
      if (value == 0) return {slot, 0};
      if ((value >> 32) != tag) continue;
      const uint64_t* words = entry_words(value & 0xffff'ffff);
      if (words[0] != head) continue;
      uint32_t i = 0, count = frames_in(head);
      while (i < count && words[1 + i] == pcs[i]) i++;
      if (i == count) return {slot, static_cast<uint32_t>(value)};
    }
  }
  return {nullptr, 0};
}

inline void drop_stack() {
  __atomic_fetch_add(&control()->stacks_dropped, 1, __ATOMIC_RELAXED);
}

// Writes an entry into the arena; 0 when that is full.
inline uint32_t write_entry(uint64_t head, const uint64_t* pcs) {
  Control* c = control();
  uint32_t count = frames_in(head);
  uint64_t bytes = sizeof(StackEntry) + 8 * count;
  uint64_t granules = (bytes + granule_bytes - 1) / granule_bytes;
  uint64_t limit = c->arena_limit < arena_bytes ? c->arena_limit : arena_bytes;
  uint64_t id = __atomic_fetch_add(&c->arena_next, granules, __ATOMIC_RELAXED);
  if ((id + granules) * granule_bytes > limit) {
    __atomic_fetch_sub(&c->arena_next, granules, __ATOMIC_RELAXED);
    return 0;
  }
  uint64_t* words = entry_words(id);
  words[0] = head;
  for (uint32_t i = 0; i < count; i++) words[1 + i] = pcs[i];
  return static_cast<uint32_t>(id);
}

// Where half of the index is in use, more of it is taken.
inline void grow_index(uint64_t entries) {
  Control* c = control();
  uint64_t mask = __atomic_load_n(&c->index_mask, __ATOMIC_RELAXED);
  if (entries * 2 <= mask || mask >= c->index_limit) return;
  __atomic_compare_exchange_n(&c->index_mask, &mask, mask * index_growth + index_growth - 1, false,
                              __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

// pre: the entry was not found under `mask`; `slot` is the place for it there.
[[gnu::noinline]] inline uint32_t insert_entry(uint64_t* slot, uint64_t mask, uint64_t hash, uint64_t head,
                                               const uint64_t* pcs) {
  uint64_t tag = hash >> 32;
  uint32_t id = 0;
  // It may stand where it was put when less of the index was in use.
  while (id == 0 && mask > index_first_entries) {
    mask /= index_growth;
    id = find_in_index(hash, mask, head, pcs).id;
  }
  if (!slot || id != 0) {
    if (id == 0) drop_stack();
  } else if ((id = write_entry(head, pcs)) == 0) {
    drop_stack();
    return 0;
  } else {
    grow_index(__atomic_add_fetch(&control()->stack_count, 1, __ATOMIC_RELAXED));
  }
  uint64_t expected = 0;
  // Release: whoever finds the id in the index finds the frames written, and those of the entry that it names.
  // When another thread took the place first, our copy stays valid for this event; the stack is merely
  // stored twice.
  if (slot)
    __atomic_compare_exchange_n(slot, &expected, (tag << 32) | id, false, __ATOMIC_RELEASE,
                                __ATOMIC_RELAXED);
  return id;
}

// The id of an entry; 0 when the table is full.
[[gnu::always_inline]] inline uint32_t intern_entry(uint64_t head, const uint64_t* pcs) {
  uint64_t hash = hash_frames(head, pcs, frames_in(head));
  uint64_t mask = __atomic_load_n(&control()->index_mask, __ATOMIC_RELAXED);
  IndexPlace place = find_in_index(hash, mask, head, pcs);
  if (place.id) return place.id;
  return insert_entry(place.slot, mask, hash, head, pcs);
}

// An entry that does not name another one.
[[gnu::always_inline]] inline uint32_t intern_words(uint32_t function, const uint64_t* words, uint32_t count) {
  return intern_entry(entry_head(function, count, false, 0), words);
}

// The entries of the outer frames of a backtrace, as far as they are known.
struct OuterEntries {
  uint32_t known, unused;
  uint32_t ids[max_depth / entry_frames];
};

[[gnu::always_inline]] inline OuterEntries nothing_known() {
  OuterEntries entries;
  entries.known = 0;
  return entries;
}

// The id of a backtrace; 0 when the table is full. Its frames are kept by eights, counted from the outermost
// one on, so that backtraces that are alike in their outer frames share their entries; the innermost eight or
// less are an entry of their own, which names the function and is what an event has. As one set of
// frames is cut in one way only, a backtrace has one id.
[[gnu::always_inline]] inline uint32_t intern_stack(uint32_t function, const uint64_t* pcs, uint32_t count,
                                                    bool truncated, OuterEntries* outer) {
  uint32_t pieces = (count - 1) / entry_frames;
  uint32_t piece = outer->known < pieces ? outer->known : pieces;
  uint32_t id = piece ? outer->ids[piece - 1] : 0;
  for (; piece < pieces; piece++) {
    const uint64_t* frames = pcs + count - (piece + 1) * entry_frames;
    id = intern_entry(entry_head(stack_outer, entry_frames, false, id), frames);
    if (id == 0) return 0;
    outer->ids[piece] = id;
    outer->known = piece + 1;
  }
  return intern_entry(entry_head(function, count - pieces * entry_frames, truncated, id), pcs);
}

}  // namespace memhook
