// A program whose data is in memory that it maps itself, as with an unknown allocator. It has few
// blocks from malloc.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

static char* own;
static char* kept[10];

int main() {
  const size_t bytes = 6u << 20;
  void* mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return 1;
  own = static_cast<char*>(mapped);
  // Half of this memory is never touched.
  memset(own, 'x', bytes / 2);
  for (int i = 0; i < 10; i++) kept[i] = static_cast<char*>(malloc(1000));
  puts("ready");
  fflush(stdout);
  while (getchar() != EOF) {
  }
  return own[0] == 'x' && own[bytes / 2] == 0 && kept[9] != nullptr ? 0 : 1;
}
