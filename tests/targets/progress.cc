// Allocates in two threads without pause. Answers each byte of input with the number of allocations
// so far.
#include <atomic>
#include <thread>

#include "target.hpp"

using namespace target;

static std::atomic<unsigned long> calls{0};
static std::atomic<bool> stop{false};

static void work() {
  void* blocks[16] = {};
  for (unsigned i = 0; !stop; i++) {
    free(blocks[i % 16]);
    blocks[i % 16] = malloc(i % 100 + 1);
    CHECK(blocks[i % 16]);
    if (i % 1000 == 0) calls += 1000;
  }
  for (auto block : blocks) free(block);
}

int main() {
  std::thread one(work), other(work);
  say("ready");
  char byte;
  while (read(0, &byte, 1) == 1) {
    char line[64];
    snprintf(line, sizeof line, "calls %lu", calls.load());
    say(line);
  }
  stop = true;
  one.join();
  other.join();
}
