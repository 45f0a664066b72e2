// Calls a function that increments a counter in a loop, in one thread or in several. Tools put a
// probe on this function. The program also has 1,000 functions for further probes.
#include "measured.hpp"

using namespace measured;

// Each thread has a separate counter, so that threads do not slow each other down.
static thread_local volatile uint64_t calls;

extern "C" [[gnu::noinline, gnu::noclone]] void bar(uint64_t number) {
#ifdef FIVE_BYTES
  // gdbserver's fast tracepoints need an instruction as long as a jump.
  asm volatile(".byte 0x0f, 0x1f, 0x44, 0, 0");
#endif
  calls = calls + 1;
  asm volatile("" : : "r"(number));
}

#define MANY(n) \
  extern "C" [[gnu::noinline, gnu::used]] void many_##n(uint64_t by) { calls = calls + by; }
#define TEN(n) \
  MANY(n##0) MANY(n##1) MANY(n##2) MANY(n##3) MANY(n##4) MANY(n##5) MANY(n##6) MANY(n##7) MANY(n##8) MANY(n##9)
#define HUNDRED(n) TEN(n##0) TEN(n##1) TEN(n##2) TEN(n##3) TEN(n##4) TEN(n##5) TEN(n##6) TEN(n##7) TEN(n##8) TEN(n##9)
HUNDRED(0) HUNDRED(1) HUNDRED(2) HUNDRED(3) HUNDRED(4) HUNDRED(5) HUNDRED(6) HUNDRED(7) HUNDRED(8) HUNDRED(9)

int main(int, char** argv) {
  return serve(atoi(argv[1]), [](int, double milliseconds) {
    constexpr int block = 2000;
    return repeat(milliseconds, block, [] {
      for (uint64_t i = 0; i < block; i++) bar(i & 3);
    });
  });
}
