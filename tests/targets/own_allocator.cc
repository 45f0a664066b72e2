// A library with a private allocator. The library's calls are bound at link time (-Bsymbolic), so
// they bypass the slots.
#include <cstddef>

#define EXPORT extern "C" __attribute__((visibility("default")))

alignas(16) static unsigned char room[1 << 20];
static size_t used;

EXPORT void* malloc(size_t size) {
  void* block = room + used;
  used += (size + 15) & ~size_t{15};
  return block;
}

EXPORT void free(void*) {}

EXPORT bool work_inside() {
  for (int i = 0; i < 100; i++) {
    auto* block = static_cast<unsigned char*>(malloc(222));
    asm volatile("" : : "r"(block) : "memory");
    if (block < room || block >= room + sizeof room) return false;
    if (i % 2) free(block);
  }
  return true;
}
