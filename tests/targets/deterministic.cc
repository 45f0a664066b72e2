// Makes a fixed sequence of calls of every kind, all below one function: blocks that are kept,
// released immediately, moved, or aligned.
#include <string>
#include <vector>

#include "target.hpp"

using namespace target;

[[gnu::noinline]] static void kept(size_t size) { keep(malloc(size)); }

[[gnu::noinline]] static void temporary(size_t size) {
  void* block = malloc(size);
  keep(block);
  free(block);
}

[[gnu::noinline]] static void all_at_once() {
  static void* blocks[1000];
  for (void*& block : blocks) keep(block = calloc(1, 2000));
  for (void* block : blocks) free(block);
}

[[gnu::noinline]] static void grown() {
  std::vector<int> numbers;
  for (int i = 0; i < 100000; i++) numbers.push_back(i);
  keep(numbers.data());
}

[[gnu::noinline]] static void moved() {
  void* block = malloc(10);
  for (size_t i = 1; i < 50; i++) keep(block = realloc(block, i * 100));
  free(block);
}

[[gnu::noinline]] static void aligned() {
  void* block = nullptr;
  CHECK(posix_memalign(&block, 64, 5000) == 0);
  keep(block);
  keep(block = aligned_alloc(64, 640));
  free(block);
}

[[gnu::noinline]] static void work() {
  for (size_t i = 0; i < 500; i++) kept(100 + i);
  for (int i = 0; i < 3000; i++) temporary(64);
  all_at_once();
  grown();
  moved();
  aligned();
  delete new std::string(300, 'x');
  keep(strdup("a string of the C library's"));
  asm volatile("");
}

int main() {
  ready();
  work();
  done();
}
