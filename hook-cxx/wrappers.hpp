// One wrapper template for each signature; instantiated for every hooked function and variant.
//
// A wrapper keeps a frame (rbp) so that its caller's rbp and return address are at known places.
// Its personality routine runs when an exception of operator new passes through, and ends the call.
#pragma once
#include "birth.hpp"
#include "marks.hpp"
#include "modules.hpp"
#include "record.hpp"

namespace memhook {

// Called by the unwinder for each wrapper frame it passes; in the cleanup phase the frame is left.
// Itanium C++ ABI, Exception Handling, section 1.6: _UA_CLEANUP_PHASE is 2, _URC_CONTINUE_UNWIND 8.
extern "C" [[gnu::visibility("hidden"), gnu::used]] int memhook_personality(int, int actions,
                                                                          uint64_t, void*, void*) {
  uint64_t word = thread_word(), epoch = word & 0xfff;
  // Also after the detach: an exception that began before would leave the thread inside for ever. Not in a
  // fork child, where the gate is wiped: the ring is its parent's.
  if ((actions & 2) && epoch != 0 && gate().last_epoch == epoch)
    reinterpret_cast<RingHeader*>(word - epoch)->outer = 0;
  return 8;
}

// DW_EH_PE_pcrel | DW_EH_PE_sdata4; the directive belongs to the FDE of the function it is in.
#define MEMHOOK_PERSONALITY asm volatile(".cfi_personality 0x1b, memhook_personality")

template <typename R, typename... A>
[[gnu::always_inline]] inline R original(uint32_t function, uint32_t variant, A... args) {
  return reinterpret_cast<R (*)(A...)>(originals[function][variant])(args...);
}

// The ring if this call is to be recorded. `frame` is the wrapper's.
[[gnu::always_inline]] inline RingHeader* begin_call(Frame frame) {
  uint32_t epoch = gate_word();
  if (epoch == 0) {
    if (__builtin_expect(gate().is_settled && gate_area.spares[0] == 0, 1)) return nullptr;
    epoch = be_born(frame);
    if (epoch == 0) return nullptr;
  }
  RingHeader* ring = ring_of(epoch, reinterpret_cast<uint64_t>(frame));
  if (__builtin_expect(ring == nullptr, 0)) return nullptr;
  if (!enter(ring, frame)) return nullptr;
  // A detach closes the gate, and the attacher then looks for calls under way until there are none for
  // a while: either it sees that we have entered, or we see that the gate is closed. Our store of
  // `outer` may still be on its way when we load the epoch, but not for milliseconds.
  if (__builtin_expect(gate_word() != epoch, 0)) {
    leave(ring);
    return nullptr;
  }
  return ring;
}

#define MEMHOOK_FRAME static_cast<Frame>(__builtin_frame_address(0))

// operator new and its kin, which call malloc: the inner call must not be counted again.
constexpr bool calls_another(uint32_t function) {
  return (function >= first_operator && function <= last_operator);
}

// An allocation that is not recorded.
template <typename... A>
[[gnu::always_inline]] inline void* pass_allocation(uint32_t f, uint32_t v, RingHeader* ring,
                                                    A... args) {
  if (!calls_another(f)) {
    leave(ring);
    return original<void*>(f, v, args...);
  }
  void* block = original<void*>(f, v, args...);
  leave(ring);
  return block;
}

// What an allocation does that is passed by (selective.hpp), but for the call of the original; and a release.
[[gnu::noinline, gnu::cold]] inline uint64_t pass_an_allocation(RingHeader* ring, const void* block) {
  uint32_t epoch = gate_word();
  if (epoch == 0 || !seated_ring(epoch) || gate().flags & selects) return 0;
  uint64_t left = __atomic_load_n(&ring->sample_left, __ATOMIC_RELAXED);
  if (__atomic_load_n(&ring->outer, __ATOMIC_RELAXED) == 0) return 0;
  __atomic_store_n(&ring->sample_left, left, __ATOMIC_RELAXED);
  return may_be_on_marked_page(block) && gate_word() == (thread_word() & 0xfff) && has_passed_entry(block);
}
[[gnu::noinline, gnu::cold]] inline uint64_t pass_a_release(RingHeader*, const void* block) {
  return was_passed(block);
}

// Records an allocation and times that.
[[gnu::noinline, gnu::cold]] inline void record_timed(RingHeader* ring, uint32_t f, Frame frame, void* block,
                                                      uint64_t size) {
  Control* c = control();
  Timing timing = Timing::begin();
  record_allocation(ring, f, frame, block, size);
  timing.end(&c->timed_allocations, &c->timed_allocation_counts);
  if (draw_random(ring) >> 32 & (timings_a_pass_timing - 1)) return;
  constexpr uint64_t passes = 16;
  // Wrappers are called through slots.
  auto allocation = pass_an_allocation, release = pass_a_release;
  asm volatile("" : "+r"(allocation), "+r"(release));
  // The wrappers are called all the time, these only here: else it would be timed how they come into the caches.
  allocation(ring, block);
  release(ring, block);
  uint64_t begun = cpu::time_stamp();
  for (uint64_t i = 0; i < passes; i += 2) {
    allocation(ring, block);
    release(ring, block);
  }
  uint64_t taken = cpu::time_stamp() - begun;
  if (taken > most_pass_counts) return;
  add_count(&c->timed_passes, passes);
  add_count(&c->timed_pass_counts, taken);
}

// What is_sample() has decided.
[[gnu::always_inline]] inline void record_or_pass(RingHeader* ring, uint32_t f, Frame frame, uint32_t decided,
                                                  void* block, uint64_t size) {
  if (__builtin_expect(decided == is_recorded, 1))
    record_allocation(ring, f, frame, block, size);
  else if (decided == is_passed)
    note_passed(block);
  else
    record_timed(ring, f, frame, block, size);
}

template <typename... A>
[[gnu::always_inline]] inline void* allocate(uint32_t f, uint32_t v, Frame frame, uint64_t size,
                                             A... args) {
  RingHeader* ring = begin_call(frame);
  if (!ring) return original<void*>(f, v, args...);
  if (__builtin_expect(gate().flags & selects, 0) && !selected(ring, size))
    return pass_allocation(f, v, ring, args...);
  uint32_t decided = is_sample(ring, frame, size);
  void* block = original<void*>(f, v, args...);
  if (__builtin_expect(block != nullptr, 1)) record_or_pass(ring, f, frame, decided, block, size);
  leave(ring);
  return block;
}

// Whether a release may have to be recorded.
[[gnu::always_inline]] inline bool release_may_count(const void* block) {
  if (__builtin_expect(gate().flags & flag_live_filter, 0)) return may_be_recorded(block);
  return !was_passed(block);
}

// Whether a release has to be recorded; asked once, by the call that then records it.
[[gnu::always_inline]] inline bool release_counts(const void* block) {
  if (__builtin_expect(gate().flags & flag_live_filter, 0))
    return may_be_recorded(block) && leave_filter(reinterpret_cast<uint64_t>(block));
  return !was_passed(block);
}

template <typename... A>
[[gnu::always_inline]] inline void release(uint32_t f, uint32_t v, Frame frame, void* block,
                                           A... args) {
  RingHeader* ring = block && release_may_count(block) ? begin_call(frame) : nullptr;
  if (!ring) return original<void>(f, v, block, args...);
  if (__builtin_expect(gate().flags & flag_live_filter, 0) && !release_counts(block)) {
    leave(ring);
    return original<void>(f, v, block, args...);
  }
  // Most allocators look at the words before the block first: let that miss run beside our work.
  __builtin_prefetch(static_cast<char*>(block) - 8);
  record_release(ring, f, frame, op_release, block);
  original<void>(f, v, block, args...);
  leave(ring);
}

// Two-phase, so that nobody can own the old address before its release is published.
template <typename... A>
[[gnu::always_inline]] inline void* reallocate(uint32_t f, uint32_t v, Frame frame, uint64_t size,
                                               bool zero_releases, void* old, A... args) {
  RingHeader* ring = begin_call(frame);
  if (!ring) return original<void*>(f, v, old, args...);
  bool is_wanted = true;
  if (__builtin_expect(gate().flags & selects, 0)) is_wanted = selected(ring, size);
  uint32_t decided = is_wanted ? is_sample(ring, frame, size) : is_passed;
  bool released = old != nullptr && release_counts(old);
  if (released) record_release(ring, f, frame, op_realloc_release, old);
  void* block = original<void*>(f, v, old, args...);
  if (block) {
    record_or_pass(ring, f, frame, decided, block, size);
  } else if (released && !zero_releases) {
    begin_recording(ring, frame);
    if (gate().flags & flag_live_filter) enter_filter(reinterpret_cast<uint64_t>(old));
    forget_passed(old);
    if (reserve(ring)) commit(ring, op_realloc_failed, reinterpret_cast<uint64_t>(old), 0, 0, 0);
    end_recording(ring, frame);
  }
  leave(ring);
  return block;
}

inline uint64_t product(uint64_t a, uint64_t b) {
  uint64_t result;
  return __builtin_mul_overflow(a, b, &result) ? ~0ull : result;
}

namespace wrap {

#define MEMHOOK_WRAPPER template <uint32_t F, uint32_t V> [[gnu::noinline]]

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
  if (__builtin_expect(gate().flags & selects, 0) && !selected(ring, size)) {
    leave(ring);
    return original<int>(F, V, out, align, size);
  }
  uint32_t decided = is_sample(ring, frame, size);
  int error = original<int>(F, V, out, align, size);
  if (error == 0 && *out) record_or_pass(ring, F, frame, decided, *out, size);
  leave(ring);
  return error;
}
MEMHOOK_WRAPPER void Free(void* block) { release(F, V, MEMHOOK_FRAME, block); }
MEMHOOK_WRAPPER void FreeX(void* block, uint64_t x) { release(F, V, MEMHOOK_FRAME, block, x); }
MEMHOOK_WRAPPER void FreeXX(void* block, uint64_t x, uint64_t y) {
  release(F, V, MEMHOOK_FRAME, block, x, y);
}
// realloc(p, 0) releases p and returns null in glibc; a null for any other size is a failure.
MEMHOOK_WRAPPER void* Realloc(void* old, uint64_t size) {
  return reallocate(F, V, MEMHOOK_FRAME, size, size == 0, old, size);
}
MEMHOOK_WRAPPER void* ReallocArray(void* old, uint64_t count, uint64_t size) {
  uint64_t bytes = product(count, size);
  return reallocate(F, V, MEMHOOK_FRAME, bytes, bytes == 0, old, count, size);
}
MEMHOOK_WRAPPER void* Rallocx(void* old, uint64_t size, int flags) {
  return reallocate(F, V, MEMHOOK_FRAME, size, false, old, size, flags);
}
// Resizes in place; the block never changes its owner, so one record after the call is enough.
MEMHOOK_WRAPPER uint64_t Xallocx(void* block, uint64_t size, uint64_t extra, int flags) {
  Frame frame = MEMHOOK_FRAME;
  RingHeader* ring = begin_call(frame);
  if (!ring) return original<uint64_t>(F, V, block, size, extra, flags);
  uint64_t bytes = original<uint64_t>(F, V, block, size, extra, flags);
  if (release_counts(block)) record_release(ring, F, frame, op_release, block);
  bool is_wanted = !(gate().flags & selects) || selected(ring, bytes);
  uint32_t decided = is_wanted ? is_sample(ring, frame, bytes) : is_passed;
  record_or_pass(ring, F, frame, decided, block, bytes);
  leave(ring);
  return bytes;
}
template <uint32_t F, uint32_t V>
[[gnu::noinline]] void* traced_dlopen(const char* file, int mode, uint64_t gadget) {
  void* handle = memhook_call_via(reinterpret_cast<uint64_t>(file), static_cast<uint64_t>(mode), 0,
                                  originals[F][V], gadget);
  modules_changed();
  return handle;
}
template <uint32_t F, uint32_t V>
[[gnu::noinline]] void* traced_dlmopen(uint64_t space, const char* file, int mode, uint64_t gadget) {
  void* handle = memhook_call_via(space, reinterpret_cast<uint64_t>(file), static_cast<uint64_t>(mode),
                                  originals[F][V], gadget);
  modules_changed();
  return handle;
}
// 0 where the call cannot be followed, or is not, as in a fork child.
#define MEMHOOK_GADGET \
  (epoch_now() ? ret_gadget_for(reinterpret_cast<uint64_t>(__builtin_return_address(0))) : 0)
// Where it is not followed, it is a jump: the loader finds the caller's return address.
MEMHOOK_WRAPPER void* Dlopen(const char* file, int mode) {
  uint64_t gadget = MEMHOOK_GADGET;
  return gadget ? traced_dlopen<F, V>(file, mode, gadget) : original<void*>(F, V, file, mode);
}
MEMHOOK_WRAPPER void* Dlmopen(uint64_t space, const char* file, int mode) {
  uint64_t gadget = MEMHOOK_GADGET;
  return gadget ? traced_dlmopen<F, V>(space, file, mode, gadget)
                : original<void*>(F, V, space, file, mode);
}
// What the access runtime calls with each read and write; `what`: bytes << 1, and 1 if it is a write.
MEMHOOK_WRAPPER void Access(uint64_t address, uint64_t what) {
  if (epoch_now() != 0 && gate().flags & flag_accesses) note_access(address, what >> 1, what & 1);
}
// What memhook_mark() of memhook_mark.h calls.
MEMHOOK_WRAPPER void Mark(const char* name) {
  if (epoch_now() != 0 && name) note_mark(name);
}
// A jump, so that no frame of a wrapper is on the stack of what fork_by() calls.
MEMHOOK_WRAPPER int Fork() { return fork_by(originals[F][V]); }
MEMHOOK_WRAPPER int Dlclose(void* handle) {
  int result = original<int>(F, V, handle);
  modules_changed();
  return result;
}

}  // namespace wrap
}  // namespace memhook
