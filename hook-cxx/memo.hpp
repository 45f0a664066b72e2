// Remembered backtraces: a hit costs one comparison for each stack word that the unwinding read.
//
// Why a hit is exact. An unwinding is a function of (pc, sp, rbp) at its start, of the unwind tables and of the stack
// words that it reads. Let a remembered unwinding have read the words w1..wn, in this order. Let pc, sp, the tables (by
// their version) and, if some rule of the chain used it, the incoming rbp be the same now, and let each wi have the
// same value. Then a fresh unwinding gives the same frames, by induction over its reads. The first address that it
// reads is computed from pc, sp, rbp and a rule, which are all equal, so it is w1's address. If it has read w1..wi with
// equal values, then its position (pc, sp, and rbp as far as it is used) is the same as the remembered one's after wi,
// so its next read is wi+1. An rbp restored from the stack but never used by a later rule influences nothing, and is
// not among the words.
//
// The values of the words are the same while unwinding and while comparing, because the thread is inside its own
// allocation call, so its frames do not change.
//
// A backtrace may be stored in any place, because a lookup compares backtraces completely.
//
// Stacks that were read through the kernel are not remembered, because comparing must not fault. All words are between
// sp and the end of the stack. Remembered backtraces are in the report, where other processes may write at any time
// (SECURITY.md). So the position of a word is loaded once, and compared with the end of the stack before the word is
// read. A process that writes there can only cause a wrong backtrace. One comparison is enough for four words, because
// all except the first are given by their distance above the previous word, and no sum of four such steps overflows.
#pragma once
#include "unwind.hpp"

namespace memhook {

struct Memo {
  uint64_t key;          // return address | version; 0: empty
  uint64_t sp_function;  // see sp_and_function()
  uint64_t rbp;
  uint32_t stack;
  uint16_t unused;
  uint8_t blocks;  // MemoBlocks that follow
  uint8_t flags;
};
static_assert(sizeof(Memo) == memo_header_bytes);

// Positions of four words that the unwinding read, as distances in words: that of the first word above sp, and that of
// each other word above the previous one. The last block is padded with copies of the last word, so that backtraces
// rarely differ in the number of comparison rounds, which the processor predicts.
struct MemoBlock {
  uint16_t steps[4];
  uint64_t values[4];
};
static_assert(sizeof(MemoBlock) == memo_block_bytes);

inline constexpr uint8_t memo_uses_rbp = 1, memo_truncated = 2;

inline MemoBlock* blocks_of(Memo* memo) { return reinterpret_cast<MemoBlock*>(memo + 1); }
inline const MemoBlock* blocks_of(const Memo* memo) { return reinterpret_cast<const MemoBlock*>(memo + 1); }

// Records the reads of an unwinding.
struct MemoTrace {
  Memo* memo;
  uint64_t sp, high;
  uint32_t limit, words = 0;
  uint64_t rbp_place = 0, rbp_value = 0;
  bool rbp_is_incoming = true, needs_incoming_rbp = false, spoiled = false;

  [[gnu::always_inline]] void add(uint64_t place, uint64_t value) {
    uint64_t offset = place - sp;
    if (__builtin_expect(words >= limit || offset >= high - sp || (offset & 7) || offset >> 18, 0)) {
      spoiled = true;
      return;
    }
    auto word = static_cast<uint32_t>(offset / 8);
    MemoBlock& block = blocks_of(memo)[words / 4];
    block.steps[words & 3] = static_cast<uint16_t>(word);  // until `remember`: from sp
    block.values[words & 3] = value;
    words++;
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

// User addresses end below 2^56, even with five-level page tables.
inline uint64_t sp_and_function(const Position& at, uint32_t function) {
  return at.sp | static_cast<uint64_t>(function) << 56;
}

// Stack words that distinguish backtraces with the same beginning: the same call at the same depth, reached along
// different paths. They are learned: each was the first word in which two backtraces differed. Offsets from sp in
// words; 0 if there are none (the psABI's alignment of calls prevents a return address there).
struct MemoGuide {
  uint16_t words[2];
  uint16_t tag;   // owner of the words
  uint16_t vain;  // see remembers()
};
static_assert(sizeof(MemoGuide) == memo_guide_bytes);

// Place where a backtrace is searched.
struct MemoPlace {
  MemoGuide* guide;
  uint64_t hash;
  uint16_t tag;
};

[[gnu::always_inline]] inline uint16_t tag_of(uint64_t hash) { return static_cast<uint16_t>(hash >> 24); }

// pre: `at.sp` is inside the stack, which ends at `high`.
[[gnu::always_inline]] inline MemoPlace first_place(RingHeader* ring, const Position& at, uint64_t high) {
  uint64_t hash = (at.pc ^ (at.sp << 17)) * 0x9e3779b97f4a7c15;
  auto* guide = reinterpret_cast<MemoGuide*>(in_ring(ring, memo_guides_offset)) + (hash >> 56);
  static_assert(memo_guides == 256);
  uint16_t tag = tag_of(hash);
  if (guide->tag == tag) {
    uint64_t i = once(guide->words[0]), j = once(guide->words[1]);
    if (__builtin_expect(at.sp + 8 * (i > j ? i : j) + 8 > high, 0)) i = j = 0;
    auto* words = reinterpret_cast<const uint64_t*>(at.sp);
    uint64_t a = i ? words[i] : 0, b = j ? words[j] : 0;
    hash ^= (a + (b << 20 | b >> 44)) * 0xd6e8feb86659fd93;
  }
  return {guide, hash, tag};
}

// Returns how many entries fit into this number of bytes, rounded down to a power of two, for the hash.
inline uint64_t memos_in(uint64_t bytes) {
  uint64_t memos = 1;
  while (memos * 2 * gate().memo_bytes <= bytes) memos *= 2;
  return memos;
}

[[gnu::always_inline]] inline Memo* memo_of(RingHeader* ring, uint64_t hash) {
  const Gate& g = gate();
  return reinterpret_cast<Memo*>(in_ring(ring, memo_offset) +
                                 ((hash >> 40) & ring->memo_mask & g.memo_mask) * g.memo_bytes);
}

// Returns true if everything that the unwinding of `memo` depended on is unchanged. pre: `at.sp` is inside the stack,
// which ends at `high`; this also applies to all functions below.
[[gnu::always_inline]] inline bool still_holds(const Memo* memo, uint64_t key, const Position& at, uint32_t function,
                                               uint64_t high) {
  uint64_t differs = (memo->key ^ key) | (memo->sp_function ^ sp_and_function(at, function));
  if (memo->flags & memo_uses_rbp) differs |= memo->rbp ^ at.rbp;
  if (differs != 0) return false;
  auto* words = reinterpret_cast<const uint64_t*>(at.sp);
  uint64_t room = (high - at.sp) / 8;
  const MemoBlock* block = blocks_of(memo);
  for (uint32_t i = once(memo->blocks); i != 0; i--, block++) {
    uint64_t a = once(block->steps[0]), b = a + once(block->steps[1]), c = b + once(block->steps[2]),
             d = c + once(block->steps[3]);
    if (__builtin_expect(d >= room, 0)) return false;
    differs |= (block->values[0] ^ words[a]) | (block->values[1] ^ words[b]) | (block->values[2] ^ words[c]) |
               (block->values[3] ^ words[d]);
  }
  return differs == 0;
}

// Returns the first word that keeps `memo` from matching, if its unwinding began in the same way, otherwise null.
[[gnu::always_inline]] inline const uint64_t* first_difference(const Memo* memo, uint64_t key, const Position& at,
                                                               uint32_t function, uint64_t high) {
  if ((memo->key ^ key) | (memo->sp_function ^ sp_and_function(at, function))) return nullptr;
  if ((memo->flags & memo_uses_rbp) && memo->rbp != at.rbp) return &at.rbp;
  auto* words = reinterpret_cast<const uint64_t*>(at.sp);
  uint64_t room = (high - at.sp) / 8;
  const MemoBlock* block = blocks_of(memo);
  uint64_t offset = 0;
  for (uint32_t i = 0, count = 4u * once(memo->blocks); i < count; i++) {
    if ((i & 3) == 0) offset = 0;
    offset += once(block[i / 4].steps[i & 3]);
    if (offset >= room) return nullptr;
    if (block[i / 4].values[i & 3] != words[offset]) return words + offset;
  }
  return nullptr;
}

// Records the position of the word in which two backtraces with the same beginning differ.
[[gnu::always_inline]] inline void learn(const MemoPlace& place, const uint64_t* word, const Position& at,
                                         uint64_t high) {
  auto address = reinterpret_cast<uint64_t>(word);
  if (address <= at.sp || address >= high) return;  // it was rbp
  auto offset = static_cast<uint16_t>((address - at.sp) / 8);
  MemoGuide* guide = place.guide;
  if (guide->tag != place.tag || guide->words[0] == 0) {
    guide->tag = place.tag;
    guide->words[0] = offset;
    guide->words[1] = 0;
  } else if (guide->words[1] == 0) {
    guide->words[1] = offset;
  }
}

// Number of places for backtraces with the same guide. If the backtrace in one place does not match, the first word
// that differs selects the next place.
inline constexpr int memo_places = 4;

// If remembering failed `vain_many` times more often than it helped, there are too many different backtraces, and the
// data that they evict from the caches costs more than they save. Then only a few more are remembered occasionally, in
// case the program's behaviour has changed.
inline constexpr uint16_t vain_many = 64, vain_pause = 512, vain_tries = 8;

// Counts a backtrace that was not found. Returns true if it should be remembered.
[[gnu::always_inline]] inline bool remembers(const RingHeader* ring, MemoGuide* guide) {
  if (!(ring->memo_window & 1)) {
    guide->vain /= 2;
    return true;
  }
  guide->vain++;
  if (guide->vain < vain_many) return true;
  if (guide->vain < vain_many + vain_pause) return false;
  guide->vain = vain_many - vain_tries;
  return true;
}

// Decides every 64 unwindings whether unwinding is frequent: more than about one in eight allocations.
[[gnu::always_inline]] inline void count_unwinding(RingHeader* ring) {
  uint64_t misses = ring->memo_misses + 1, head = ring->head;
  __atomic_store_n(&ring->memo_misses, misses, __ATOMIC_RELAXED);
  if (__builtin_expect((misses & 63) != 0, 1)) return;
  ring->memo_window = head << 1 | (head - (ring->memo_window >> 1) < 1024);
  if (ring->memo_mask != gate().memo_mask && __atomic_load_n(&ring->granted_caches, __ATOMIC_ACQUIRE))
    use_caches(ring, true);
}

struct FoundMemo {
  Memo* memo;  // null: not to be remembered
  bool holds;
};

// Returns the remembered backtrace that matches or, if `holds` is false, the place for a new one. pre: the backtrace at
// the first place does not match.
[[gnu::noinline]] inline FoundMemo find_other_memo(RingHeader* ring, MemoPlace first, uint64_t key,
                                                   const Position& start, uint32_t function, uint64_t high) {
  uint64_t hash = first.hash;
  MemoGuide* guide = first.guide;
  if (guide->vain >= vain_many && !remembers(ring, guide)) return {nullptr, false};
  Memo* memo = memo_of(ring, hash);
  for (int place = 1; place < memo_places; place++) {
    const uint64_t* difference = first_difference(memo, key, start, function, high);
    if (!difference) break;
    if (place == 1) learn(first, difference, start, high);
    hash = (hash ^ *difference) * 0x9e3779b97f4a7c15;
    memo = memo_of(ring, hash);
    if (still_holds(memo, key, start, function, high)) {
      if (guide->vain > 0) guide->vain--;
      return {memo, true};
    }
  }
  return {remembers(ring, guide) ? memo : nullptr, false};
}

// Converts the positions of four words into steps. The order in which the unwinding read the words does not matter,
// because all of them are compared.
inline void make_steps(MemoBlock& block) {
  for (int i = 1; i < 4; i++) {
    uint16_t place = block.steps[i];
    uint64_t value = block.values[i];
    int to = i;
    for (; to > 0 && block.steps[to - 1] > place; to--) {
      block.steps[to] = block.steps[to - 1];
      block.values[to] = block.values[to - 1];
    }
    block.steps[to] = place;
    block.values[to] = value;
  }
  for (int i = 3; i > 0; i--) block.steps[i] = static_cast<uint16_t>(block.steps[i] - block.steps[i - 1]);
}

// Completes the memo into which `trace` has written words, or leaves it empty. The key of the memo is stored last,
// because a signal handler may leave this code by siglongjmp(3) at any point.
[[gnu::always_inline]] inline void remember(const MemoTrace& trace, uint64_t key, const Position& start,
                                            uint32_t function, uint32_t stack, bool truncated) {
  Memo* memo = trace.memo;
  if (trace.spoiled || stack == 0) return;
  uint32_t words = trace.words;
  for (MemoBlock& last = blocks_of(memo)[words / 4]; words & 3; words++) {
    last.steps[words & 3] = last.steps[(words - 1) & 3];
    last.values[words & 3] = last.values[(words - 1) & 3];
  }
  for (uint32_t i = 0; i < words / 4; i++) make_steps(blocks_of(memo)[i]);
  memo->sp_function = sp_and_function(start, function);
  memo->rbp = start.rbp;
  memo->stack = stack;
  memo->blocks = static_cast<uint8_t>(words / 4);
  memo->flags = static_cast<uint8_t>((trace.needs_incoming_rbp ? memo_uses_rbp : 0) | (truncated ? memo_truncated : 0));
  asm volatile("" ::: "memory");
  memo->key = key;
}

}  // namespace memhook
