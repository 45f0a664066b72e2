// Calls malloc(64) and free in a tight loop, at least FRAMES frames deep. Arguments: FRAMES (10 or
// 20), THREADS.
#include "measured.hpp"

using namespace measured;

[[gnu::noinline]] static Cost pairs(double milliseconds) {
  constexpr int block = 2000;
  return repeat(milliseconds, block, [] {
    for (int i = 0; i < block; i++) {
      void* p = malloc(64);
      keep(p);
      free(p);
    }
  });
}

// Makes frames of different functions and sizes.
template <int Depth>
struct Below {
  [[gnu::noinline]] static Cost run(double milliseconds) {
    char room[16 + Depth];
    keep(room);
    Cost cost = Below<Depth - 1>::run(milliseconds);
    keep(room);
    return cost;
  }
};
template <>
struct Below<0> {
  static Cost run(double milliseconds) { return pairs(milliseconds); }
};

int main(int, char** argv) {
  bool deep = atoi(argv[1]) > 10;
  return serve(atoi(argv[2]), [deep](int, double milliseconds) {
    return deep ? Below<22>::run(milliseconds) : Below<12>::run(milliseconds);
  });
}
