// Many threads that allocate simultaneously, and much faster than an attacher can read. Each of
// THREADS threads, or the first thread if there are none, takes OPERATIONS steps: it replaces one
// of its blocks, chosen at random, by a new block of up to 516 bytes. At the end it prints the
// elapsed time and the true numbers: "done MICROSECONDS ALLOCATIONS ALLOCATED_BYTES LIVE_BLOCKS
// LIVE_BYTES". Arguments: THREADS OPERATIONS, and "release" if another thread should release all
// blocks at the end.
#include <chrono>
#include <thread>
#include <vector>

#include "target.hpp"

using namespace target;

constexpr size_t slots = 1000, slots_of_first_thread = 100;

struct Sums {
  unsigned long long allocations = 0, allocated_bytes = 0, live_blocks = 0, live_bytes = 0;
};

struct Slot {
  void* block = nullptr;
  size_t size = 0;
};

static void work(unsigned long long seed, int operations, size_t count, Slot* live, Sums* result) {
  Sums sums;
  unsigned long long random = 88172645463325252ull + seed * 2654435761u;
  for (int i = 0; i < operations; i++) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    Slot& slot = live[(random >> 20) % count];
    // Every 16th step resizes a block, so that all kinds of events occur.
    size_t size = 1 + (random >> 40) % 516;
    if (random % 16 == 0) {
      slot.block = realloc(slot.block, size);
    } else {
      free(slot.block);
      slot.block = malloc(size);
    }
    keep(slot.block);
    slot.size = size;
    sums.allocations++;
    sums.allocated_bytes += size;
  }
  for (size_t i = 0; i < count; i++) {
    if (!live[i].block) continue;
    sums.live_blocks++;
    sums.live_bytes += live[i].size;
  }
  *result = sums;
}

int main(int arguments, char** argv) {
  int threads = atoi(argv[1]), operations = atoi(argv[2]);
  // Allocated outside the measured heap.
  static Slot live[64][slots];
  CHECK(threads >= 0 && threads <= 64);
  ready();
  std::vector<Sums> sums(threads == 0 ? 1 : static_cast<size_t>(threads));
  std::vector<std::thread> running;
  auto start = std::chrono::steady_clock::now();
  // The releases of exact blocks must fit into the last quarter of a small ring.
  if (threads == 0) work(0, operations, slots_of_first_thread, live[0], &sums[0]);
  for (size_t i = 0; i < static_cast<size_t>(threads); i++) running.emplace_back(work, i, operations, slots, live[i], &sums[i]);
  for (std::thread& thread : running) thread.join();
  auto time = std::chrono::steady_clock::now() - start;
  Sums all;
  for (const Sums& some : sums) {
    all.allocations += some.allocations;
    all.allocated_bytes += some.allocated_bytes;
    all.live_blocks += some.live_blocks;
    all.live_bytes += some.live_bytes;
  }
  if (arguments > 3) {
    for (auto& of_thread : live)
      for (Slot& slot : of_thread) free(slot.block);
    all.live_blocks = all.live_bytes = 0;
  }
  char line[128];
  snprintf(line, sizeof line, "done %lld %llu %llu %llu %llu",
           static_cast<long long>(std::chrono::duration_cast<std::chrono::microseconds>(time).count()),
           all.allocations, all.allocated_bytes, all.live_blocks, all.live_bytes);
  say(line);
  wait_for_byte();
}
