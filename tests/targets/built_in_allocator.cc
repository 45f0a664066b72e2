// A program with a built-in allocator that contains jemalloc's message but no known symbol.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char room[1 << 16];
static size_t used;

[[gnu::noinline]] static void* take(size_t bytes) {
  if (used + bytes > sizeof room) {
    static const char text[] = "<jemalloc>: Error in take()\n";
    if (write(2, text, strlen(text)) < 0) abort();
    abort();
  }
  used += bytes;
  return room + used - bytes;
}

int main() {
  for (int i = 0; i < 100; i++) memset(take(100), 1, 100);
  void* block = malloc(10);
  asm volatile("" : "+r"(block));
  free(block);
}
