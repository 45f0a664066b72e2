// The weights of emitted allocations, compared with the formula in floating point. Prints nothing if all
// are right.
#include <cmath>
#include <cstdio>
#include <initializer_list>

#include "emitting.hpp"

namespace memhook {
// Its bounds are used.
[[gnu::used, gnu::section("memhook_fork")]] static void no_fork() {}
}  // namespace memhook
uint32_t memhook_listeners;

int main() {
  using memhook::weighted_bytes;
  int wrong = 0;
  for (double mean : {2.0, 3.0, 100.0, 4096.0, 524288.0, 1073741824.0}) {
    for (double x = 1e-9; x < 100; x *= 1.01) {
      auto size = static_cast<uint64_t>(mean * x) + 1;
      double exact = static_cast<double>(size) / -std::expm1(-static_cast<double>(size) / mean);
      double found = static_cast<double>(weighted_bytes(size, static_cast<uint64_t>(mean)));
      // Half a byte, and the error of the fixed point.
      if (std::abs(found - exact) > 0.51 + 3e-7 * exact) {
        printf("size %lu, mean %.0f: %.0f, not %.3f\n", size, mean, found, exact);
        wrong++;
      }
    }
  }
  // All are drawn, and the largest sizes that a program can request.
  for (uint64_t size : {0ul, 1ul, 4096ul, ~0ul}) wrong += weighted_bytes(size, 0) != size;
  wrong += weighted_bytes(~0ul, 1ul << 30) != ~0ul;
  return wrong != 0;
}
