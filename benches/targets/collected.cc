// Redirects the allocations of a program to Boehm's conservative collector (bdwgc). The program is
// linked with this file, with -static-libstdc++, and with -Wl,--wrap= for each function below.
#define GC_THREADS
#include <gc.h>
#include <malloc.h>
#include <pthread.h>

#include <cstddef>

extern "C" {

void* __wrap_malloc(size_t size) { return GC_MALLOC(size); }

void __wrap_free(void* block) {
  if (block) GC_FREE(block);
}

size_t __wrap_malloc_usable_size(void* block) { return block ? GC_size(block) : 0; }

// Programs call this function to learn the size of their heap.
struct mallinfo2 __wrap_mallinfo2() {
  struct mallinfo2 sizes = {};
  sizes.arena = GC_get_heap_size();
  sizes.fordblks = GC_get_gc_no();
  return sizes;
}

int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  return GC_pthread_create(thread, attributes, start, argument);
}

int __wrap_pthread_join(pthread_t thread, void** result) { return GC_pthread_join(thread, result); }
}

[[gnu::constructor]] static void begin() { GC_INIT(); }
