// Calls a function that only increments a variable in a loop, compiled without optimization: the
// workload of the oldest comparison of such tools.
#include "measured.hpp"

using namespace measured;

int ch;
extern "C" [[gnu::noinline, gnu::noclone, gnu::optimize("O0")]] void bar() { ch = ch + 1; }

int main() {
  return serve(1, [](int, double milliseconds) {
    constexpr int block = 2000;
    return repeat(milliseconds, block, [] {
      for (int i = 0; i < block; i++) bar();
    });
  });
}
