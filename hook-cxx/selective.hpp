// Wrappers for when most calls are passed by: sizes are filtered, or allocations sampled.
//
// Each decides without a frame of its own and with nothing written but the sampling countdown, and
// jumps: to the original, or to the full wrapper, which finds the stack as its caller left it. With a
// budget, an allocation that is passed by has to be looked at when it is there (recorded_pages.hpp): a
// call, but nothing else than that.
#pragma once
#include "mappings.hpp"
#include "touches.hpp"

namespace memhook {

// Whether this operator new does nothing but call another hooked function for the same size.
template <uint32_t F, uint32_t V>
[[gnu::always_inline]] inline bool forwards() {
  constexpr uint32_t bit = calls_another(F) ? (F - first_operator) * max_variants + V : 0;
  static_assert(bit < 32);
  return __atomic_load_n(&control()->forwarding_operators, __ATOMIC_RELAXED) >> bit & 1;
}

// Whether an allocation can be passed by; false: the full wrapper decides.
template <uint32_t F, uint32_t V>
[[gnu::always_inline]] inline bool passes(uint64_t size) {
  Gate& g = gate();
  // What operator new calls in turn must be told from calls of the program; where all it does is
  // one such call, that call decides alike, and counts the countdown down for both. The gate
  // first: a fork child's is empty.
  if (calls_another(F) && (!(g.flags & (selects | flag_budget)) || !forwards<F, V>())) return false;
  if (g.flags & flag_size_filter) {
    if (size - g.min_size > g.max_size - g.min_size) return true;
    if (g.exact_count != 0) return false;
  }
  // With a budget, the countdown is below 0 while all allocations are recorded.
  if (!(g.flags & (flag_sample | flag_budget))) return false;
  uint32_t epoch = gate_word();
  RingHeader* ring = epoch != 0 ? seated_ring(epoch) : nullptr;
  if (!ring) return false;
  uint64_t left = ring->sample_left - size;
  // A size that no block has would make the countdown start all over.
  if (ring->outer != 0 || static_cast<int64_t>(left | size) < 0) return false;
  if (!calls_another(F)) ring->sample_left = left;
  return true;
}

// Whether a release can be passed by.
[[gnu::always_inline]] inline bool passes_release(const void* block) {
  if (__builtin_expect(!may_be_recorded(block), 1)) return true;
  // A block on a page that has recorded ones, with a budget.
  return gate().notes_recorded && __atomic_load_n(&gate().has_passed, __ATOMIC_RELAXED) && has_passed_entry(block);
}

// With a budget: an allocation that is passed by.
template <uint32_t F, uint32_t V, typename... A>
[[gnu::noinline]] void* pass_and_note(A... args) {
  // A frame, as the full wrapper has one: the original may call what is hooked, too.
  asm volatile("" : : "r"(MEMHOOK_FRAME));
  void* block = original<void*>(F, V, args...);
  // Not if it took so long that this attach is over: the next one may have other things in that place.
  if (may_be_on_marked_page(block) && gate_word() == (thread_word() & 0xfff)) enter_passed(block);
  return block;
}

// Wrappers of functions that allocate nothing of their own: the same in every set.
namespace others {

using wrap::Access;
using wrap::Brk;
using wrap::CompareBytes;
using wrap::CopyBytes;
using wrap::Dlclose;
using wrap::Dlmopen;
using wrap::Dlopen;
using wrap::FillBytes;
using wrap::Fork;
using wrap::Madvise;
using wrap::Mark;
using wrap::Mmap;
using wrap::Mremap;
using wrap::Munmap;
using wrap::ReadInto;
using wrap::ReadItems;
using wrap::Sbrk;
using wrap::Shmat;
using wrap::Shmdt;
using wrap::StringLength;
using wrap::WriteFrom;
using wrap::WriteItems;

}  // namespace others

namespace selective {

#define MEMHOOK_SELECTIVE template <uint32_t F, uint32_t V> [[gnu::noinline]]
#define MEMHOOK_PASS(condition, type, name, ...) \
  return __builtin_expect((condition), 1) ? original<type>(F, V, __VA_ARGS__) : wrap::name<F, V>(__VA_ARGS__)
// What operator new calls in turn notes the block.
#define MEMHOOK_PASS_BLOCK(condition, name, ...)                                                    \
  if (__builtin_expect(!(condition), 0)) return wrap::name<F, V>(__VA_ARGS__);                      \
  return !calls_another(F) && gate().notes_recorded ? pass_and_note<F, V>(__VA_ARGS__)              \
                                                    : original<void*>(F, V, __VA_ARGS__)

MEMHOOK_SELECTIVE void* Size(uint64_t size) { MEMHOOK_PASS_BLOCK((passes<F, V>(size)), Size, size); }
MEMHOOK_SELECTIVE void* SizeX(uint64_t size, uint64_t x) {
  MEMHOOK_PASS_BLOCK((passes<F, V>(size)), SizeX, size, x);
}
MEMHOOK_SELECTIVE void* SizeXX(uint64_t size, uint64_t x, uint64_t y) {
  MEMHOOK_PASS_BLOCK((passes<F, V>(size)), SizeXX, size, x, y);
}
MEMHOOK_SELECTIVE void* CountSize(uint64_t count, uint64_t size) {
  MEMHOOK_PASS_BLOCK((passes<F, V>(product(count, size))), CountSize, count, size);
}
MEMHOOK_SELECTIVE void* AlignSize(uint64_t align, uint64_t size) {
  MEMHOOK_PASS_BLOCK((passes<F, V>(size)), AlignSize, align, size);
}
// Its block is not what it returns, and it is called seldom: with a budget the full wrapper passes it by.
MEMHOOK_SELECTIVE int PosixMemalign(void** out, uint64_t align, uint64_t size) {
  MEMHOOK_PASS((!gate().notes_recorded && passes<F, V>(size)), int, PosixMemalign, out, align, size);
}
MEMHOOK_SELECTIVE void Free(void* block) { MEMHOOK_PASS(passes_release(block), void, Free, block); }
MEMHOOK_SELECTIVE void FreeX(void* block, uint64_t x) {
  MEMHOOK_PASS(passes_release(block), void, FreeX, block, x);
}
MEMHOOK_SELECTIVE void FreeXX(void* block, uint64_t x, uint64_t y) {
  MEMHOOK_PASS(passes_release(block), void, FreeXX, block, x, y);
}
// The release first: it does not count the sampling countdown down.
MEMHOOK_SELECTIVE void* Realloc(void* old, uint64_t size) {
  MEMHOOK_PASS_BLOCK((passes_release(old) && passes<F, V>(size)), Realloc, old, size);
}
MEMHOOK_SELECTIVE void* ReallocArray(void* old, uint64_t count, uint64_t size) {
  MEMHOOK_PASS_BLOCK((passes_release(old) && passes<F, V>(product(count, size))), ReallocArray, old, count, size);
}
MEMHOOK_SELECTIVE void* Rallocx(void* old, uint64_t size, int flags) {
  MEMHOOK_PASS_BLOCK((passes_release(old) && passes<F, V>(size)), Rallocx, old, size, flags);
}

// Called too seldom, or never together with a filter.
using wrap::Xallocx;
using namespace others;

}  // namespace selective
}  // namespace memhook
