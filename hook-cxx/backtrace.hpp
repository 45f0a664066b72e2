// Backtraces and their interning.
#pragma once
#include "ring.hpp"

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
    if (!sys::read_own(fp, words, sizeof words) || words[1] < 4096) break;
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

[[gnu::always_inline]] inline uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 32);
}

[[gnu::noinline]] inline uint32_t insert_stack(uint64_t* slot, uint64_t tag, uint32_t function,
                                               const uint64_t* pcs, uint32_t count) {
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
  entry->truncated = 0;
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
                                                    uint32_t count) {
  uint64_t hash = function;
  for (uint32_t i = 0; i < count; i++) hash = mix(hash, pcs[i]);
  uint64_t tag = hash >> 32;
  auto* index = at<uint64_t>(index_offset);
  for (uint64_t probe = 0; probe < 64; probe++) {
    uint64_t* slot = &index[(hash + probe) & (index_entries - 1)];
    uint64_t value = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (value == 0) return insert_stack(slot, tag, function, pcs, count);
    if ((value >> 32) != tag) continue;
    auto* entry = at<StackEntry>(arena_offset + (value & 0xffff'ffff) * granule_bytes);
    if (entry->depth != count || entry->function != function) continue;
    auto* frames = reinterpret_cast<const uint64_t*>(entry + 1);
    uint32_t i = 0;
    while (i < count && frames[i] == pcs[i]) i++;
    if (i == count) return static_cast<uint32_t>(value);
  }
  __atomic_fetch_add(&control()->stacks_dropped, 1, __ATOMIC_RELAXED);
  return 0;
}

[[gnu::always_inline]] inline uint32_t capture_stack(RingHeader* ring, uint32_t function,
                                                     Frame frame) {
  uint64_t* pcs = scratch_of(ring);
  uint32_t count = walk_frame_pointers(ring, frame, pcs, gate().depth);
  return intern_stack(function, pcs, count);
}

}  // namespace memhook
