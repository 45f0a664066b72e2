// Allocates blocks of four sizes in separate functions, and releases every other block.
#include <vector>

#include "target.hpp"

using namespace target;

// Allocates 2 * `count` blocks and releases half of them.
static void plant(int count, void* (*allocate)()) {
  std::vector<void*> given;
  given.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; i++) {
    keep(allocate());
    given.push_back(allocate());
    if (i % 16 == 15) {
      for (void* block : given) free(block);
      given.clear();
    }
  }
  for (void* block : given) free(block);
}

// Prevents a tail call, so that the function is on the stack.
[[gnu::always_inline]] static inline void* allocate(size_t size) {
  void* block = malloc(size);
  keep(block);
  return block;
}

[[gnu::noinline]] static void* small() { return allocate(24); }
[[gnu::noinline]] static void* medium() { return allocate(500); }
[[gnu::noinline]] static void* large() { return allocate(9000); }
[[gnu::noinline]] static void* huge() { return allocate(1500000); }

int main() {
  ready();
  plant(100000, small);
  plant(8000, medium);
  plant(900, large);
  plant(5, huge);
  done();
}
