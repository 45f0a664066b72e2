// Backtrace of an allocation: remembered, unwound by the unwind tables, or found along frame pointers.
#pragma once
#include "frame_pointers.hpp"
#include "memo.hpp"
#include "python.hpp"
#include "stack_room.hpp"
#include "stack_table.hpp"

namespace memhook {

inline uint64_t* scratch_of(RingHeader* ring) {
  return reinterpret_cast<uint64_t*>(reinterpret_cast<unsigned char*>(ring) + ring_scratch_offset);
}

[[gnu::noinline, gnu::cold]] inline void count_truncated(RingHeader* ring) {
  __atomic_store_n(&ring->truncated, ring->truncated + 1, __ATOMIC_RELAXED);
}

// The caches were filled at least 65,536 versions of the module list ago. Their keys, which contain 16 bits of the
// version, may look current again.
[[gnu::noinline, gnu::cold]] inline void clear_caches(RingHeader* ring, uint64_t version) {
  // The unused part was never written, unless the ring had another owner, who also cleared it.
  auto clear = [ring](uint64_t offset, uint64_t bytes) {
    auto* word = reinterpret_cast<volatile uint64_t*>(in_ring(ring, offset));
    for (uint64_t i = 0; i < bytes / 8; i++) word[i] = 0;
  };
  clear(pc_cache_offset, ((ring->pc_mask & (pc_cache_entries - 1)) + 1) * sizeof(PcCacheEntry));
  clear(memo_offset, ((ring->memo_mask & gate().memo_mask) + 1) * gate().memo_bytes);
  ring->cache_version = version;
}

// Unwinds the stack by the unwind tables or along frame pointers.
template <typename Trace>
[[gnu::always_inline]] inline uint32_t find_frames(RingHeader* ring, uint64_t tag, const Position& start, uint64_t* pcs,
                                                   bool* truncated, Trace& trace) {
  const Gate& g = gate();
  if (__builtin_expect(g.flags & flag_frame_pointers, 0)) return walk_frame_pointers(ring, start, pcs, g.depth, trace);
  return unwind(ring, tag, start, pcs, g.depth, truncated, trace);
}

// Unwinds once more, without remembered backtraces, and counts the result if it differs.
[[gnu::noinline, gnu::cold]] inline void check_memo(RingHeader* ring, uint64_t tag, const Position& start,
                                                    const Memo* memo) {
  uint64_t* pcs = scratch_of(ring);
  NoTrace none;
  bool truncated = false;
  uint32_t count = find_frames(ring, tag, start, pcs, &truncated, none);
  StackEntry* entry = stack_entry(memo->stack);
  auto* frames = reinterpret_cast<const uint64_t*>(entry + 1);
  // If there was no space for all frames, the backtrace was truncated to one of these numbers of frames (most_frames in
  // stack_table.hpp).
  uint32_t depth = once(entry->depth);
  bool is_short = entry->truncated && depth < count && (depth == 32 || depth == 16 || depth == 8);
  bool same = is_short || (depth == count && entry->truncated == truncated);
  for (uint32_t i = 0; same && i < depth; i++) same = frames[i] == pcs[i];
  __atomic_store_n(&ring->memo_checked, ring->memo_checked + 1, __ATOMIC_RELAXED);
  if (!same) __atomic_store_n(&ring->memo_wrong, ring->memo_wrong + 1, __ATOMIC_RELAXED);
}

// pre: the caches belong to the current module list.
[[gnu::noinline]] inline uint32_t unwind_and_remember(RingHeader* ring, uint32_t function, uint64_t tag,
                                                      const Position& start, Memo* memo) {
  uint64_t* pcs = scratch_of(ring);
  bool truncated = false;
  uint32_t count, stack;
  count_unwinding(ring);
  if (memo) {
    memo->key = 0;
    asm volatile("" ::: "memory");
    MemoTrace trace{memo, start.sp, bounds_of(ring).high, gate().memo_words};
    count = find_frames(ring, tag, start, pcs, &truncated, trace);
    stack = intern_backtrace(function, pcs, count, &truncated);
    remember(trace, start.pc | tag, start, function, stack, truncated);
  } else {
    NoTrace none;
    count = find_frames(ring, tag, start, pcs, &truncated, none);
    stack = intern_backtrace(function, pcs, count, &truncated);
  }
  if (truncated) count_truncated(ring);
  return stack;
}

// Returns the id of the backtrace from here on; 0 if the stack table is full.
[[gnu::always_inline]] inline uint32_t stack_from(RingHeader* ring, uint32_t function, const Position& start) {
  uint64_t version = module_list() >> 32;
  if (__builtin_expect((version ^ ring->cache_version) >> 16, 0)) clear_caches(ring, version);
  uint64_t tag = version << 48;
  auto [low, high] = bounds_of(ring);
  if (__builtin_expect(start.sp < low || start.sp >= high, 0))
    return unwind_and_remember(ring, function, tag, start, nullptr);
  MemoPlace first = first_place(ring, start, high);
  Memo* memo = memo_of(ring, first.hash);
  if (!still_holds(memo, start.pc | tag, start, function, high)) {
    auto [other, holds] = find_other_memo(ring, first, start.pc | tag, start, function, high);
    if (!holds) return unwind_and_remember(ring, function, tag, start, other);
    memo = other;
  }
  if (__builtin_expect(memo->flags & memo_truncated, 0)) count_truncated(ring);
  if (__builtin_expect(gate().flags & flag_check_memo, 0)) check_memo(ring, tag, start, memo);
  return memo->stack;
}

// Returns the start of the unwinding: after the wrapper's own frame.
[[gnu::always_inline]] inline Position caller_of(Frame frame) {
  return {frame[1], reinterpret_cast<uint64_t>(frame + 2), frame[0]};
}

// Returns the id for a call on a stack with too little space: its call site, as a truncated backtrace.
[[gnu::noinline, gnu::cold]] inline uint32_t call_site_of(RingHeader* ring, uint32_t function, Frame frame) {
  uint64_t* pcs = scratch_of(ring);
  pcs[0] = frame[1];
  count_truncated(ring);
  return intern_stack(function, pcs, 1, true);
}

// Returns the id of the calling thread's native backtrace; 0 if the stack table is full.
[[gnu::always_inline]] inline uint32_t capture_native_stack(RingHeader* ring, uint32_t function, Frame frame) {
  if (__builtin_expect(!has_stack_room(ring, reinterpret_cast<uint64_t>(frame), room_for_unwinding), 0))
    return call_site_of(ring, function, frame);
  return stack_from(ring, function, caller_of(frame));
}

// Returns the id of the calling thread's backtrace; 0 if the stack table is full.
[[gnu::always_inline]] inline uint32_t capture_stack(RingHeader* ring, uint32_t function, Frame frame,
                                                     bool is_release = false) {
  uint32_t stack = capture_native_stack(ring, function, frame);
  if (__builtin_expect(gate().has_python, 0) &&
      has_stack_room(ring, reinterpret_cast<uint64_t>(frame), room_for_python))
    return python::with_frames(ring, function, stack, caller_of(frame), is_release);
  return stack;
}

// Returns the id if the backtrace is remembered and nothing else has to be done; otherwise returns 0.
[[gnu::always_inline]] inline uint32_t remembered_stack(RingHeader* ring, uint32_t function, Frame frame) {
  uint64_t version = module_list() >> 32;
  Position start = caller_of(frame);
  auto [low, high] = bounds_of(ring);
  if (__builtin_expect(((version ^ ring->cache_version) >> 16) || start.sp < low || start.sp >= high, 0)) return 0;
  const Memo* memo = memo_of(ring, first_place(ring, start, high).hash);
  if (memo->flags & memo_truncated) return 0;
  return still_holds(memo, start.pc | version << 48, start, function, high) ? memo->stack : 0;
}

}  // namespace memhook
