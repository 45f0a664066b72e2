// One wrapper for each signature, instantiated for every hooked function and variant.
//
// A policy decides how wrappers treat allocations and releases: `Recording` (calls.hpp), `Passing` (selective.hpp),
// `Telling` and `Emitting` (emitting.hpp). A policy that only makes a decision then calls, or jumps to, the same
// wrapper of its `Full` policy.
#pragma once
#include "mappings.hpp"
#include "marks.hpp"
#include "modules.hpp"
#include "touches.hpp"

namespace memhook {

#define MEMHOOK_WRAPPER             \
  template <uint32_t F, uint32_t V> \
  [[gnu::noinline]] static

struct ModuleWrappers {
  MEMHOOK_WRAPPER void* traced_dlopen(const char* file, int mode, uint64_t gadget, uint64_t loader_count) {
    void* handle =
        memhook_call_via(reinterpret_cast<uint64_t>(file), static_cast<uint64_t>(mode), 0, originals[F][V], gadget);
    libraries_opened(loader_count);
    return handle;
  }
  MEMHOOK_WRAPPER void* traced_dlmopen(uint64_t space, const char* file, int mode, uint64_t gadget,
                                       uint64_t loader_count) {
    void* handle =
        memhook_call_via(space, reinterpret_cast<uint64_t>(file), static_cast<uint64_t>(mode), originals[F][V], gadget);
    libraries_opened(loader_count);
    return handle;
  }
  // Returns a `Way` without an instruction if the call cannot be followed, or is not followed (in a fork child, for
  // example).
  [[gnu::always_inline]] static Way way() {
    if (epoch_now() == 0) return {};
    Way by = way_for(reinterpret_cast<uint64_t>(__builtin_return_address(0)));
    if (by.gadget == 0) leaves_unfollowed();
    return by;
  }
  // A call that is not followed becomes a jump, so that the loader sees the caller's return address.
  MEMHOOK_WRAPPER void* Dlopen(const char* file, int mode) {
    Way by = way();
    return by.gadget ? traced_dlopen<F, V>(file, mode, by.gadget, by.loader_count) : original<void*>(F, V, file, mode);
  }
  MEMHOOK_WRAPPER void* Dlmopen(uint64_t space, const char* file, int mode) {
    Way by = way();
    return by.gadget ? traced_dlmopen<F, V>(space, file, mode, by.gadget, by.loader_count)
                     : original<void*>(F, V, space, file, mode);
  }
  MEMHOOK_WRAPPER int Dlclose(void* handle) {
    int result = original<int>(F, V, handle);
    modules_changed();
    return result;
  }
  // The call is a jump, so that no frame of a wrapper is on the stack of functions called by fork_by().
  MEMHOOK_WRAPPER int Fork() { return fork_by(originals[F][V]); }
  // Called by memhook_mark() of memhook_mark.h.
  MEMHOOK_WRAPPER void Mark(const char* name) {
    if (epoch_now() != 0 && name) note_mark(name);
  }
};

template <typename Policy>
struct Wrappers : ModuleWrappers, MappingWrappers, TouchWrappers {
  using Full = Wrappers<typename Policy::Full>;

  MEMHOOK_WRAPPER void* Size(uint64_t size) {
    return Policy::template allocate<F, V, Full::template Size<F, V>>(size, size);
  }
  MEMHOOK_WRAPPER void* SizeX(uint64_t size, uint64_t x) {
    return Policy::template allocate<F, V, Full::template SizeX<F, V>>(size, size, x);
  }
  MEMHOOK_WRAPPER void* SizeXX(uint64_t size, uint64_t x, uint64_t y) {
    return Policy::template allocate<F, V, Full::template SizeXX<F, V>>(size, size, x, y);
  }
  MEMHOOK_WRAPPER void* CountSize(uint64_t count, uint64_t size) {
    return Policy::template allocate<F, V, Full::template CountSize<F, V>>(product(count, size), count, size);
  }
  MEMHOOK_WRAPPER void* AlignSize(uint64_t align, uint64_t size) {
    return Policy::template allocate<F, V, Full::template AlignSize<F, V>>(size, align, size);
  }
  MEMHOOK_WRAPPER int PosixMemalign(void** out, uint64_t align, uint64_t size) {
    return Policy::template allocate_into<F, V, Full::template PosixMemalign<F, V>>(out, align, size);
  }
  MEMHOOK_WRAPPER void Free(void* block) { Policy::template release<F, V, Full::template Free<F, V>>(block); }
  MEMHOOK_WRAPPER void FreeX(void* block, uint64_t x) {
    Policy::template release<F, V, Full::template FreeX<F, V>>(block, x);
  }
  MEMHOOK_WRAPPER void FreeXX(void* block, uint64_t x, uint64_t y) {
    Policy::template release<F, V, Full::template FreeXX<F, V>>(block, x, y);
  }
  // realloc(p, 0) releases p and returns null in glibc. Null for any other size means failure.
  MEMHOOK_WRAPPER void* Realloc(void* old, uint64_t size) {
    return Policy::template reallocate<F, V, Full::template Realloc<F, V>>(size, size == 0, old, size);
  }
  MEMHOOK_WRAPPER void* ReallocArray(void* old, uint64_t count, uint64_t size) {
    uint64_t bytes = product(count, size);
    return Policy::template reallocate<F, V, Full::template ReallocArray<F, V>>(bytes, bytes == 0, old, count, size);
  }
  MEMHOOK_WRAPPER void* Rallocx(void* old, uint64_t size, int flags) {
    return Policy::template reallocate<F, V, Full::template Rallocx<F, V>>(size, false, old, size, flags);
  }
  // Allocator functions that take a heap as first argument, or an alignment or the like as last. If a function has
  // fewer arguments than these, the remaining registers have other values (psABI 3.2.3), which are passed on without
  // effect.
  MEMHOOK_WRAPPER void* CountSizeXX(uint64_t count, uint64_t size, uint64_t x, uint64_t y) {
    return Policy::template allocate<F, V, Full::template CountSizeXX<F, V>>(product(count, size), count, size, x, y);
  }
  MEMHOOK_WRAPPER void* XSizeXX(uint64_t heap, uint64_t size, uint64_t x, uint64_t y) {
    return Policy::template allocate<F, V, Full::template XSizeXX<F, V>>(size, heap, size, x, y);
  }
  MEMHOOK_WRAPPER void* XCountSizeXX(uint64_t heap, uint64_t count, uint64_t size, uint64_t x, uint64_t y) {
    return Policy::template allocate<F, V, Full::template XCountSizeXX<F, V>>(product(count, size), heap, count, size,
                                                                              x, y);
  }
  MEMHOOK_WRAPPER void* ReallocXX(void* old, uint64_t size, uint64_t x, uint64_t y) {
    return Policy::template reallocate<F, V, Full::template ReallocXX<F, V>>(size, size == 0, old, size, x, y);
  }
  MEMHOOK_WRAPPER void* ReallocArrayXX(void* old, uint64_t count, uint64_t size, uint64_t x, uint64_t y) {
    uint64_t bytes = product(count, size);
    return Policy::template reallocate<F, V, Full::template ReallocArrayXX<F, V>>(bytes, bytes == 0, old, count, size,
                                                                                  x, y);
  }
  MEMHOOK_WRAPPER void* XReallocXX(uint64_t heap, void* old, uint64_t size, uint64_t x, uint64_t y) {
    return Policy::template reallocate_in<F, V, Full::template XReallocXX<F, V>>(size, size == 0, heap, old, size, x,
                                                                                 y);
  }
  MEMHOOK_WRAPPER void* XReallocArrayXX(uint64_t heap, void* old, uint64_t count, uint64_t size, uint64_t x,
                                        uint64_t y) {
    uint64_t bytes = product(count, size);
    return Policy::template reallocate_in<F, V, Full::template XReallocArrayXX<F, V>>(bytes, bytes == 0, heap, old,
                                                                                      count, size, x, y);
  }
  MEMHOOK_WRAPPER void* ReallocXSizeXX(void* old, uint64_t align, uint64_t size, uint64_t x, uint64_t y) {
    return Policy::template reallocate<F, V, Full::template ReallocXSizeXX<F, V>>(size, size == 0, old, align, size, x,
                                                                                  y);
  }
  MEMHOOK_WRAPPER void* ReallocXXSize(void* old, uint64_t x, uint64_t y, uint64_t size) {
    return Policy::template reallocate<F, V, Full::template ReallocXXSize<F, V>>(size, size == 0, old, x, y, size);
  }
  // Resizes in place.
  MEMHOOK_WRAPPER uint64_t Xallocx(void* block, uint64_t size, uint64_t extra, int flags) {
    return Policy::template resize<F, V, Full::template Xallocx<F, V>>(block, size, extra, flags);
  }
};

#undef MEMHOOK_WRAPPER

}  // namespace memhook
