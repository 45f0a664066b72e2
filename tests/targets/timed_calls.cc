// Repeats ten quick allocations and one slow allocation (with slow_allocator.cc preloaded). A
// report must show this rhythm.
#include "target.hpp"

using namespace target;

static constexpr int rounds = 100'000, quick_ones = 10;

// Prevents jumps to malloc, which would leave no frame.
[[gnu::noinline]] static void* quick() {
  void* block = malloc(40);
  keep(block);
  return block;
}
[[gnu::noinline]] static void* slow() {
  void* block = malloc(5000);
  keep(block);
  return block;
}

int main() {
  void* blocks[quick_ones + 1];
  ready();
  for (int i = 0; i < rounds; i++) {
    for (int k = 0; k < quick_ones; k++) {
      blocks[k] = quick();
      CHECK(blocks[k]);
      memset(blocks[k], k, 40);
    }
    blocks[quick_ones] = slow();
    for (int k = 0; k < quick_ones; k++) CHECK(static_cast<char*>(blocks[k])[39] == k);
    for (void* block : blocks) free(block);
  }
  // Allocations with their own row in a report.
  keep(quick());
  keep(slow());
  done();
}
