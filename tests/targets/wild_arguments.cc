// An allocator whose functions receive arguments that are not valid pointers: hashes, and addresses
// of unmapped or unreadable memory. Another argument is the location for the block's address, on
// the stack or on the heap.
#include <sys/mman.h>

#include "target.hpp"

using namespace target;

static const size_t BYTES = 48, ROUNDS = 200;

extern "C" {
[[gnu::noinline]] int wild_get(void** place, size_t number, size_t size) {
  keep(reinterpret_cast<void*>(number));
  *place = calloc(1, size);
  return 0;
}
[[gnu::noinline]] void wild_put(void** place, size_t number) {
  keep(reinterpret_cast<void*>(number));
  free(*place);
  *place = nullptr;
}
}

int main() {
  auto* reserved = static_cast<char*>(mmap(nullptr, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(reserved != MAP_FAILED);
  auto address = reinterpret_cast<size_t>(reserved);
  auto* page = static_cast<char*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(page != MAP_FAILED && munmap(page + 4096, 4096) == 0);
  const size_t numbers[] = {0x5bd1e995'1b873593, 0x1234'5678'9abc, address, address + 4093, 0xffff'ffff'ffff'ffff,
                            // The end of this object is not mapped.
                            reinterpret_cast<size_t>(page) + 4092, 0x7fff'ffff'fff9, 65536, 1};
  ready();
  void* on_stack[8] = {};
  auto* on_heap = static_cast<void**>(calloc(8, sizeof(void*)));
  for (size_t i = 0; i < ROUNDS; i++) {
    for (size_t number : numbers) {
      void** place = i % 2 ? &on_stack[i % 8] : &on_heap[i % 8];
      CHECK(wild_get(place, number, BYTES) == 0);
      // Keeps the last blocks of one number.
      if (number == numbers[0] && i >= ROUNDS - 8) {
        keep(*place);
        *place = nullptr;
      } else {
        wild_put(place, number);
      }
    }
  }
  free(on_heap);
  done();
}
