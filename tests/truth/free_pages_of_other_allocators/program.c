#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 60000, KEPT_EVERY = 1000 };

void* __libc_malloc(size_t size);

static char* blocks[BLOCKS];
static char* of_glibc[50];

__attribute__((noinline)) static char* load(size_t size) {
  char* block = malloc(size);
  if (block == NULL) _exit(7);
  memset(block, 1, size);
  return block;
}

// A peak, after which nearly all pages are free.
static void work(void) {
  for (int i = 0; i < BLOCKS; i++) blocks[i] = load(1000);
  for (int i = 0; i < BLOCKS; i++) {
    if (i % KEPT_EVERY == 0) continue;
    free(blocks[i]);
    blocks[i] = NULL;
  }
}

static void say(const char* line, size_t length) {
  if (write(1, line, length) != (ssize_t)length) _exit(9);
}

static void wait_for_byte(void) {
  char byte;
  if (read(0, &byte, 1) < 0) _exit(5);
}

int main(void) {
  // glibc has a heap, too.
  for (int i = 0; i < 50; i++) of_glibc[i] = __libc_malloc(1000);
  say("ready\n", 6);
  wait_for_byte();
  work();
  say("done\n", 5);
  wait_for_byte();
  return blocks[0] == NULL || of_glibc[0] == NULL;
}
