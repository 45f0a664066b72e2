// Finds call stacks by following frame pointers: [rbp] is the caller's rbp, and [rbp + 8] is the return address.
// Correct only if every function was compiled with frame pointers. Otherwise, frames are missing or invented.
#pragma once
#include "unwind.hpp"

namespace memhook {

// Walks a stack with unknown bounds (a coroutine, an alternate signal stack, a thread that the attacher has not
// examined yet). Every read goes through the kernel, which returns EFAULT where we would crash.
[[gnu::noinline, gnu::cold]] inline uint32_t walk_unknown_stack(const Position& start, uint64_t* pcs, uint32_t depth) {
  uint64_t previous = start.sp - 16, fp = start.rbp;
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

// Fills `pcs` as `unwind` does, and reports to `trace` in the same way. [sp, high) is mapped as long as the thread runs
// on it, so the reads cannot fault. pre: depth > 0.
template <typename Trace>
[[gnu::always_inline]] inline uint32_t walk_frame_pointers(RingHeader* ring, const Position& start, uint64_t* pcs,
                                                           uint32_t depth, Trace& trace) {
  auto [low, high] = bounds_of(ring);
  pcs[0] = start.pc;
  if (__builtin_expect(start.sp < low || start.sp >= high, 0)) {
    trace.spoil();
    return walk_unknown_stack(start, pcs, depth);
  }
  // The wrapper's own frame is lower.
  uint64_t previous = start.sp - 16, fp = start.rbp;
  uint32_t count = 1;
  trace.uses_rbp();
  while (count < depth && fp > previous && (fp & 7) == 0) {
    if (fp >= high - 16) {
      // The walk ends because the stack does, and not because of a word that `trace` could record.
      trace.spoil();
      break;
    }
    auto* words = reinterpret_cast<const uint64_t*>(fp);
    trace.reads(fp, words[0]);
    trace.reads(fp + 8, words[1]);
    if (words[1] < 4096) break;
    pcs[count++] = words[1];
    previous = fp;
    fp = words[0];
  }
  return count;
}

}  // namespace memhook
