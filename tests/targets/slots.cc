// Allocates and releases blocks of random sizes up to 516 bytes in 100 slots. Prints `warm` after a while, and
// continues until SIGUSR1 arrives.
#include <csignal>
#include <cstdint>

#include "target.hpp"

using namespace target;

static volatile sig_atomic_t has_ended = 0;
static void* slots[100];

static void exchange(uint64_t& random) {
  // xorshift64 (Marsaglia, "Xorshift RNGs", 2003)
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  void*& slot = slots[random % 100];
  free(slot);
  slot = malloc((random >> 32) % 517);
}

int main() {
  signal(SIGUSR1, [](int) { has_ended = 1; });
  uint64_t random = 88172645463325252;
  ready();
  for (int i = 0; i < 1'000'000; i++) exchange(random);
  say("warm");
  while (!has_ended) exchange(random);
  done();
}
