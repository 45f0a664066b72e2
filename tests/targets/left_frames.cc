// Threads that compute after calls of the allocator, on stacks that still contain the allocator's
// frames.
#include <atomic>
#include <thread>

#include "target.hpp"

using namespace target;

static std::atomic<int> computing{0};

[[gnu::noinline]] static void allocate() {
  // Exercises all parts of malloc and free.
  void* blocks[20];
  for (size_t i = 0; i < 20; i++) keep(blocks[i] = malloc(2000 + 16 * i));
  for (void* block : blocks) free(block);
  keep(malloc(5000));
}

// Never writes to its local array, so the stale frames below it remain.
[[gnu::noinline]] static void compute() {
  char unused[512];
  keep(unused);
  computing++;
  for (;;) asm volatile("" : : : "memory");
}

int main() {
  for (int i = 0; i < 2; i++)
    std::thread([] {
      allocate();
      compute();
    }).detach();
  while (computing < 2) usleep(1000);
  ready();
  return 0;
}
