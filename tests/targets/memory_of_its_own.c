// A program whose data is in memory that it has mapped itself, as that of an allocator which nobody knows. Its blocks from
// malloc are few.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static char* own;
static char* kept[10];

int main(void) {
  const size_t bytes = 6u << 20;
  own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (own == MAP_FAILED) return 1;
  // Half of it is never touched.
  memset(own, 'x', bytes / 2);
  for (int i = 0; i < 10; i++) kept[i] = (char*)malloc(1000);
  puts("ready");
  fflush(stdout);
  while (getchar() != EOF) {
  }
  return own[0] == 'x' && own[bytes / 2] == 0 && kept[9] != NULL ? 0 : 1;
}
