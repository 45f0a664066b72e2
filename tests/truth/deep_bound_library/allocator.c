// A library's own allocator, with free lists of a few sizes in mapped memory.
#include <stddef.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))

struct header {
  size_t bytes;
  struct header* next;
};
static struct header* lists[20];
static char* room;
static size_t left;

static int list_of(size_t bytes) {
  int list = 0;
  while (((size_t)32 << list) < bytes) list++;
  return list;
}

EXPORT void* malloc(size_t bytes) {
  int list = list_of(bytes + sizeof(struct header));
  size_t whole = (size_t)32 << list;
  struct header* block = lists[list];
  if (block) {
    lists[list] = block->next;
  } else {
    if (left < whole) {
      left = 16 << 20;
      room = mmap(NULL, left, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (room == MAP_FAILED) return NULL;
    }
    block = (struct header*)room;
    room += whole;
    left -= whole;
  }
  block->bytes = whole;
  return block + 1;
}

EXPORT void free(void* address) {
  if (!address) return;
  struct header* block = (struct header*)address - 1;
  int list = list_of(block->bytes);
  block->next = lists[list];
  lists[list] = block;
}
