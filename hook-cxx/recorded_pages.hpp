// With a budget: which pages have blocks that are recorded, so that most calls that are passed by need to look at
// nothing else. Few blocks are recorded then, so the marks in use stay in the cache, which a table of all passed
// blocks does not.
//
// A page has two marks, two bits of a byte. Who records a block sets one before anybody else can release the block; none
// is ever taken away by the hook. The attacher renews them, so that pages lose theirs when their recorded blocks are
// gone:
//
//   phase 0   the first marks are set
//   phase 1   the second ones are set
//   phase 2   the second ones are set; the first are cleared
//   phase 3   the first ones are set. The next one is as 0 again.
//
// It goes to an even phase when it has set the marks of all blocks that were recorded before the odd one, which it
// knows when every recording under way at that moment has ended and its event was taken. So the page of a recorded block
// has at least one of its marks at any time: the one that it had is cleared after the other one was set. And as both are
// in one byte, who releases the block sees at least one, whatever phase it is: whatever hands over the block
// between two threads of the target puts the store of the first mark before that look, and all threads see the
// changes of one byte in the same order.
//
// At first every page has its first mark: until the marks are renewed for the first time, while nothing was passed by,
// the releases of blocks from before the attach are recorded, too.
#pragma once
#include "selection.hpp"

namespace memhook {

inline constexpr uint8_t first_page_mark = 1, second_page_mark = 2;

// pre: the block is going to be recorded, and the thread has said that it is recording.
[[gnu::always_inline]] inline void mark_page(const void* block) {
  uint8_t* marks = filter_counter(reinterpret_cast<uint64_t>(block));
  uint64_t phase = __atomic_load_n(&control()->page_phase, __ATOMIC_ACQUIRE);
  uint8_t mark = (phase + 1) >> 1 & 1 ? second_page_mark : first_page_mark;
  if (!(__atomic_load_n(marks, __ATOMIC_RELAXED) & mark)) __atomic_fetch_or(marks, mark, __ATOMIC_RELAXED);
}

// Never false for a block that is recorded.
[[gnu::always_inline]] inline bool may_be_on_marked_page(const void* block) { return may_be_recorded(block); }

}  // namespace memhook
