// A program at a fixed address that takes the addresses of malloc and free. In every module they
// are the addresses of the program's own PLT entries (psABI, "Function Addresses"), and the
// program's slots are not bound before the first call. With -DLIBRARY, a library that calls by
// these addresses.
#include "target.hpp"

using namespace target;

// Uses the address as a value, not only as a call target.
template <typename Function>
static Function* taken(Function* function) {
  asm volatile("" : "+r"(function));
  return function;
}

extern "C" void* by_address(size_t size);
extern "C" void release_by_address(void* block);

#ifdef LIBRARY
extern "C" [[gnu::visibility("default"), gnu::noinline]] void* by_address(size_t size) {
  void* block = taken(malloc)(size);
  keep(block);
  return block;
}

extern "C" [[gnu::visibility("default")]] void release_by_address(void* block) {
  taken(free)(block);
  asm volatile("");
}
#else
[[gnu::noinline]] static void plant_by_address() {
  for (int i = 0; i < 4; i++) keep(taken(malloc)(200));
}

[[gnu::noinline]] static void plant() {
  for (int i = 0; i < 5; i++) keep(malloc(300));
}

int main() {
  ready();
  release_by_address(by_address(10));
  taken(free)(taken(malloc)(20));
  void* block = malloc(30);
  keep(block);
  free(block);
  for (int i = 0; i < 3; i++) keep(by_address(100));
  plant_by_address();
  plant();
  done();
}
#endif
