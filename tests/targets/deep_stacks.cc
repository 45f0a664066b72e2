// Allocates from half a million call stacks that differ in their outer frames, and need more memory
// than is available.
#include <cstdint>

#include "target.hpp"

using namespace target;

static constexpr int inner = 22, outer = 19;

[[gnu::noinline]] static void allocate_here() { keep(malloc(40)); }

[[gnu::noinline]] static void descend(int levels) {
  if (levels == 0)
    allocate_here();
  else
    descend(levels - 1);
  asm volatile("");
}

static void choose(uint32_t path, int levels);

[[gnu::noinline]] static void go_left(uint32_t path, int levels) {
  choose(path, levels);
  asm volatile("");
}

[[gnu::noinline]] static void go_right(uint32_t path, int levels) {
  choose(path, levels);
  asm volatile("");
}

[[gnu::noinline]] static void choose(uint32_t path, int levels) {
  if (levels == 0)
    descend(inner);
  else if (path & 1)
    go_left(path >> 1, levels - 1);
  else
    go_right(path >> 1, levels - 1);
  asm volatile("");
}

int main() {
  ready();
  for (uint32_t path = 0; path < (1u << outer); path++) choose(path, outer);
  done();
}
