// The frames that the thread's last unwinding went through. Where the next one comes to one of them, it
// compares instead of looking for rules, and as the places of all words to compare are known beforehand,
// the processor need not wait for one frame to find the next.
//
// Why what is taken over is right. A step from a frame to its caller's is a function of pc and sp, of rbp
// if the rule uses it, of the unwind tables, and of the words that it reads from the stack: the
// return address, and where the rule says so, the caller's rbp and the CFA. For each two neighbours it is
// kept what these were. A step is taken over only if the unwinding has come to the same pc and sp, with
// the same rbp if the rule used it, under the same tables (by the version of the module list), and each
// of the words holds the same value now: so to make it anew would have the same result. By induction over
// the steps the backtrace is what an unwinding from scratch finds. It does not matter how the stack came to be
// as it is: by calls and returns, longjmp, another coroutine, or another thread on the same memory.
// Nothing is concluded from frames being kept next to each other; each step is compared by itself.
// A signal frame leads to another stack, and some words can only be read through the kernel; unwindings
// with such steps are not kept.
//
// Why comparing cannot fault. The words that are kept of a step are not below the sp that it began at
// (an unwinding with other ones is not kept), and not above the end of the stack, which has to be the same
// when they are compared. The unwinding has come to that sp, so it is not below the current one: all words
// lie between the current sp and the end of the thread's stack, where plain loads are allowed.
//
// The frames also have their place in the stack table: what is unchanged, counted from the outermost frame
// on, is interned already (see intern_stack()).
#pragma once
#include "stack_table.hpp"
#include "unwind.hpp"

namespace memhook {

// A frame, and the step that led to it from the next inner one. What that read, beside the return address at
// sp - 8: see FromWords.
struct KeptFrame {
  uint64_t pc, sp, rbp;
  uint64_t from;
};
static_assert(sizeof(KeptFrame) == kept_frame_bytes);

// Where a step found the caller's rbp and the CFA: in words below the end of the stack, 0: the step did not
// read it. `used_rbp`: the step depends on rbp.
inline constexpr uint64_t used_rbp = 1ull << 63, most_words_below = (1u << 31) - 1;
inline uint64_t rbp_place(uint64_t from, uint64_t high) { return high - 8 * (from & most_words_below); }
inline uint64_t cfa_place(uint64_t from, uint64_t high) {
  return high - 8 * ((from >> 32) & most_words_below);
}

// The frames from `first` on are a stack of `count` frames, the outermost first; places are counted modulo
// `kept_frames`.
struct LastWalk {
  uint64_t version, high;
  uint32_t first, count;
  OuterEntries entries;
  uint64_t padding[4];
  KeptFrame frames[kept_frames];

  KeptFrame& at_place(uint32_t place) { return frames[place & (kept_frames - 1)]; }
  // Counted from the outermost one.
  KeptFrame& frame(uint32_t index) { return at_place(first + index); }
  void forget() { count = entries.known = 0; }
  // Drops so many of the outermost frames.
  void drop(uint32_t frames) {
    if (frames == 0) return;
    first += frames;
    count -= frames;
    entries.known = 0;
  }
  // The frames are in order, or are not to be kept; returns whether they are.
  bool keep(uint64_t of_version, bool spoiled) {
    if (__builtin_expect(spoiled, 0)) forget();
    asm volatile("" ::: "memory");
    version = of_version;
    return !spoiled;
  }
  // The frame with this index is not what it was.
  void changes(uint32_t index) {
    if (index / entry_frames < entries.known) entries.known = index / entry_frames;
  }
};
static_assert(sizeof(LastWalk) <= last_walk_bytes);
static_assert((kept_frames & (kept_frames - 1)) == 0 && kept_frames >= max_depth);

inline LastWalk* last_walk_of(RingHeader* ring) {
  return reinterpret_cast<LastWalk*>(in_ring(ring, last_walk_offset));
}

// Notes what a step reads, for the frame that it leads to, and tells another trace.
template <typename Trace>
struct StepTrace {
  Trace& other;
  uint64_t low, high;  // the words that can be kept
  uint64_t from = 0;
  bool spoiled = false;

  [[gnu::always_inline]] bool is_kept(uint64_t place) {
    uint64_t below = high - place;
    bool fits = place - low < high - low && (below & 7) == 0 && below / 8 <= most_words_below;
    spoiled |= !fits;
    return fits;
  }
  [[gnu::always_inline]] void reads(uint64_t place, uint64_t value) {
    spoiled |= place - low >= high - low;
    other.reads(place, value);
  }
  [[gnu::always_inline]] void reads_cfa(uint64_t place, uint64_t value) {
    if (is_kept(place)) from |= (high - place) / 8 << 32;
    other.reads_cfa(place, value);
  }
  [[gnu::always_inline]] void restores_rbp(uint64_t place, uint64_t value) {
    if (is_kept(place)) from |= (high - place) / 8;
    other.restores_rbp(place, value);
  }
  [[gnu::always_inline]] void uses_rbp() {
    from |= used_rbp;
    other.uses_rbp();
  }
  [[gnu::always_inline]] void spoil() {
    spoiled = true;
    other.spoil();
  }
};

// What an unwinding has found.
struct Walked {
  uint32_t count;
  // They are all the frames that are kept, so that the entries known of these are theirs.
  bool are_kept;
};

// Unwinds as `unwind` does, with the help of the last unwinding, and keeps this one for the next.
// pre: depth > 0; start.sp is inside the stack, which ends at `high`.
template <typename Trace>
[[gnu::always_inline]] inline Walked walk_on(RingHeader* ring, LastWalk* last, uint64_t version,
                                             const Position& start, uint64_t high, uint64_t* pcs,
                                             uint32_t depth, bool* truncated, Trace& trace) {
  if (__builtin_expect(last->version != version || last->high != high, 0)) {
    last->forget();
    last->high = high;
  }
  // A signal handler may leave us by siglongjmp(3) before the frames are in order again.
  last->version = ~0ull;
  asm volatile("" ::: "memory");
  // Room for frames that are new: they are put in front of the outermost one until it is known which of the
  // others they belong to.
  constexpr uint32_t most_before = kept_frames - kept_frames / 4;
  if (__builtin_expect(last->count > most_before, 0)) last->drop(last->count - most_before);
  uint64_t tag = version << 48;
  StackReader stack(ring, start.sp);
  StepTrace<Trace> steps{trace, start.sp, high};
  Position at = start;
  bool exact = false;
  uint32_t count = 1, fresh = 0, left = last->count;
  pcs[0] = at.pc;
  uint64_t next_sp = left ? last->frame(left - 1).sp : ~0ull;

  // Inner frames, until one is found that is kept.
  for (;;) {
    while (next_sp < at.sp) {
      left--;
      next_sp = left ? last->frame(left - 1).sp : ~0ull;
    }
    if (next_sp == at.sp && last->frame(left - 1).pc == at.pc && !exact) break;
    if (__builtin_expect(fresh + left >= kept_frames, 0)) {
      left = 0;
      next_sp = ~0ull;
    }
    last->at_place(last->first - ++fresh) = {at.pc, at.sp, at.rbp, steps.from};
    if (count == depth) {
      left = 0;
      break;
    }
    steps.low = at.sp;
    steps.from = 0;
    Step made = step(ring, tag, stack, at, exact, steps);
    if (__builtin_expect(made != Step::made, 0)) {
      *truncated = made == Step::cut;
      left = 0;
      break;
    }
    pcs[count++] = at.pc;
  }
  if (left == 0) {
    // In front of the outermost one they are in order.
    last->first -= fresh;
    last->count = fresh;
    last->entries.known = 0;
    return {count, last->keep(version, steps.spoiled)};
  }
  // Behind the kept one they are in their place.
  for (uint32_t i = 0; i < fresh; i++)
    last->frame(left + i) = last->at_place(last->first - fresh + i);
  last->changes(left);
  last->count = left + fresh;

  // From there on each step is compared, or made where something has changed.
  KeptFrame* inner = &last->frame(left - 1);
  uint64_t expected_rbp = inner->rbp;
  bool is_known = true;  // the step from `inner` is about this pc
  if (fresh != 0) {
    inner->rbp = at.rbp;
    inner->from = steps.from;
  }
  while (count < depth) {
    if (left > 1 && is_known) {
      KeptFrame* outer = &last->frame(left - 2);
      uint64_t from = outer->from;
      uint64_t differs = *reinterpret_cast<const uint64_t*>(outer->sp - 8) ^ outer->pc;
      if (from != 0) {
        if (from & used_rbp) differs |= at.rbp ^ expected_rbp;
        if (from & most_words_below)
          differs |= *reinterpret_cast<const uint64_t*>(rbp_place(from, high)) ^ outer->rbp;
        if ((from >> 32) & most_words_below)
          differs |= *reinterpret_cast<const uint64_t*>(cfa_place(from, high)) ^ outer->sp;
      }
      if (__builtin_expect(differs == 0, 1)) {
        if (from & used_rbp) trace.uses_rbp();
        if ((from >> 32) & most_words_below) trace.reads_cfa(cfa_place(from, high), outer->sp);
        trace.reads(outer->sp - 8, outer->pc);
        if (from & most_words_below) {
          at.rbp = outer->rbp;
          trace.restores_rbp(rbp_place(from, high), at.rbp);
        }
        expected_rbp = outer->rbp;
        at.pc = outer->pc;
        at.sp = outer->sp;
        pcs[count++] = at.pc;
        inner = outer;
        left--;
        continue;
      }
    }
    // The rbp that the next step depends on.
    inner->rbp = at.rbp;
    steps.low = at.sp;
    steps.from = 0;
    Step made = step(ring, tag, stack, at, exact, steps);
    if (made != Step::made) {
      *truncated = made == Step::cut;
      is_known = false;
      break;
    }
    pcs[count++] = at.pc;
    if (left > 1 && last->frame(left - 2).sp == at.sp) {
      // The same frame in another call.
      inner = &last->frame(left - 2);
      expected_rbp = inner->rbp;
      is_known = inner->pc == at.pc && !exact;
      left--;
      if (inner->pc != at.pc) last->changes(left - 1);
      *inner = {at.pc, at.sp, at.rbp, steps.from};
      continue;
    }
    // It is the outermost one for now.
    last->drop(left - 1);
    left = 1;
    if (__builtin_expect(last->count == kept_frames, 0)) {
      steps.spoiled = true;
      continue;
    }
    last->first--;
    last->count++;
    last->entries.known = 0;
    inner = &last->frame(0);
    *inner = {at.pc, at.sp, at.rbp, steps.from};
    expected_rbp = at.rbp;
  }
  // Whether the kept step from the last frame is still about that frame: it has not been compared.
  if (left > 1 && expected_rbp != inner->rbp && (last->frame(left - 2).from & used_rbp)) is_known = false;
  if (!is_known) last->drop(left - 1);
  return {count, last->keep(version, steps.spoiled) && count == last->count};
}

}  // namespace memhook
