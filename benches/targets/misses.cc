// Calls malloc(64) and free from 64 callers in random order, more than 20 frames deep. All callers
// have frames of equal size. An unwinder's cache from one backtrace never applies to the next.
#include <array>
#include <utility>

#include "measured.hpp"

using namespace measured;

[[gnu::noinline]] static void leaf() {
  void* p = malloc(64);
  keep(p);
  free(p);
}

template <size_t Index>
[[gnu::noinline]] static void caller() {
  char room[32];
  keep(room);
  leaf();
  // Makes each instance a different function.
  asm volatile("" : : "i"(Index));
  keep(room + Index % 2);
}

template <size_t... Index>
static constexpr std::array<void (*)(), sizeof...(Index)> all(std::index_sequence<Index...>) {
  return {&caller<Index>...};
}
static constexpr auto callers = all(std::make_index_sequence<64>());

template <int Depth>
struct Below {
  [[gnu::noinline]] static Cost run(Random& random, double milliseconds) {
    char room[16 + Depth];
    keep(room);
    Cost cost = Below<Depth - 1>::run(random, milliseconds);
    keep(room);
    return cost;
  }
};
template <>
struct Below<0> {
  [[gnu::noinline]] static Cost run(Random& random, double milliseconds) {
    constexpr int block = 1000;
    return repeat(milliseconds, block, [&] {
      for (int i = 0; i < block; i++) callers[random.next() >> 58]();
    });
  }
};

int main() {
  Random random{88172645463325252ull};
  return serve(1, [&](int, double milliseconds) { return Below<22>::run(random, milliseconds); });
}
