// Marks set by the program itself, with memhook_mark() of memhook_mark.h.
//
// A mark takes one of the slots that `memhook-rs mark` uses, and stays there until the attacher looks. It records its
// time itself, because the attacher looks only every few milliseconds. The clock word is advanced by one nanosecond
// before the mark and by one nanosecond after it, so that earlier events have an earlier time and all others have a
// later time, in every ring. The values that the attacher stores into the word are always further ahead: more time
// passes between two of its stores than marks can add.
//
// The clock word also shows that the attacher is alive. So marks do not advance it once the attacher has not seen the
// last few of them: a program that sets marks continuously must not make its own threads wait for a dead attacher.
#pragma once
#include "state.hpp"

namespace memhook {

inline constexpr uint64_t unseen_marks_that_order = 4;

inline MarkEntry* mark_entry(uint64_t number) { return in_report<MarkEntry>(marks_offset) + number % mark_count; }

inline bool attacher_sees_marks(uint64_t number) {
  if (number < unseen_marks_that_order) return true;
  uint64_t time = __atomic_load_n(&mark_entry(number - unseen_marks_that_order)->time_ns, __ATOMIC_ACQUIRE);
  return time != 0 && !(time & mark_by_program);
}

[[gnu::noinline, gnu::cold]] inline void note_mark(const char* name) {
  uint64_t number = __atomic_fetch_add(&tally()->marks, 1, __ATOMIC_ACQ_REL);
  uint64_t time = attacher_sees_marks(number) ? __atomic_fetch_add(&tally()->clock_ns, 2, __ATOMIC_ACQ_REL) + 1
                                              : __atomic_load_n(&tally()->clock_ns, __ATOMIC_RELAXED);
  MarkEntry* entry = mark_entry(number);
  __atomic_store_n(&entry->number, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&entry->time_ns, time | mark_by_program, __ATOMIC_RELAXED);
  bool has_ended = false;
  for (uint64_t& place : entry->name) {
    uint64_t word = 0;
    for (int i = 0; i < 8 && !has_ended; i++) {
      uint64_t letter = static_cast<unsigned char>(*name++);
      has_ended = letter == 0;
      word |= letter << (8 * i);
    }
    __atomic_store_n(&place, word, __ATOMIC_RELAXED);
  }
  // Release: a reader that sees the number also sees the name.
  __atomic_store_n(&entry->number, number + 1, __ATOMIC_RELEASE);
}

}  // namespace memhook
