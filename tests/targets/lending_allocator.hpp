// An allocator whose functions call a hook that takes the lent lock, without holding any lock of
// glibc's allocator.
#pragma once
#include <cstddef>

#include "lent_lock.hpp"

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void __libc_free(void*);

#define EXPORT __attribute__((visibility("default"), noinline))
EXPORT void* malloc(size_t size) {
  target::take_lent_lock();
  return __libc_malloc(size);
}
EXPORT void* calloc(size_t count, size_t size) {
  target::take_lent_lock();
  return __libc_calloc(count, size);
}
EXPORT void* realloc(void* block, size_t size) {
  target::take_lent_lock();
  return __libc_realloc(block, size);
}
EXPORT void free(void* block) {
  if (block) target::take_lent_lock();
  __libc_free(block);
}
#undef EXPORT
}
