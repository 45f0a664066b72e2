// The backtrace of an allocation: remembered, unwound by table, or along frame pointers.
#pragma once
#include "memo.hpp"
#include "stack_table.hpp"

namespace memhook {

// A wrapper's own frame: [0] the caller's rbp, [1] the return address into the caller.
using Frame = const uint64_t*;

inline uint64_t* scratch_of(RingHeader* ring) {
  return reinterpret_cast<uint64_t*>(reinterpret_cast<unsigned char*>(ring) + ring_scratch_offset);
}

// Follows frame pointers on a stack whose bounds are not known (a coroutine, an alternate signal
// stack, a thread the attacher has not yet looked at): every read goes through the kernel, which
// answers EFAULT where we would crash.
[[gnu::noinline, gnu::cold]] inline uint32_t walk_unknown_stack(Frame frame, uint64_t* pcs,
                                                                uint32_t depth) {
  uint64_t previous = reinterpret_cast<uint64_t>(frame), fp = frame[0];
  uint32_t count = 1;
  while (count < depth && fp > previous && fp - previous < (8u << 20) && (fp & 7) == 0) {
    uint64_t words[2];
    if (!may_call_kernel() || !sys::read_own(fp, words, sizeof words) || words[1] < 4096) break;
    pcs[count++] = words[1];
    previous = fp;
    fp = words[0];
  }
  return count;
}

// Frame-pointer walk inside the thread's stack: [frame, stack_high) is mapped as long as the
// thread runs on it, so the reads cannot fault.
[[gnu::always_inline]] inline uint32_t walk_frame_pointers(RingHeader* ring, Frame frame,
                                                           uint64_t* pcs, uint32_t depth) {
  uint64_t sp = reinterpret_cast<uint64_t>(frame);
  uint64_t high = ring->stack_high;
  pcs[0] = frame[1];
  if (__builtin_expect(sp < ring->stack_low || sp >= high, 0))
    return walk_unknown_stack(frame, pcs, depth);
  uint64_t fp = frame[0];
  uint32_t count = 1;
  while (count < depth && fp > sp && fp < high - 16 && (fp & 7) == 0) {
    auto* words = reinterpret_cast<const uint64_t*>(fp);
    if (words[1] < 4096) break;
    pcs[count++] = words[1];
    sp = fp;
    fp = words[0];
  }
  return count;
}

[[gnu::noinline, gnu::cold]] inline void count_truncated(RingHeader* ring) {
  __atomic_store_n(&ring->truncated, ring->truncated + 1, __ATOMIC_RELAXED);
}

// The caches were filled 65,536 or more versions of the module list ago: their keys, which carry
// 16 bits of it, may look current again.
[[gnu::noinline, gnu::cold]] inline void clear_caches(RingHeader* ring, uint64_t version) {
  auto* word = reinterpret_cast<volatile uint64_t*>(in_ring(ring, pc_cache_offset));
  for (uint64_t i = 0; i < (ring_prefix_bytes - pc_cache_offset) / 8; i++) word[i] = 0;
  ring->cache_version = version;
}

// Unwinds once more, without what is remembered, and counts a difference.
[[gnu::noinline, gnu::cold]] inline void check_memo(RingHeader* ring, uint64_t tag,
                                                    const Position& start, const Memo* memo) {
  uint64_t* pcs = scratch_of(ring);
  NoTrace none;
  bool truncated = false;
  uint32_t count = unwind(ring, tag, start, pcs, gate().depth, &truncated, none);
  auto* entry = at<StackEntry>(arena_offset + uint64_t{memo->stack} * granule_bytes);
  auto* frames = reinterpret_cast<const uint64_t*>(entry + 1);
  bool same = entry->depth == count && entry->truncated == truncated;
  for (uint32_t i = 0; same && i < count; i++) same = frames[i] == pcs[i];
  __atomic_store_n(&ring->memo_checked, ring->memo_checked + 1, __ATOMIC_RELAXED);
  if (!same) __atomic_store_n(&ring->memo_wrong, ring->memo_wrong + 1, __ATOMIC_RELAXED);
}

// pre: the caches are of the current module list.
[[gnu::noinline]] inline uint32_t unwind_and_remember(RingHeader* ring, uint32_t function,
                                                      uint64_t tag, const Position& start,
                                                      Memo* memo) {
  uint64_t* pcs = scratch_of(ring);
  bool truncated = false;
  uint32_t count, stack;
  __atomic_store_n(&ring->memo_misses, ring->memo_misses + 1, __ATOMIC_RELAXED);
  if (memo) {
    memo->key = 0;
    MemoTrace trace{memo, start.sp, ring->stack_high, gate().memo_words};
    count = unwind(ring, tag, start, pcs, gate().depth, &truncated, trace);
    stack = intern_stack(function, pcs, count, truncated);
    remember(trace, start.pc | tag, start, function, stack, truncated);
  } else {
    NoTrace none;
    count = unwind(ring, tag, start, pcs, gate().depth, &truncated, none);
    stack = intern_stack(function, pcs, count, truncated);
  }
  if (truncated) count_truncated(ring);
  return stack;
}

// The other ways to find a backtrace: references to compare the tables with.
[[gnu::noinline]] inline uint32_t capture_otherwise(RingHeader* ring, uint32_t function,
                                                    Frame frame) {
  const Gate& g = gate();
  uint64_t* pcs = scratch_of(ring);
  if (!(g.flags & flag_libc_backtrace))
    return intern_stack(function, pcs, walk_frame_pointers(ring, frame, pcs, g.depth), false);
  // Our own frames come first. There is room for them: the scratch area has another page.
  constexpr int own_frames = 8;
  int found = g.libc_backtrace
                  ? g.libc_backtrace(pcs, static_cast<int>(g.depth) + own_frames)
                  : 0;
  int first = 0;
  while (first < found && pcs[first] != frame[1]) first++;
  if (first == found) {
    pcs[0] = frame[1];
    return intern_stack(function, pcs, 1, true);
  }
  uint32_t count = static_cast<uint32_t>(found - first);
  return intern_stack(function, pcs + first, count < g.depth ? count : g.depth, false);
}

// The id of the calling thread's backtrace; 0 when the stack table is full.
[[gnu::always_inline]] inline uint32_t capture_stack(RingHeader* ring, uint32_t function,
                                                     Frame frame) {
  const Gate& g = gate();
  if (__builtin_expect(g.flags & (flag_frame_pointers | flag_libc_backtrace), 0))
    return capture_otherwise(ring, function, frame);
  uint64_t version = module_list() >> 32;
  if (__builtin_expect((version ^ ring->cache_version) >> 16, 0)) clear_caches(ring, version);
  uint64_t tag = version << 48;
  Position start{frame[1], reinterpret_cast<uint64_t>(frame + 2), frame[0]};
  uint64_t high = ring->stack_high;
  if (__builtin_expect(start.sp < ring->stack_low || start.sp >= high, 0))
    return unwind_and_remember(ring, function, tag, start, nullptr);
  Memo* memo = memo_of(ring, start.pc, start.sp);
  if (!still_holds(memo, start.pc | tag, start, function, g.memo_words, high))
    return unwind_and_remember(ring, function, tag, start, memo);
  if (__builtin_expect(memo->flags & memo_truncated, 0)) count_truncated(ring);
  if (__builtin_expect(g.flags & flag_check_memo, 0)) check_memo(ring, tag, start, memo);
  return memo->stack;
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
  const Memo* memo = memo_of(ring, start.pc, start.sp);
  bool holds = still_holds(memo, start.pc | version << 48, start, function, gate().memo_words, high);
  return holds && !(memo->flags & memo_truncated) ? memo->stack : 0;
}

}  // namespace memhook
