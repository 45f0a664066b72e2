// Space on the stack on which a call was made.
//
// The hook runs on stacks of the program, and some of them are small: stacks of coroutines, of signal handlers, of
// threads with PTHREAD_STACK_MIN. Every call needs little more stack than an allocator does. Code that needs more first
// checks how much space is left, and makes do with less if there is not enough: the backtrace of a call is then its
// call site.
//
// If the bounds of the stack are known, they decide. Otherwise, the rest of the page that contains the stack pointer is
// available, and so are the pages below that can be read, which a guard page cannot. A stack that ends in the middle of
// other memory of the program, without a guard page, cannot be distinguished from adjacent memory.
#pragma once
#include "unwind.hpp"

namespace memhook {

// A wrapper's own frame: [0] the caller's rbp, [1] the return address into the caller.
using Frame = const uint64_t*;

// Upper bounds on the stack used by a call in bytes. A test compares them with the compiler's figures. A call that
// needs neither takes up to 704.
inline constexpr uint64_t room_for_unwinding = 1024;
inline constexpr uint64_t room_for_python = 2048;

[[gnu::noinline, gnu::cold]] inline bool has_readable_room(uint64_t frame, uint64_t bytes) {
  uint64_t page = frame & ~4095ull, lowest = frame - bytes;
  while (page > lowest) {
    uint64_t word;
    page -= 4096;
    if (!may_call_kernel() || !sys::read_own(page, &word, sizeof word)) return false;
  }
  return true;
}

// Returns true if there are this many bytes below the frame.
[[gnu::always_inline]] inline bool has_stack_room(const RingHeader* ring, uint64_t frame, uint64_t bytes) {
  auto [low, high] = bounds_of(ring);
  if (__builtin_expect(frame >= low && frame < high, 1)) return frame - low >= bytes;
  // There is no guard page below the mapped part of this stack, and the attacher may not have reported its bounds yet.
  if (frame >= trusted.main_stack_low && frame < trusted.main_stack_high)
    return frame - trusted.main_stack_low >= bytes;
  return has_readable_room(frame, bytes);
}

}  // namespace memhook
