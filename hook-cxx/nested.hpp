// Calls made while this thread is already inside a hooked call.
//
// Nearly all such calls are part of the hooked call: operator new calls malloc. Two kinds are not: calls of a signal
// handler that has interrupted the hooked call, and calls after the hooked call was left in a way that our code does
// not see (longjmp, a switch to another coroutine). Neither kind can be recognized by the frame's address alone, so if
// a call may be of one of these kinds, the stack is unwound.
#pragma once
#include "backtrace.hpp"
#include "seats.hpp"

namespace memhook {

// At least this number of bytes lies above the frame of a signal handler: the red zone, siginfo_t and ucontext_t (psABI
// 3.2.2; struct rt_sigframe of the kernel). The distance between an allocator function and another allocator function
// that it calls is smaller.
inline constexpr uint64_t signal_frame_bytes = 768;
// Usual number of frames between a call through the passage and its callee.
inline constexpr uint32_t few_frames = 4;
// Of consecutive calls that all seem to be part of one call, one in this many is checked by unwinding the stack.
inline constexpr uint64_t many_nested = 64;

// Searches for the return address of one frame.
struct FrameSearch {
  uint64_t wanted;
  bool found = false, passed = false, signal = false;

  void reads(uint64_t place, uint64_t) {
    found |= place == wanted;
    passed |= place > wanted && !found;
  }
  void restores_rbp(uint64_t, uint64_t) {}
  void uses_rbp() {}
  void spoil() { signal |= !found; }
};

// Classifies a call whose frame is below the frame of the outer call. Returns true if the outer call was left.
[[gnu::noinline, gnu::cold]] inline bool judge_nested(RingHeader* ring, uint64_t frame, uint64_t outer) {
  if (ring->nested_head != ring->head) {
    ring->nested_head = ring->head;
    ring->nested = 0;
  }
  uint64_t nested = ++ring->nested;
  // If the call went through the passage, an exception may have left it unnoticed, so the stack is always checked in
  // that case.
  bool is_passed = passed_frames[number_of(ring)] == outer;
  if (!is_passed && outer - frame < signal_frame_bytes && nested % many_nested != 0) return false;
  if (!has_stack_room(ring, frame, room_for_unwinding)) return false;
  // The scratch memory is in use: a signal handler must not use it.
  ring->outer = outer | 1;
  asm volatile("" ::: "memory");
  uint64_t tag = module_list() >> 32 << 48;
  auto words = reinterpret_cast<const uint64_t*>(frame);
  FrameSearch search{outer + 8};
  bool truncated;
  uint32_t count;
  // A call made by operator new is a few frames away from it.
  for (uint32_t depth = is_passed ? few_frames : max_depth;; depth = max_depth) {
    truncated = false;
    search = {outer + 8};
    count = unwind(ring, tag, {words[1], frame + 16, words[0]}, scratch_of(ring), depth, &truncated, search);
    if (depth == max_depth || search.found || search.passed) break;
  }
  asm volatile("" ::: "memory");
  ring->outer = outer;
  bool from_handler = search.found && search.signal;
  // A walk that was truncated before the frame proves nothing.
  bool left = !search.found && (search.passed || (!truncated && count < max_depth));
  if (from_handler || left)
    __atomic_store_n(&ring->reentrant, ring->reentrant + (left ? nested - 1 : 1), __ATOMIC_RELAXED);
  return left;
}

}  // namespace memhook
