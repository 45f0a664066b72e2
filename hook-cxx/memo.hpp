// Remembered backtraces: a hit costs one comparison for each stack word that the unwinding read.
//
// Why a hit is exact. An unwinding is a function of (pc, sp, rbp) at its start, of the unwind tables
// and of the stack words that it reads. Let a remembered one have read the words w1..wn, in this
// order, and let pc, sp, the tables (by their version) and, if some rule of the chain used it, the
// incoming rbp be the same now, and each wi hold the same value. Then a fresh unwinding gives the
// same frames, by induction over its reads: the first address it reads is computed from pc, sp, rbp
// and a rule, all equal, so it is w1's address; if it has read w1..wi with equal values, then its
// position (pc, sp, and rbp as far as it is used) is the same as the remembered one's after wi, so
// its next read is wi+1. An rbp restored from the stack but never used by a later rule influences
// nothing, and is not among the words.
//
// Reads are the same whether the words are read while unwinding or while comparing, because the
// thread stands inside its own allocation call and its frames do not change meanwhile.
//
// Where a backtrace is kept decides nothing: each is compared whole, wherever it was found.
//
// Nothing is remembered of stacks that were read through the kernel: comparing must not fault. All
// words lie in [sp, stack_high), and stack_high is compared too.
#pragma once
#include "unwind.hpp"

namespace memhook {

struct Memo {
  uint64_t key;  // return address | version; 0: empty
  uint64_t sp;
  uint64_t rbp;
  uint32_t stack;
  uint16_t words;
  uint8_t function;
  uint8_t flags;
  // followed by: uint64_t values[2 * depth]; uint32_t offsets[2 * depth], from sp
};
static_assert(sizeof(Memo) == memo_header_bytes);

inline constexpr uint8_t memo_uses_rbp = 1, memo_truncated = 2;

// Notes what an unwinding reads.
struct MemoTrace {
  Memo* memo;
  uint64_t sp, high;
  uint32_t limit, words = 0, highest = 0;
  uint64_t rbp_place = 0, rbp_value = 0;
  bool rbp_is_incoming = true, needs_incoming_rbp = false, spoiled = false;

  [[gnu::always_inline]] void add(uint64_t place, uint64_t value) {
    uint64_t offset = place - sp;
    if (__builtin_expect(words >= limit || offset >= high - sp || offset >> 32, 0)) {
      spoiled = true;
      return;
    }
    auto* values = reinterpret_cast<uint64_t*>(memo + 1);
    auto* offsets = reinterpret_cast<uint32_t*>(values + limit);
    values[words] = value;
    offsets[words++] = static_cast<uint32_t>(offset);
    if (offset > highest) highest = static_cast<uint32_t>(offset);
  }
  [[gnu::always_inline]] void reads(uint64_t place, uint64_t value) { add(place, value); }
  [[gnu::always_inline]] void restores_rbp(uint64_t place, uint64_t value) {
    rbp_is_incoming = false;
    rbp_place = place;
    rbp_value = value;
  }
  [[gnu::always_inline]] void uses_rbp() {
    if (rbp_is_incoming) {
      needs_incoming_rbp = true;
    } else if (rbp_place != 0) {
      add(rbp_place, rbp_value);
      rbp_place = 0;
    }
  }
  [[gnu::always_inline]] void spoil() { spoiled = true; }
};

struct NoTrace {
  void reads(uint64_t, uint64_t) {}
  void restores_rbp(uint64_t, uint64_t) {}
  void uses_rbp() {}
  void spoil() {}
};

[[gnu::always_inline]] inline uint64_t memo_hash(uint64_t pc, uint64_t sp) {
  return (pc ^ (sp << 17)) * 0x9e3779b97f4a7c15;
}

[[gnu::always_inline]] inline Memo* memo_of(RingHeader* ring, uint64_t hash) {
  const Gate& g = gate();
  return reinterpret_cast<Memo*>(in_ring(ring, memo_offset) +
                                 ((hash >> 40) & g.memo_mask) * g.memo_bytes);
}

// Whether everything that `memo`'s unwinding depended on is as it was.
[[gnu::always_inline]] inline bool still_holds(const Memo* memo, uint64_t key, const Position& at,
                                               uint32_t function, uint32_t limit, uint64_t high) {
  uint64_t differs = (memo->key ^ key) | (memo->sp ^ at.sp) | (memo->function ^ function);
  if (memo->flags & memo_uses_rbp) differs |= memo->rbp ^ at.rbp;
  if (differs != 0) return false;
  auto* values = reinterpret_cast<const uint64_t*>(memo + 1);
  auto* offsets = reinterpret_cast<const uint32_t*>(values + limit);
  uint32_t words = memo->words;
  // The last word is the highest one: see remember().
  uint32_t last = words ? offsets[words - 1] : 0;
  if (at.sp + last + 8 > high) return false;
  for (uint32_t i = 0; i < words; i++)
    differs |= values[i] ^ *reinterpret_cast<const uint64_t*>(at.sp + offsets[i]);
  return differs == 0;
}

// The first thing that keeps `memo` from holding, if it is of an unwinding that began alike and has its
// words inside the stack; else 0.
[[gnu::always_inline]] inline uint64_t first_difference(const Memo* memo, uint64_t key,
                                                        const Position& at, uint32_t function,
                                                        uint32_t limit, uint64_t high) {
  if (((memo->key ^ key) | (memo->sp ^ at.sp) | (memo->function ^ function)) != 0) return 0;
  if ((memo->flags & memo_uses_rbp) && memo->rbp != at.rbp) return at.rbp;
  auto* values = reinterpret_cast<const uint64_t*>(memo + 1);
  auto* offsets = reinterpret_cast<const uint32_t*>(values + limit);
  uint32_t words = memo->words;
  if (words == 0 || at.sp + offsets[words - 1] + 8 > high) return 0;
  for (uint32_t i = 0; i < words; i++) {
    uint64_t value = *reinterpret_cast<const uint64_t*>(at.sp + offsets[i]);
    if (values[i] != value) return value + i;
  }
  return 0;
}

// Backtraces that begin alike (the same call at the same depth, reached on other ways) are looked for
// at so many places: where one of them does not hold, the first word that differs leads to the next.
inline constexpr int memo_places = 4;
// Where that was in vain so many times more often than not, there are too many of them: only the
// first place is used, and now and then the others are tried again. Counted in its flags.
inline constexpr uint8_t memo_vain_step = 4, memo_vain_mask = 0xfc;

struct MemoPlace {
  Memo* memo;
  bool holds;
};

// The remembered backtrace that holds, or, with `holds` false, the place for a new one. pre: that of
// the first place, whose hash this is, does not hold.
[[gnu::noinline]] inline MemoPlace find_other_memo(RingHeader* ring, uint64_t hash, uint64_t key,
                                                   const Position& start, uint32_t function) {
  uint32_t limit = gate().memo_words;
  uint64_t high = ring->stack_high;
  Memo* first = memo_of(ring, hash);
  if ((first->flags & memo_vain_mask) == memo_vain_mask) {
    if ((ring->memo_misses & 255) == 0) first->flags &= 0x7f;
    return {first, false};
  }
  Memo* memo = first;
  for (int place = 1; place < memo_places; place++) {
    uint64_t difference = first_difference(memo, key, start, function, limit, high);
    if (difference == 0) return {memo, false};
    hash = (hash ^ difference) * 0x9e3779b97f4a7c15;
    memo = memo_of(ring, hash);
    if (still_holds(memo, key, start, function, limit, high)) {
      if (first->flags & memo_vain_mask) first->flags -= memo_vain_step;
      return {memo, true};
    }
  }
  first->flags += memo_vain_step;
  return {memo, false};
}

// Completes the memo that `trace` has written words to, or leaves it empty.
[[gnu::always_inline]] inline void remember(const MemoTrace& trace, uint64_t key,
                                            const Position& start, uint32_t function,
                                            uint32_t stack, bool truncated) {
  Memo* memo = trace.memo;
  auto* offsets = reinterpret_cast<const uint32_t*>(
      reinterpret_cast<const uint64_t*>(memo + 1) + trace.limit);
  if (trace.spoiled || stack == 0) return;
  // A return address is read last and lies above what was read before. Should a strange CFI break
  // that, the bounds check of still_holds would not cover all words.
  if (trace.words != 0 && offsets[trace.words - 1] != trace.highest) return;
  memo->key = key;
  memo->sp = start.sp;
  memo->rbp = start.rbp;
  memo->stack = stack;
  memo->words = static_cast<uint16_t>(trace.words);
  memo->function = static_cast<uint8_t>(function);
  memo->flags = static_cast<uint8_t>((memo->flags & memo_vain_mask) |
                                     (trace.needs_incoming_rbp ? memo_uses_rbp : 0) |
                                     (truncated ? memo_truncated : 0));
}

}  // namespace memhook
