// A heap full of holes: many small blocks, of which every tenth is kept, in rounds.
//
// It prints how many bytes it keeps, and pauses for a moment after each step, so that the resident memory is
// measured then (once a second).
//
// Arguments: rounds, blocks of a round.
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
      // Other sizes in each round: the holes do not fit.
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
