// The cost of malloc by size. The answer to a line "COUNT" has one number for each size:
// nanoseconds per malloc, averaged over COUNT consecutive calls. The frees afterwards are not
// timed. The calls are more than 20 frames deep.
#include <malloc.h>

#include "measured.hpp"

using namespace measured;

constexpr size_t sizes[] = {16, 32, 64, 128, 256, 512, 1024, 4096, 65536};
constexpr size_t most = 100000;
static void* blocks[most];

[[gnu::noinline]] static double allocate(size_t size, size_t count) {
  double start = own_ns();
  for (size_t i = 0; i < count; i++) blocks[i] = malloc(size);
  return (own_ns() - start) / static_cast<double>(count);
}

[[gnu::noinline]] static void release(size_t count) {
  for (size_t i = 0; i < count; i++) free(blocks[i]);
}

template <int Depth>
struct Below {
  [[gnu::noinline]] static double run(size_t size, size_t count) {
    char room[16 + Depth];
    keep(room);
    double cost = Below<Depth - 1>::run(size, count);
    keep(room);
    return cost;
  }
};
template <>
struct Below<0> {
  static double run(size_t size, size_t count) { return allocate(size, count); }
};

int main() {
  mallopt(M_MXFAST, 0);
  mallopt(M_TRIM_THRESHOLD, 0);
  memset(blocks, 1, sizeof blocks);
  bind_to_processor(0);
  say("ready\n");
  for (double asked_for; asked(&asked_for);) {
    size_t count = static_cast<size_t>(asked_for);
    if (count > most) _exit(8);
    Below<22>::run(64, count / 10);
    release(count / 10);
    for (size_t size : sizes) {
      double cost = Below<22>::run(size, count);
      release(count);
      say("%.3f ", cost);
    }
    say("\n");
  }
}
