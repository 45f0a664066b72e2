// A heap full of holes: in each round it allocates many small blocks, and keeps every tenth.
//
// It prints the number of kept bytes. After each step it pauses briefly, so that the resident
// memory, which is measured once a second, is measured then.
//
// Arguments: rounds, blocks per round.
#include <unistd.h>

#include <cstring>
#include <vector>

#include "target.hpp"

namespace {

constexpr unsigned stand_still_us = 1'200'000;

struct Kept {
  char* block;
  size_t size;
};

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 3);
  const long rounds = strtol(arguments[1], nullptr, 10), blocks = strtol(arguments[2], nullptr, 10);
  size_t kept = 0;
  for (long round = 0; round < rounds; ++round) {
    std::vector<Kept> all;
    all.reserve(blocks);
    for (long i = 0; i < blocks; ++i) {
      // Each round has different sizes, so that its blocks do not fit into the holes.
      const size_t size = 100 + 64 * round + i % 7 * 16;
      auto* block = static_cast<char*>(malloc(size));
      CHECK(block != nullptr);
      memset(block, 1, size);
      all.push_back({block, size});
    }
    usleep(stand_still_us);
    for (long i = 0; i < blocks; ++i) {
      if (i % 10 == 0)
        kept += all[i].size;
      else
        free(all[i].block);
    }
    usleep(stand_still_us);
  }
  printf("%zu\n", kept);
  return 0;
}
