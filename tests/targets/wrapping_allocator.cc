// An allocator for preloading: its blocks are inside glibc's blocks, after a header.
#include <cstddef>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" void* __libc_malloc(size_t);
extern "C" void __libc_free(void*);

struct alignas(16) Header {
  size_t size;
};

EXPORT void* malloc(size_t size) {
  auto* header = static_cast<Header*>(__libc_malloc(sizeof(Header) + size));
  header->size = size;
  return header + 1;
}

EXPORT void free(void* block) {
  if (block) __libc_free(static_cast<Header*>(block) - 1);
}

EXPORT void* calloc(size_t count, size_t size) { return memset(malloc(count * size), 0, count * size); }

EXPORT void* realloc(void* block, size_t size) {
  void* other = malloc(size);
  if (block) {
    size_t old = (static_cast<Header*>(block) - 1)->size;
    memcpy(other, block, old < size ? old : size);
    free(block);
  }
  return other;
}

EXPORT size_t malloc_usable_size(void* block) { return block ? (static_cast<Header*>(block) - 1)->size : 0; }
