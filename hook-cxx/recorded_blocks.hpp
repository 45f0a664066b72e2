// The live filter: knows which blocks are recorded, so that the release of any other block is skipped. Used if not all
// allocations are recorded (size filters, --sample, --overhead).
//
// Each page has a byte that shows, at the cost of one load, that the page has no recorded block. Otherwise the byte has
// marks:
//
//   entered   blocks of the page may be in a table that identifies them exactly: a word for each 256 bytes of
//             addresses, with a bit for each 8 bytes where a block may begin
//   unsure    the page may have recorded blocks that are not in the table: all its releases are recorded, and the
//             attacher ignores releases that it cannot match
//
// If the table has no space for a block, its page becomes unsure. A block is entered before the program gets it and
// removed before the allocator gets it back, so the program's own synchronization orders the two operations.
//
// Without a budget, the byte counts the page's blocks in the table in place of the first mark, so that releases on a
// page cost only one load again once the page has no recorded blocks left. The count is increased before a block is
// entered and decreased after it was removed, so it is never lower than the number of blocks there, and every change
// corresponds to one bit of the table. A count that has reached its maximum stays there.
//
// With a budget (budget.hpp), threads that record everything enter nothing and mark pages as unsure. Nearly all pages
// are already marked by then, so this is a load and a branch. In this mode, the hook removes no marks. The attacher
// removes them when it enters all live blocks. It could not do that with counts, because it may enter a block that is
// being released. There are two marks of each kind:
//
//   phase 0   the first marks are set
//   phase 1   the second marks are set
//   phase 2   the second marks are set, and the first marks are cleared
//   phase 3   the first marks are set; the next phase is like phase 0
//
// The attacher moves to an even phase when it has entered all blocks that were recorded before the odd phase. It knows
// this when every recording in progress at that moment has ended and its event was taken. So the page of a recorded
// block always has a mark for it: the old mark is cleared after the other mark was set. And because all marks are in
// one byte, a thread that releases the block sees at least one mark in any phase: the synchronization that passes the
// block between two threads of the target orders the store of the first mark before that load, and all threads see the
// changes of one byte in the same order.
//
// The attacher may enter a block that is being released. Its address then stays in the table until a block with this
// address is released, which causes one superfluous release.
#pragma once
#include "ring.hpp"

namespace memhook {

// The number of recorded blocks is stored in the bits above the marks.
inline constexpr uint8_t one_recorded = 0x10, most_recorded = 0xf0;
static_assert(((entered_marks | unsure_marks) & most_recorded) == 0);

[[gnu::always_inline]] inline uint8_t* page_marks(uint64_t address) {
  // The low 32 bits of an address distinguish this many pages.
  static_assert(filter_pages == 1ull << (32 - 12));
  return in_report<uint8_t>(static_cast<uint32_t>(address) >> 12) + filter_offset;
}

// Returns true if the block may be recorded; never false for a recorded block.
[[gnu::always_inline]] inline bool may_be_recorded(const void* block) {
  return __atomic_load_n(page_marks(reinterpret_cast<uint64_t>(block)), __ATOMIC_ACQUIRE) != 0;
}

// Possible places of a block in the table: one of two adjacent words.
struct TablePlace {
  uint64_t* words;  // the first of the two
  uint64_t first;   // the one to check first
  uint64_t tag;     // identifies the 256 bytes
  uint64_t bit;

  // The keys of blocks of described allocators, and addresses from 2^48 on, do not fit into a tag.
  static bool has(uint64_t address) { return address >> 48 == 0; }

  [[gnu::always_inline]] static TablePlace of(uint64_t address) {
    uint64_t line = address >> 8;
    uint64_t index = (line ^ ((line >> 20) * filter_hash >> 40)) & gate().table_mask;
    return {in_report<uint64_t>(filter_table_offset) + (index & ~1ull), index & 1, (line >> 9 << 1 | (line & 1)) << 32,
            1ull << (address >> 3 & 31)};
  }

  [[gnu::always_inline]] uint64_t* word(uint64_t i) const { return words + (first ^ i); }
  // Returns true if the tag is that of the word.
  [[gnu::always_inline]] bool is_in(uint64_t word) const { return (word & bit) && (word ^ tag) >> 32 == 0; }
};

inline constexpr uint64_t table_bits = 0xffff'ffff;

// Sets the marks of this kind that are currently set.
[[gnu::always_inline]] inline void set_marks(uint64_t address, uint8_t first_mark) {
  uint8_t* marks = page_marks(address);
  uint64_t phase = __atomic_load_n(&tally()->mark_phase, __ATOMIC_ACQUIRE);
  auto mark = static_cast<uint8_t>(first_mark << ((phase + 1) >> 1 & 1));
  if (!(__atomic_load_n(marks, __ATOMIC_RELAXED) & mark)) __atomic_fetch_or(marks, mark, __ATOMIC_RELAXED);
}

// pre: the block is about to be recorded, and the thread is marked as recording.
[[gnu::always_inline]] inline void mark_unsure(uint64_t address) { set_marks(address, first_unsure_mark); }

inline void count_recorded(uint64_t address) {
  uint8_t* marks = page_marks(address);
  uint8_t found = __atomic_load_n(marks, __ATOMIC_RELAXED);
  while (found < most_recorded &&
         !__atomic_compare_exchange_n(marks, &found, found + one_recorded, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// Another process may have written to the report, so the count may be 0.
inline void discount_recorded(uint64_t address) {
  uint8_t* marks = page_marks(address);
  uint8_t found = __atomic_load_n(marks, __ATOMIC_RELAXED);
  while (found >= one_recorded && found < most_recorded &&
         !__atomic_compare_exchange_n(marks, &found, found - one_recorded, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
  }
}

enum class Entry { no_room, entered, known };

inline Entry enter_table(uint64_t address) {
  if (!TablePlace::has(address)) return Entry::no_room;
  TablePlace place = TablePlace::of(address);
  for (uint64_t i = 0; i < 2; i++) {
    uint64_t* word = place.word(i);
    uint64_t found = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (found == 0 || (found ^ place.tag) >> 32 == 0) {
      // Its release was not seen.
      if (place.is_in(found)) return Entry::known;
      if (__atomic_compare_exchange_n(word, &found, found | place.tag | place.bit, true, __ATOMIC_RELEASE,
                                      __ATOMIC_RELAXED))
        return Entry::entered;
    }
  }
  return Entry::no_room;
}

inline bool counts_recorded() { return !(gate().flags & flag_budget); }

// pre: as in mark_unsure().
[[gnu::noinline, gnu::cold]] inline void enter_recorded(uint64_t address) {
  if (counts_recorded()) count_recorded(address);
  Entry entry = enter_table(address);
  if (entry == Entry::no_room)
    mark_unsure(address);
  else if (!counts_recorded())
    set_marks(address, first_entered_mark);
  if (counts_recorded() && entry != Entry::entered) discount_recorded(address);
}

// Returns true if the release of the block has to be recorded.
[[gnu::always_inline]] inline bool is_recorded_block(uint64_t address) {
  uint8_t marks = __atomic_load_n(page_marks(address), __ATOMIC_ACQUIRE);
  if (marks & unsure_marks) return true;
  if (!marks) return false;
  TablePlace place = TablePlace::of(address);
  return place.is_in(__atomic_load_n(place.word(0), __ATOMIC_RELAXED)) ||
         place.is_in(__atomic_load_n(place.word(1), __ATOMIC_RELAXED));
}

// Removes a block that is about to be released. Returns true if the release has to be recorded.
inline bool leave_recorded(uint64_t address) {
  uint8_t marks = __atomic_load_n(page_marks(address), __ATOMIC_ACQUIRE);
  TablePlace place = TablePlace::of(address);
  bool may_be_entered = (marks & (entered_marks | most_recorded)) && TablePlace::has(address);
  for (uint64_t i = 0; i < 2 && may_be_entered; i++) {
    uint64_t* word = place.word(i);
    uint64_t found = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (place.is_in(found)) {
      uint64_t rest = found & ~place.bit;
      if (!__atomic_compare_exchange_n(word, &found, rest & table_bits ? rest : 0, true, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED))
        continue;
      if (counts_recorded()) discount_recorded(address);
      return true;
    }
  }
  return marks & unsure_marks;
}

}  // namespace memhook
