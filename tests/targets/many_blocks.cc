// Two million small live blocks of a cache, and a leak that is larger than the cache. At the end,
// half of the cache is cleared.
#include "target.hpp"

using namespace target;

// Prevents a tail call, so that the function is on the stack.
[[gnu::always_inline]] static inline void* allocate(size_t size) {
  void* block = malloc(size);
  keep(block);
  return block;
}

[[gnu::noinline]] static void* cached() { return allocate(24); }
[[gnu::noinline]] static void* leaked() { return allocate(700); }

int main(int argc, char** argv) {
  constexpr size_t kCached = 2'000'000;
  constexpr size_t kLeaked = 200'000;
  // Static, so that no report contains it.
  static void* cache[kCached];
  // `gate` sends no input.
  bool is_alone = argc > 1;
  bool is_clean = is_alone && strcmp(argv[1], "clean") == 0;
  if (!is_alone) ready();
  for (size_t i = 0; i < kCached; i++) {
    cache[i] = cached();
    if (!is_clean && i % (kCached / kLeaked) == 0) leaked();
  }
  for (size_t i = 0; i < kCached; i += 2) {
    free(cache[i]);
    cache[i] = nullptr;
  }
  if (is_alone) {
    for (size_t i = 1; i < kCached; i += 2) free(cache[i]);
    return 0;
  }
  done();
}
