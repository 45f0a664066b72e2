// Calls a function in a loop that only increments a variable, compiled without optimization: the
// workload of Sharma's slides (`docs/papers.md`).
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
