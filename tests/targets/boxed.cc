// Runs 32 threads that allocate and release without pause, along many call paths, and leak a few
// blocks. If the first byte of input is `e`, a thread allocates memory until none is left.
#include <atomic>
#include <thread>
#include <vector>

#include "target.hpp"

using namespace target;

static constexpr int threads = 32, rounds = 20000;
static std::atomic<bool> begin{false};
static std::atomic<int> running{0};

[[gnu::noinline]] static void lose() { keep(malloc(48)); }

// Different call paths to one allocation: `way` selects the next call in each frame.
[[gnu::noinline]] static void* on_way(unsigned way, size_t size) {
  void* block;
  if (way == 0) block = malloc(size);
  else if (way & 1) block = on_way(way >> 1, size);
  else block = on_way((way >> 1) & ~1u, size);
  asm volatile("" : "+r"(block));
  return block;
}

static void work(unsigned seed) {
  unsigned char* kept[32] = {};
  uint64_t x = seed * 7919 + 1;
  running++;
  while (!begin) usleep(1000);
  for (int i = 0; i < rounds; i++) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    unsigned at = x >> 59;
    size_t size = 2 + (x >> 30) % 200;
    if (kept[at]) {
      CHECK(kept[at][0] == at);
      free(kept[at]);
    }
    kept[at] = static_cast<unsigned char*>(on_way(x >> 40 & 63, size));
    CHECK(kept[at]);
    kept[at][0] = static_cast<unsigned char>(at);
    if (i % 1000 == 0) lose();
  }
  for (auto block : kept) free(block);
}

static void take_all() {
  for (;;) memset(malloc(1 << 20), 1, 1 << 20);
}

int main() {
  std::vector<std::thread> all;
  for (unsigned i = 0; i < threads; i++) all.emplace_back(work, i);
  while (running != threads) usleep(1000);
  say("ready");
  char byte = 0;
  CHECK(read(0, &byte, 1) == 1);
  if (byte == 'e') take_all();
  begin = true;
  for (auto& thread : all) thread.join();
  done();
}
