// Allocates blocks of 16 to 1,039 bytes from 4,096 different stacks of 12 frames below the work
// loop. An operation picks one of 100,000 live blocks at random, frees it, and allocates a new
// block. Argument: THREADS.
#include "measured.hpp"

using namespace measured;

constexpr size_t live_blocks = 100000;

struct Heap {
  Random random;
  std::vector<void*> live = std::vector<void*>(live_blocks);
};

[[gnu::always_inline]] static inline void replace(Heap& heap, uint64_t r) {
  void*& block = heap.live[(r >> 20) % live_blocks];
  free(block);
  block = malloc(16 + (r >> 40) % 1024);
  keep(block);
}

// Bits 52 to 63 of the number select the call path.
template <int Depth>
struct Way {
  static void on(Heap& heap, uint64_t r) {
    if (r >> (63 - (12 - Depth)) & 1)
      Way<Depth - 1>::left(heap, r);
    else
      Way<Depth - 1>::right(heap, r);
  }
  [[gnu::noinline]] static void left(Heap& heap, uint64_t r) {
    char room[16 + 8 * Depth];
    keep(room);
    on(heap, r);
    keep(room);
  }
  [[gnu::noinline]] static void right(Heap& heap, uint64_t r) {
    char room[32 + 8 * Depth];
    keep(room);
    on(heap, r);
    keep(room);
  }
};
template <>
struct Way<0> {
  [[gnu::noinline]] static void left(Heap& heap, uint64_t r) {
    replace(heap, r);
    asm volatile("");
  }
  [[gnu::noinline]] static void right(Heap& heap, uint64_t r) {
    replace(heap, r);
    asm volatile("nop");
  }
};

int main(int, char** argv) {
  int threads = atoi(argv[1]);
  std::vector<Heap> heaps;
  for (int i = 0; i < threads; i++) {
    heaps.push_back({{88172645463325252ull + static_cast<uint64_t>(i)}});
    for (void*& block : heaps.back().live) block = malloc(16 + heaps.back().random.next() % 1024);
  }
  return serve(threads, [&](int thread, double milliseconds) {
    Heap& heap = heaps[static_cast<size_t>(thread)];
    constexpr int block = 500;
    return repeat(milliseconds, block, [&] {
      for (int i = 0; i < block; i++) Way<12>::on(heap, heap.random.next());
    });
  });
}
