// Threads pass blocks to each other, and release and reallocate them, so that addresses change
// owners constantly. The program knows exactly which blocks are live at the end, and prints the
// totals. Arguments: operations per thread, threads.
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "target.hpp"

using namespace target;

struct Slot {
  std::atomic<void*> block{nullptr};
};
// Each block contains its size, for the thread that receives it.
static Slot slots[512];
static std::atomic<long> live_blocks, live_bytes;

static void* make(size_t size) {
  auto* block = static_cast<size_t*>(malloc(size));
  CHECK(block != nullptr);
  *block = size;
  return block;
}

static void work(unsigned seed, long operations) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + 1;
  long blocks = 0, bytes = 0;
  for (long i = 0; i < operations; i++) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    // There are few sizes, so that malloc reuses addresses quickly.
    size_t size = 16 + (x >> 40) % 6 * 48;
    void* mine = nullptr;
    if (x % 8 != 0) {
      mine = make(size);
      blocks++;
      bytes += static_cast<long>(size);
    }
    void* taken = slots[(x >> 20) % 512].block.exchange(mine);
    if (taken == nullptr) continue;
    size_t old = *static_cast<size_t*>(taken);
    if (x % 5 == 0) {
      size_t grown = old * 2 + 8;
      taken = realloc(taken, grown);
      CHECK(taken != nullptr && *static_cast<size_t*>(taken) == old);
    }
    free(taken);
    blocks--;
    bytes -= static_cast<long>(old);
  }
  live_blocks += blocks;
  live_bytes += bytes;
}

int main(int, char** arguments) {
  long operations = atol(arguments[1]);
  unsigned threads = static_cast<unsigned>(atoi(arguments[2]));
  ready();
  {
    std::vector<std::thread> workers;
    for (unsigned i = 0; i < threads; i++) workers.emplace_back(work, i + 1, operations);
    for (auto& worker : workers) worker.join();
  }
  char line[64];
  snprintf(line, sizeof line, "live %ld %ld", live_blocks.load(), live_bytes.load());
  say(line);
  done();
}
