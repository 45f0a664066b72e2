// Calls that come while this thread is already inside a hooked call.
//
// Nearly all are part of that call: operator new calls malloc. Two kinds are not: those of a signal
// handler that has interrupted the call, and those after the call was left on a way that no code of ours
// sees (longjmp, a switch to another coroutine). Neither can be told by the frame's address alone, so
// where it may be one of them, the stack is unwound.
#pragma once
#include "backtrace.hpp"
#include "seats.hpp"

namespace memhook {

// What a signal handler's frames have above them takes at least so much: the red zone, siginfo_t and
// ucontext_t (psABI 3.2.2; struct rt_sigframe of the kernel). What an allocator function puts between
// itself and another that it calls is less.
inline constexpr uint64_t signal_frame_bytes = 768;
// Between a call by the passage and what it calls, as a rule.
inline constexpr uint32_t few_frames = 4;
// So many calls in a row that all seem to be part of one.
inline constexpr uint64_t many_nested = 64;

// Looks for the return address of one frame on the way.
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

// Decides about a call whose frame is below that of the outer one. True: the outer one was left.
[[gnu::noinline, gnu::cold]] inline bool judge_nested(RingHeader* ring, uint64_t frame, uint64_t outer) {
  if (ring->nested_head != ring->head) {
    ring->nested_head = ring->head;
    ring->nested = 0;
  }
  uint64_t nested = ++ring->nested;
  // An exception that leaves a call by the passage tells nobody, so there it is always looked at.
  bool is_passed = passed_frames[number_of(ring)] == outer;
  if (!is_passed && outer - frame < signal_frame_bytes && nested % many_nested != 0) return false;
  if (!has_stack_room(ring, frame, room_for_unwinding)) return false;
  // The scratch memory is in use: a signal handler has to keep off.
  ring->outer = outer | 1;
  asm volatile("" ::: "memory");
  uint64_t tag = module_list() >> 32 << 48;
  auto words = reinterpret_cast<const uint64_t*>(frame);
  FrameSearch search{outer + 8};
  bool truncated;
  uint32_t count;
  // A call that operator new makes is a few frames away from it.
  for (uint32_t depth = is_passed ? few_frames : max_depth;; depth = max_depth) {
    truncated = false;
    search = {outer + 8};
    count = unwind(ring, tag, {words[1], frame + 16, words[0]}, scratch_of(ring), depth, &truncated, search);
    if (depth == max_depth || search.found || search.passed) break;
  }
  asm volatile("" ::: "memory");
  ring->outer = outer;
  bool from_handler = search.found && search.signal;
  // A walk that was cut short before it came there says nothing.
  bool left = !search.found && (search.passed || (!truncated && count < max_depth));
  if (from_handler || left)
    __atomic_store_n(&ring->reentrant, ring->reentrant + (left ? nested - 1 : 1), __ATOMIC_RELAXED);
  return left;
}

}  // namespace memhook
