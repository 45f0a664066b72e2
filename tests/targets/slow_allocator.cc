// An allocator for preloading that is slow for large blocks: it waits before it calls glibc's
// allocator.
#include <cstddef>
#include <ctime>

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" void* __libc_malloc(size_t);
extern "C" void __libc_free(void*);
extern "C" void* __libc_calloc(size_t, size_t);
extern "C" void* __libc_realloc(void*, size_t);

static constexpr size_t large = 5000;
static constexpr long wait_ns = 5000;

static long now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

EXPORT void* malloc(size_t size) {
  if (size >= large) {
    long end = now_ns() + wait_ns;
    while (now_ns() < end) {
    }
  }
  return __libc_malloc(size);
}
EXPORT void free(void* block) { __libc_free(block); }
EXPORT void* calloc(size_t count, size_t size) { return __libc_calloc(count, size); }
EXPORT void* realloc(void* block, size_t size) { return __libc_realloc(block, size); }
