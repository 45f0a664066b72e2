// Allocates in several threads without pause and checks the contents of every block.
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "target.hpp"

using namespace target;

static std::atomic<bool> stop{false};

static void work(unsigned seed) {
  uint64_t x = seed * 7919 + 1;
  unsigned char* blocks[64] = {};
  size_t sizes[64] = {};
  while (!stop) {
    for (int i = 0; i < 1000; i++) {
      x = x * 6364136223846793005u + 1442695040888963407u;
      unsigned at = x >> 58;
      if (blocks[at]) {
        CHECK(blocks[at][0] == at && blocks[at][sizes[at] - 1] == (at ^ 0xff));
        free(blocks[at]);
      }
      sizes[at] = 2 + (x >> 30) % 2000;
      blocks[at] = static_cast<unsigned char*>(malloc(sizes[at]));
      blocks[at][0] = static_cast<unsigned char>(at);
      blocks[at][sizes[at] - 1] = static_cast<unsigned char>(at ^ 0xff);
    }
  }
}

int main() {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; i++) threads.emplace_back(work, i);
  say("ready");
  wait_for_byte();
  stop = true;
  for (auto& thread : threads) thread.join();
}
