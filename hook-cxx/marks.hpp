// Marks that the program sets itself, by memhook_mark() of memhook_mark.h.
//
// A mark takes a place among those that `memhook-rs mark` sets, and stands there until the attacher looks. It tells its
// time itself, because the attacher looks only every few milliseconds: the clock word goes on by one nanosecond before
// the mark and by one behind it, so that events that happened before have an earlier time and all others a later one,
// whatever ring they are in. What the attacher stores into the word is always further on: more time passes between
// two of its stores than marks can add.
//
// The clock word also tells that the attacher lives. So marks leave it alone once the attacher has not seen the last
// few of them: a program that goes on setting marks is not to make its own threads wait for an attacher that is dead.
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
  // Release: whoever finds the number finds the name.
  __atomic_store_n(&entry->number, number + 1, __ATOMIC_RELEASE);
}

}  // namespace memhook
