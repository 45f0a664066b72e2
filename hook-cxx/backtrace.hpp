// The backtrace of an allocation: remembered, unwound by table, or along frame pointers.
#pragma once
#include "frame_pointers.hpp"
#include "last_walk.hpp"
#include "memo.hpp"
#include "python.hpp"
#include "stack_table.hpp"

namespace memhook {

// A wrapper's own frame: [0] the caller's rbp, [1] the return address into the caller.
using Frame = const uint64_t*;

inline uint64_t* scratch_of(RingHeader* ring) {
  return reinterpret_cast<uint64_t*>(reinterpret_cast<unsigned char*>(ring) + ring_scratch_offset);
}

[[gnu::noinline, gnu::cold]] inline void count_truncated(RingHeader* ring) {
  __atomic_store_n(&ring->truncated, ring->truncated + 1, __ATOMIC_RELAXED);
}

// The caches were filled 65,536 or more versions of the module list ago: their keys, which carry
// 16 bits of it, may look current again.
[[gnu::noinline, gnu::cold]] inline void clear_caches(RingHeader* ring, uint64_t version) {
  // What is not in use was never written, unless the ring had another owner, who cleared it as well.
  auto clear = [ring](uint64_t offset, uint64_t bytes) {
    auto* word = reinterpret_cast<volatile uint64_t*>(in_ring(ring, offset));
    for (uint64_t i = 0; i < bytes / 8; i++) word[i] = 0;
  };
  clear(pc_cache_offset, (ring->pc_mask + 1) * sizeof(PcCacheEntry));
  clear(memo_offset, (ring->memo_mask + 1) * gate().memo_bytes);
  ring->cache_version = version;
}

// Finds the backtrace by the tables, or along frame pointers.
template <typename Trace>
[[gnu::always_inline]] inline uint32_t find_frames(RingHeader* ring, uint64_t tag,
                                                   const Position& start, uint64_t* pcs,
                                                   bool* truncated, Trace& trace) {
  const Gate& g = gate();
  if (__builtin_expect(g.flags & flag_frame_pointers, 0))
    return walk_frame_pointers(ring, start, pcs, g.depth, trace);
  return unwind(ring, tag, start, pcs, g.depth, truncated, trace);
}

// Whether an entry of the stack table is this backtrace.
inline bool is_entry_of(uint32_t id, const uint64_t* pcs, uint32_t count, bool truncated) {
  uint64_t* words = entry_words(id);
  if (((words[0] >> 40) & 0xff) != truncated) return false;
  for (;;) {
    uint32_t frames = frames_in(words[0]);
    if (frames > count) return false;
    for (uint32_t i = 0; i < frames; i++)
      if (words[1 + i] != pcs[i]) return false;
    pcs += frames;
    count -= frames;
    uint64_t outer = words[0] & 0xffff'ffff;
    if (outer == 0) return count == 0;
    words = entry_words(outer);
  }
}

// Unwinds once more, without what is remembered or kept, and counts a difference.
[[gnu::noinline, gnu::cold]] inline void check_stack(RingHeader* ring, uint64_t tag,
                                                     const Position& start, uint32_t stack) {
  uint64_t* pcs = scratch_of(ring);
  NoTrace none;
  bool truncated = false;
  uint32_t count = find_frames(ring, tag, start, pcs, &truncated, none);
  bool same = is_entry_of(stack, pcs, count, truncated);
  __atomic_store_n(&ring->memo_checked, ring->memo_checked + 1, __ATOMIC_RELAXED);
  if (!same) __atomic_store_n(&ring->memo_wrong, ring->memo_wrong + 1, __ATOMIC_RELAXED);
}

// Where the thread keeps its last unwinding, if it does, and has come by unwinding to where it is.
[[gnu::always_inline]] inline LastWalk* kept_walk(RingHeader* ring, const Position& start) {
  if (ring->pc_mask != pc_cache_entries - 1 || start.sp < ring->stack_low || start.sp >= ring->stack_high ||
      (gate().flags & flag_frame_pointers))
    return nullptr;
  return last_walk_of(ring);
}

// Finds the backtrace and its id, with the help of the last one.
template <typename Trace>
[[gnu::noinline]] inline uint32_t find_stack_on(RingHeader* ring, LastWalk* last, uint32_t function,
                                                uint64_t version, const Position& start, bool* truncated,
                                                Trace& trace) {
  uint64_t* pcs = scratch_of(ring);
  Walked walked = walk_on(ring, last, version, start, ring->stack_high, pcs, gate().depth,
                          truncated, trace);
  if (walked.are_kept) return intern_stack(function, pcs, walked.count, *truncated, &last->entries);
  OuterEntries none = nothing_known();
  return intern_stack(function, pcs, walked.count, *truncated, &none);
}

// Finds the backtrace and its id.
template <typename Trace>
[[gnu::noinline]] inline uint32_t find_stack(RingHeader* ring, uint32_t function, uint64_t tag,
                                             const Position& start, bool* truncated, Trace& trace) {
  uint64_t* pcs = scratch_of(ring);
  uint32_t count = find_frames(ring, tag, start, pcs, truncated, trace);
  OuterEntries none = nothing_known();
  return intern_stack(function, pcs, count, *truncated, &none);
}

// pre: the caches are of the current module list.
[[gnu::noinline]] inline uint32_t unwind_and_remember(RingHeader* ring, uint32_t function,
                                                      uint64_t version, const Position& start,
                                                      Memo* memo) {
  uint64_t tag = version << 48;
  bool truncated = false;
  uint32_t stack;
  count_unwinding(ring);
  LastWalk* last = kept_walk(ring, start);
  if (memo) {
    // A signal handler may leave us by siglongjmp(3) before it is complete.
    memo->key = 0;
    asm volatile("" ::: "memory");
    MemoTrace trace{memo, start.sp, ring->stack_high, gate().memo_words};
    stack = last ? find_stack_on(ring, last, function, version, start, &truncated, trace)
                 : find_stack(ring, function, tag, start, &truncated, trace);
    remember(trace, start.pc | tag, start, function, stack, truncated);
  } else {
    NoTrace none;
    stack = last ? find_stack_on(ring, last, function, version, start, &truncated, none)
                 : find_stack(ring, function, tag, start, &truncated, none);
  }
  if (truncated) count_truncated(ring);
  if (__builtin_expect((gate().flags & flag_check_memo) && stack != 0, 0)) check_stack(ring, tag, start, stack);
  return stack;
}

// By the target's own backtrace(): a reference to compare the others with.
[[gnu::noinline]] inline uint32_t capture_by_libc(RingHeader* ring, uint32_t function,
                                                  Frame frame) {
  const Gate& g = gate();
  uint64_t* pcs = scratch_of(ring);
  // Our own frames come first. There is room for them: the scratch area has another page.
  constexpr int own_frames = 8;
  OuterEntries none = nothing_known();
  int found = g.libc_backtrace
                  ? g.libc_backtrace(pcs, static_cast<int>(g.depth) + own_frames)
                  : 0;
  int first = 0;
  while (first < found && pcs[first] != frame[1]) first++;
  if (first == found) {
    pcs[0] = frame[1];
    return intern_stack(function, pcs, 1, true, &none);
  }
  uint32_t count = static_cast<uint32_t>(found - first);
  return intern_stack(function, pcs + first, count < g.depth ? count : g.depth, false, &none);
}

// The id of the backtrace from here on; 0 when the stack table is full.
[[gnu::always_inline]] inline uint32_t stack_from(RingHeader* ring, uint32_t function,
                                                  const Position& start) {
  uint64_t version = module_list() >> 32;
  if (__builtin_expect((version ^ ring->cache_version) >> 16, 0)) clear_caches(ring, version);
  uint64_t tag = version << 48;
  uint64_t high = ring->stack_high;
  if (__builtin_expect(start.sp < ring->stack_low || start.sp >= high, 0))
    return unwind_and_remember(ring, function, version, start, nullptr);
  MemoPlace first = first_place(ring, start, high);
  Memo* memo = memo_of(ring, first.hash);
  if (!still_holds(memo, start.pc | tag, start, function, high)) {
    auto [other, holds] = find_other_memo(ring, first, start.pc | tag, start, function);
    if (!holds) return unwind_and_remember(ring, function, version, start, other);
    memo = other;
  }
  if (__builtin_expect(memo->flags & memo_truncated, 0)) count_truncated(ring);
  if (__builtin_expect(gate().flags & flag_check_memo, 0)) check_stack(ring, tag, start, memo->stack);
  return memo->stack;
}

// The id of the calling thread's native backtrace; 0 when the stack table is full.
[[gnu::always_inline]] inline uint32_t capture_native_stack(RingHeader* ring, uint32_t function,
                                                            Frame frame) {
  if (__builtin_expect(gate().flags & flag_libc_backtrace, 0))
    return capture_by_libc(ring, function, frame);
  return stack_from(ring, function, {frame[1], reinterpret_cast<uint64_t>(frame + 2), frame[0]});
}

// The id of the calling thread's backtrace; 0 when the stack table is full.
[[gnu::always_inline]] inline uint32_t capture_stack(RingHeader* ring, uint32_t function,
                                                     Frame frame) {
  uint32_t stack = capture_native_stack(ring, function, frame);
  if (__builtin_expect(gate().has_python, 0)) return python::with_frames(ring, function, stack);
  return stack;
}

// The same if it is remembered and nothing else is to be done; else 0.
[[gnu::always_inline]] inline uint32_t remembered_stack(RingHeader* ring, uint32_t function,
                                                        Frame frame) {
  uint64_t version = module_list() >> 32;
  Position start{frame[1], reinterpret_cast<uint64_t>(frame + 2), frame[0]};
  uint64_t high = ring->stack_high;
  if (__builtin_expect(((version ^ ring->cache_version) >> 16) || start.sp < ring->stack_low ||
                           start.sp >= high,
                       0))
    return 0;
  const Memo* memo = memo_of(ring, first_place(ring, start, high).hash);
  bool holds = still_holds(memo, start.pc | version << 48, start, function, high);
  return holds && !(memo->flags & memo_truncated) ? memo->stack : 0;
}

}  // namespace memhook
