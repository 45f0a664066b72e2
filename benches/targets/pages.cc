// Memcov's own loop (Callanan et al., section 4.3): allocates and touches many blocks of one page,
// resizes them to two pages, touches the second page, and frees the blocks. The answer to each
// round contains, for each of the five steps, the ticks of the time-stamp counter per block.
#include <x86intrin.h>

#include "measured.hpp"

using namespace measured;

constexpr size_t page = 4096, count = 2000;

template <typename F>
[[gnu::noinline]] static double counts(F each) {
  unsigned processor;
  uint64_t begun = __rdtscp(&processor);
  for (size_t i = 0; i < count; i++) each(i);
  return static_cast<double>(__rdtscp(&processor) - begun) / count;
}

int main() {
  static char* blocks[count];
  say("ready\n");
  for (double number; asked(&number);) {
    double allocate = counts([](size_t i) { blocks[i] = static_cast<char*>(malloc(page)); });
    double touch = counts([](size_t i) { *static_cast<volatile char*>(blocks[i]) = 1; });
    double resize = counts([](size_t i) { blocks[i] = static_cast<char*>(realloc(blocks[i], 2 * page)); });
    double second = counts([](size_t i) { *static_cast<volatile char*>(blocks[i] + page) = 1; });
    double release = counts([](size_t i) { free(blocks[i]); });
    say("%.0f %.0f %.0f %.0f %.0f\n", allocate, touch, resize, second, release);
  }
}
