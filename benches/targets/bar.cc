// The loop of a function that increments a counter, which tools put a probe on.
#include "measured.hpp"

using namespace measured;

static volatile uint64_t calls;

extern "C" [[gnu::noinline]] void bar() { calls = calls + 1; }

int main(int, char** argv) {
  return serve(atoi(argv[1]), [](int, double milliseconds) {
    constexpr int block = 2000;
    return repeat(milliseconds, block, [] {
      for (int i = 0; i < block; i++) bar();
    });
  });
}
