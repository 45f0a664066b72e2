// A server that touches its blocks in a known pattern, and knows at any time which bytes are stale.
// Each line on standard input contains a time in seconds. The answer contains, for each site in the
// order of `sites`, the bytes not touched for this time and the live bytes.
//
// The pattern of a site is a period and the share of blocks that follow it. The other blocks are
// never touched.
#include "measured.hpp"

struct Block {
  unsigned char* memory;
  size_t bytes;
  double touched_ns;
};

struct Kind {
  // Period of the touches; 0 means never.
  double period_s;
  // Percentage of the blocks that are touched.
  int touched;
  std::vector<Block> blocks;
};

static const size_t SITE_BYTES = 8 << 20;

// One function for each site, so that each site has a different call stack.
#define ALLOCATES(NAME)                                                    \
  __attribute__((noinline)) static unsigned char* NAME(size_t bytes) {     \
    auto* memory = static_cast<unsigned char*>(malloc(bytes));             \
    memset(memory, 1, bytes);                                              \
    return memory;                                                         \
  }
ALLOCATES(never_touched)
ALLOCATES(always_touched)
ALLOCATES(half_touched)
ALLOCATES(each_5_seconds)
ALLOCATES(each_20_seconds)
ALLOCATES(each_60_seconds)

static double now_ns() { return measured::clock_ns(CLOCK_MONOTONIC); }

int main() {
  unsigned char* (*const sites[])(size_t) = {never_touched,  always_touched,  half_touched,
                                             each_5_seconds, each_20_seconds, each_60_seconds};
  Kind kinds[] = {{0, 0, {}}, {.2, 100, {}}, {.2, 50, {}}, {5, 100, {}}, {20, 100, {}}, {60, 100, {}}};
  std::atomic<bool> is_over{false};
  measured::say("ready\n");
  // The next line arrives once the tool has attached.
  char line[64];
  if (read(0, line, 1) != 1) return 1;
  unsigned random = 1;
  for (size_t at = 0; at < 6; at++) {
    for (size_t sum = 0; sum < SITE_BYTES;) {
      random = random * 1664525 + 1013904223;
      size_t bytes = 64 + (random >> 8) % 4000;
      kinds[at].blocks.push_back({sites[at](bytes), bytes, now_ns()});
      sum += bytes;
    }
  }
  double began_ns = now_ns();
  // The blocks of a site are touched one after another, so that at any time some blocks have been
  // untouched for nearly a whole period.
  std::thread worker([&] {
    std::vector<size_t> next(6);
    unsigned sum = 0;
    while (!is_over) {
      double now = now_ns();
      for (size_t at = 0; at < 6; at++) {
        Kind& kind = kinds[at];
        if (kind.period_s == 0) continue;
        double turns = (now - began_ns) / 1e9 / kind.period_s;
        auto until = static_cast<size_t>(turns * static_cast<double>(kind.blocks.size()));
        // Prevents a second touch of a block after a pause of the machine.
        if (until > next[at] + kind.blocks.size()) next[at] = until - kind.blocks.size();
        for (; next[at] < until; next[at]++) {
          size_t index = next[at] % kind.blocks.size();
          Block& block = kind.blocks[index];
          if (static_cast<int>(index % 100) >= kind.touched) continue;
          // Half of the touches are reads.
          if (index % 2 == 0) block.memory[0]++;
          for (size_t i = 0; i < block.bytes; i++) sum += const_cast<volatile unsigned char*>(block.memory)[i];
          block.touched_ns = now;
        }
      }
      usleep(2000);
    }
    measured::keep(&sum);
  });
  measured::say("made\n");
  ssize_t length;
  while ((length = read(0, line, sizeof line - 1)) > 0) {
    line[length] = 0;
    double older_ns = strtod(line, nullptr) * 1e9, now = now_ns();
    if (older_ns <= 0) continue;
    size_t stale[6] = {}, live[6] = {};
    for (size_t at = 0; at < 6; at++) {
      for (const Block& block : kinds[at].blocks) {
        live[at] += block.bytes;
        if (now - block.touched_ns >= older_ns) stale[at] += block.bytes;
      }
    }
    measured::say("%zu %zu %zu %zu %zu %zu %zu %zu %zu %zu %zu %zu\n", stale[0], stale[1], stale[2], stale[3], stale[4],
                  stale[5], live[0], live[1], live[2], live[3], live[4], live[5]);
  }
  is_over = true;
  worker.join();
  return 0;
}
