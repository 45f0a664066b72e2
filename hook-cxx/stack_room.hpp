// How much room there is on the stack that a call was made on.
//
// The hook runs on stacks of the program, some of which are small: those of coroutines, of signal handlers, of threads
// with PTHREAD_STACK_MIN. What every call needs is little more than an allocator does. Whoever needs more asks here
// first, and does without where it is not there: then a call has its call site for a backtrace.
//
// Where the bounds of the stack are known, they tell. Elsewhere, what is left of the page that the stack pointer is in
// is there, and so are the pages below that can be read, which a guard page cannot. A stack that ends in the middle of
// memory of the program's, without a guard page, is not known from its neighbours.
#pragma once
#include "unwind.hpp"

namespace memhook {

// A wrapper's own frame: [0] the caller's rbp, [1] the return address into the caller.
using Frame = const uint64_t*;

// Bytes that a call takes at most; a test compares these with what the compiler says. A call that asks for none of this
// takes up to 704.
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

// Whether there are so many bytes below the frame.
[[gnu::always_inline]] inline bool has_stack_room(const RingHeader* ring, uint64_t frame, uint64_t bytes) {
  auto [low, high] = bounds_of(ring);
  if (__builtin_expect(frame >= low && frame < high, 1)) return frame - low >= bytes;
  // Below what is mapped of this one is no guard page, and the attacher may not have told its bounds yet.
  if (frame >= trusted.main_stack_low && frame < trusted.main_stack_high)
    return frame - trusted.main_stack_low >= bytes;
  return has_readable_room(frame, bytes);
}

}  // namespace memhook
