// Wrappers that record nothing and tell whoever listens to the probes otel_memory:alloc and otel_memory:free
// (memhook-rs emit; the contract is design document 00003 of opentelemetry-ebpf-profiler).
//
// While nobody listens and no block lives of which somebody was told, each jumps to the original after one load and one
// branch. While somebody listens, allocations are drawn by the bytes allocated, as jemalloc draws them: a Poisson
// process, in which a block of `size` bytes is drawn with the probability 1 - exp(-size / mean). Its weight is its size
// by that probability, so that sums of weights estimate sums of bytes without a bias.
//
// A listener is told of a release before the allocator has the block back, and of an allocation before the program has
// the block, so what it is told of one address is in the order in which it happened. A release needs no ring: whatever
// a thread is doing, the table knows whether the block is one that was told.
#pragma once
#include "emitted.hpp"
#include "selective.hpp"

namespace memhook {

// Whether anybody listens to either probe.
[[gnu::always_inline]] inline bool is_listened_to() {
  return __builtin_expect(__atomic_load_n(&memhook_listeners, __ATOMIC_RELAXED) != 0, 0);
}

// size / (1 - exp(-size / mean)), which is size / 2 + mean * y * coth(y) where y = size / (2 * mean). Of coth it takes
// Lambert's continued fraction, y * coth(y) = 1 + y^2 / (3 + y^2 / (5 + ...)), in fixed point: there are no vector
// registers here. All its terms are positive, so it loses nothing; at the largest y the terms left out are below 1e-6.
inline uint64_t weighted_bytes(uint64_t size, uint64_t mean) {
  // Not to be missed: exp(-24) is 4e-11. So is every block where the mean is 0, which draws all.
  constexpr uint64_t most = 24, terms = 16, point = 24;
  if (size / most >= mean) return size;
  // The mean is at most 2^30, so size is below 2^35 and y below 12; here y has 20 bits behind the point.
  uint64_t y = (size << 19) / mean;
  uint64_t square = y * y >> (40 - point);
  uint64_t value = (2 * terms + 1) << point;
  for (uint64_t k = terms; k > 0; k--) value = ((2 * k - 1) << point) + (square << point) / value;
  return ((size << (point - 1)) + mean * value + (1ull << (point - 1))) >> point;
}

// pre: the allocator has just returned the block, or has failed to move it; `ring` is the thread's, or null.
[[gnu::noinline, gnu::cold]] inline void tell_allocation(RingHeader* ring, Frame frame, const void* block,
                                                         uint64_t size) {
  keep_frame();
  // A signal handler that allocates meanwhile is passed by.
  if (ring) begin_recording(ring, frame);
  auto address = reinterpret_cast<uint64_t>(block);
  enter_emitted(address, size);
  fire_alloc(address, size, weighted_bytes(size, gate().sample_bytes));
  if (ring) end_recording(ring, frame);
}

// pre: the allocator has not seen the release yet.
[[gnu::noinline, gnu::cold]] inline Emitted tell_release(const void* block) {
  keep_frame();
  // In a fork child the table is its parent's.
  if (epoch_now() == 0) return {};
  auto address = reinterpret_cast<uint64_t>(block);
  Emitted found = leave_emitted(address);
  if (found.was_told) fire_free(address);
  return found;
}

// Whether an allocation is told. One call for each. pre: begin_call() has returned the ring.
[[gnu::always_inline]] inline bool is_drawn(RingHeader* ring, uint64_t size) {
  return !(gate().flags & selects) || selected(ring, size);
}

// Of calls that cannot be passed by; the others never come here.
namespace telling {

template <typename... A>
[[gnu::always_inline]] inline void* allocate(uint32_t f, uint32_t v, Frame frame, uint64_t size, A... args) {
  RingHeader* ring = begin_call(frame);
  if (!ring) return original<void*>(f, v, args...);
  if (!is_drawn(ring, size)) return pass_allocation(f, v, ring, args...);
  void* block = original<void*>(f, v, args...);
  if (block) tell_allocation(ring, frame, block, size);
  leave(ring);
  return block;
}

// Two-phase, as in reallocate().
template <typename... A>
[[gnu::always_inline]] inline void* reallocate_and_tell(uint32_t f, uint32_t v, Frame frame, uint64_t size,
                                                        bool zero_releases, void* old, A... args) {
  RingHeader* ring = is_listened_to() ? begin_call(frame) : nullptr;
  bool is_one = ring && is_drawn(ring, size);
  Emitted released = old && may_be_emitted(old) ? tell_release(old) : Emitted{};
  void* block = original<void*>(f, v, old, args...);
  if (block && is_one)
    tell_allocation(ring, frame, block, size);
  else if (!block && released.size != 0 && !zero_releases)
    tell_allocation(ring, frame, old, released.size);
  if (ring) leave(ring);
  return block;
}

MEMHOOK_WRAPPER void* Size(uint64_t size) {
  MEMHOOK_PERSONALITY;
  return allocate(F, V, MEMHOOK_FRAME, size, size);
}
MEMHOOK_WRAPPER void* SizeX(uint64_t size, uint64_t x) {
  MEMHOOK_PERSONALITY;
  return allocate(F, V, MEMHOOK_FRAME, size, size, x);
}
MEMHOOK_WRAPPER void* SizeXX(uint64_t size, uint64_t x, uint64_t y) {
  MEMHOOK_PERSONALITY;
  return allocate(F, V, MEMHOOK_FRAME, size, size, x, y);
}
MEMHOOK_WRAPPER void* CountSize(uint64_t count, uint64_t size) {
  MEMHOOK_PERSONALITY;
  return allocate(F, V, MEMHOOK_FRAME, product(count, size), count, size);
}
MEMHOOK_WRAPPER void* AlignSize(uint64_t align, uint64_t size) {
  MEMHOOK_PERSONALITY;
  return allocate(F, V, MEMHOOK_FRAME, size, align, size);
}
MEMHOOK_WRAPPER int PosixMemalign(void** out, uint64_t align, uint64_t size) {
  MEMHOOK_PERSONALITY;
  Frame frame = MEMHOOK_FRAME;
  RingHeader* ring = begin_call(frame);
  if (!ring) return original<int>(F, V, out, align, size);
  bool is_one = is_drawn(ring, size);
  int error = original<int>(F, V, out, align, size);
  if (is_one && error == 0 && *out) tell_allocation(ring, frame, *out, size);
  leave(ring);
  return error;
}
MEMHOOK_WRAPPER void Free(void* block) {
  tell_release(block);
  original<void>(F, V, block);
}
MEMHOOK_WRAPPER void FreeX(void* block, uint64_t x) {
  tell_release(block);
  original<void>(F, V, block, x);
}
MEMHOOK_WRAPPER void FreeXX(void* block, uint64_t x, uint64_t y) {
  tell_release(block);
  original<void>(F, V, block, x, y);
}
MEMHOOK_WRAPPER void* Realloc(void* old, uint64_t size) {
  return reallocate_and_tell(F, V, MEMHOOK_FRAME, size, size == 0, old, size);
}
MEMHOOK_WRAPPER void* ReallocArray(void* old, uint64_t count, uint64_t size) {
  uint64_t bytes = product(count, size);
  return reallocate_and_tell(F, V, MEMHOOK_FRAME, bytes, bytes == 0, old, count, size);
}
MEMHOOK_WRAPPER void* Rallocx(void* old, uint64_t size, int flags) {
  return reallocate_and_tell(F, V, MEMHOOK_FRAME, size, false, old, size, flags);
}
// Resizes in place; the block never changes its owner.
MEMHOOK_WRAPPER uint64_t Xallocx(void* block, uint64_t size, uint64_t extra, int flags) {
  Frame frame = MEMHOOK_FRAME;
  RingHeader* ring = is_listened_to() ? begin_call(frame) : nullptr;
  uint64_t bytes = original<uint64_t>(F, V, block, size, extra, flags);
  if (may_be_emitted(block)) tell_release(block);
  if (!ring) return bytes;
  if (is_drawn(ring, bytes)) tell_allocation(ring, frame, block, bytes);
  leave(ring);
  return bytes;
}

}  // namespace telling

// What slots hold: each decides without a frame of its own, and jumps.
namespace emitting {

#define MEMHOOK_TELL_UNLESS(condition, type, name, ...) \
  return __builtin_expect((condition), 1) ? original<type>(F, V, __VA_ARGS__) : telling::name<F, V>(__VA_ARGS__)

MEMHOOK_SELECTIVE void* Size(uint64_t size) {
  MEMHOOK_TELL_UNLESS((!is_listened_to() || passes<F, V>(size)), void*, Size, size);
}
MEMHOOK_SELECTIVE void* SizeX(uint64_t size, uint64_t x) {
  MEMHOOK_TELL_UNLESS((!is_listened_to() || passes<F, V>(size)), void*, SizeX, size, x);
}
MEMHOOK_SELECTIVE void* SizeXX(uint64_t size, uint64_t x, uint64_t y) {
  MEMHOOK_TELL_UNLESS((!is_listened_to() || passes<F, V>(size)), void*, SizeXX, size, x, y);
}
MEMHOOK_SELECTIVE void* CountSize(uint64_t count, uint64_t size) {
  MEMHOOK_TELL_UNLESS((!is_listened_to() || passes<F, V>(product(count, size))), void*, CountSize, count, size);
}
MEMHOOK_SELECTIVE void* AlignSize(uint64_t align, uint64_t size) {
  MEMHOOK_TELL_UNLESS((!is_listened_to() || passes<F, V>(size)), void*, AlignSize, align, size);
}
MEMHOOK_SELECTIVE int PosixMemalign(void** out, uint64_t align, uint64_t size) {
  MEMHOOK_TELL_UNLESS((!is_listened_to() || passes<F, V>(size)), int, PosixMemalign, out, align, size);
}
MEMHOOK_SELECTIVE void Free(void* block) { MEMHOOK_TELL_UNLESS(!may_be_emitted(block), void, Free, block); }
MEMHOOK_SELECTIVE void FreeX(void* block, uint64_t x) {
  MEMHOOK_TELL_UNLESS(!may_be_emitted(block), void, FreeX, block, x);
}
MEMHOOK_SELECTIVE void FreeXX(void* block, uint64_t x, uint64_t y) {
  MEMHOOK_TELL_UNLESS(!may_be_emitted(block), void, FreeXX, block, x, y);
}
// Calls that are counted down by passes() come last: they are counted once.
MEMHOOK_SELECTIVE void* Realloc(void* old, uint64_t size) {
  MEMHOOK_TELL_UNLESS((!may_be_emitted(old) && (!is_listened_to() || passes<F, V>(size))), void*, Realloc, old, size);
}
MEMHOOK_SELECTIVE void* ReallocArray(void* old, uint64_t count, uint64_t size) {
  MEMHOOK_TELL_UNLESS((!may_be_emitted(old) && (!is_listened_to() || passes<F, V>(product(count, size)))), void*,
                      ReallocArray, old, count, size);
}
MEMHOOK_SELECTIVE void* Rallocx(void* old, uint64_t size, int flags) {
  MEMHOOK_TELL_UNLESS((!may_be_emitted(old) && (!is_listened_to() || passes<F, V>(size))), void*, Rallocx, old, size,
                      flags);
}
MEMHOOK_SELECTIVE uint64_t Xallocx(void* block, uint64_t size, uint64_t extra, int flags) {
  MEMHOOK_TELL_UNLESS((!may_be_emitted(block) && !is_listened_to()), uint64_t, Xallocx, block, size, extra, flags);
}

// They allocate nothing that is told.
using namespace others;

}  // namespace emitting
}  // namespace memhook
